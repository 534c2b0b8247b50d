"""The built site: every page is in the navigation and reached from the home page, and every link leads somewhere."""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
"""Elements without an end."""
LITERAL = {"code", "pre", "script", "style", "svg"}
"""Elements whose text is shown as it is written."""


class Page(HTMLParser):
    """What a page holds: its links, the targets of links in it, and its text outside of code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.targets: set[str] = set()
        self.text = ""
        self._literal: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in LITERAL or (self._literal and tag not in EMPTY):
            self._literal.append(tag)
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.targets.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)

    def handle_endtag(self, tag: str) -> None:
        if self._literal and self._literal[-1] == tag:
            self._literal.pop()

    def handle_data(self, data: str) -> None:
        if not self._literal:
            self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The files of the site by their paths; one that is no page is an empty one."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    folder = ROOT / "build" / "site"  # of `make docs`, if nothing has changed since
    sources = [ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*.*"), *(ROOT / "src").rglob("*.py")]
    newest = max(path.stat().st_mtime for path in sources)
    if not (folder / "sitemap.xml").exists() or (folder / "sitemap.xml").stat().st_mtime < newest:
        folder = tmp_path_factory.mktemp("site")
        _build(folder)
    built = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    pages = {name: Page(path.read_text()) for name, path in built.items() if name.endswith(".html")}
    return pages | {name: Page("") for name in built.keys() - pages.keys()}


def _build(folder: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=380)
    assert run.returncode == 0, run.stdout + run.stderr


def target_of(page: str, link: str) -> tuple[str, str] | None:
    """The file and the place in it to which a link of a page leads, or None if it leaves the site."""
    address, place = urldefrag(link)
    if urlparse(address).scheme or address.startswith("//"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(address))) if address else page
    is_folder = address.endswith("/") or address in (".", "..")
    return ("index.html" if path == "." else f"{path}/index.html" if is_folder else path), unquote(place)


def test_links_and_anchors_lead_somewhere(site: dict[str, Page]) -> None:
    dead = []
    for name, page in site.items():
        for link in page.links if name != "404.html" else ():  # its links begin at the root of a server
            if (target := target_of(name, link)) is None:
                continue
            file, place = target
            if file not in site or (place and not place.startswith("__") and place not in site[file].targets):
                dead.append(f"{name}: {link}")
    assert dead == []


def test_every_page_is_reached_from_home(site: dict[str, Page]) -> None:
    reached, left = {"index.html"}, ["index.html"]
    while left:
        name = left.pop()
        new = {target[0] for link in site[name].links if (target := target_of(name, link))} - reached
        reached |= new
        left += new
    assert {name for name in site if name.endswith(".html")} - reached == {"404.html"}


def test_no_markdown_is_left_in_the_text(site: dict[str, Page]) -> None:
    marks = re.compile(r".{0,40}(?:\]\(|(?<![\w)])\*\*|^#{2,} |^\|.*\|$|:::|```).{0,40}", re.MULTILINE)
    assert [f"{name}: {match[0]}" for name, page in site.items() for match in marks.finditer(page.text)] == []


def test_home_page_is_the_readme_with_a_picture_and_the_version(site: dict[str, Page]) -> None:
    home = site["index.html"]
    assert "bounds the gain" in home.text
    assert any(link.endswith("verdict.png") for link in home.links)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"Stoker {version}" in home.text


def test_every_file_of_the_docs_is_in_the_navigation() -> None:
    docs = ROOT / "docs"
    named = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(named) == len(set(named))
    assert {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {*named} == set()


def test_install_page_has_all_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    extras = re.findall(r"`([\w-]+)`", " ".join(table))
    assert sorted(extras) == sorted(project["optional-dependencies"])
