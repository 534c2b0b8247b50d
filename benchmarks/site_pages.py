"""A hook of mkdocs: pages of the site that lie outside of `docs/`, and links that lead to them.

The home page is the README. The tables beside the results, the changelog and the notes for contributors are pages too.
"""

import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
PAGES |= {"SECURITY.md": "security.md"}
"""Files of the root, and their places on the site."""
SEARCH = {"guides/": {"boost": 2}, "results/": {"exclude": True}, "design/": {"boost": 0.1}}
SEARCH["changes.md"] = {"boost": 0.1}
"""The treatment of pages in the search, by the begin of their place: a user looks for guides, not for tables."""


def on_config(config: MkDocsConfig) -> None:
    """Puts the version into the head of each page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.site_name = f"Stoker {project['version']}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages: outside of `docs/`, mkdocs finds none."""
    for name, place in PAGES.items():
        files.append(File.generated(config, place, content=_on_the_site((ROOT / name).read_text())))
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.md")):
        files.append(File(f"results/{path.name}", str(path.parents[1]), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turns links between `docs/`, `benchmarks/results` and the root into those of the site; weighs the search."""
    for place, treatment in SEARCH.items():
        if page.file.src_uri.startswith(place):
            page.meta["search"] = treatment
    markdown = markdown.replace("../benchmarks/results/", "results/").replace("../../docs/", "../")
    for name, place in PAGES.items():
        markdown = re.sub(rf"\]\(((?:\.\./)+){re.escape(name)}\b", lambda up, to=place: f"]({up[1][3:]}{to}", markdown)
    return markdown


def _on_the_site(markdown: str) -> str:
    """A page of the root with the links that it has on the site."""
    for name, place in PAGES.items():
        markdown = markdown.replace(f"]({name}", f"]({place}")
    return markdown.replace("](docs/", "](").replace("](benchmarks/results/", "](results/")
