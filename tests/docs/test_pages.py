"""Every Python block of a page runs, in order, as the one program that a reader would make of them.

A block that cannot run stands under the comment `<!-- not run: the reason -->`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

markdown_it = pytest.importorskip("markdown_it")

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "benchmarks" / "results"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *TABLES.glob("*.md")])
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+?) -->")


def program_of(text: str) -> str:
    """The Python blocks of a page, each on its own lines of the page, so that a traceback points into it."""
    tokens = markdown_it.MarkdownIt().parse(text)
    lines = [""] * len(text.splitlines())
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type != "fence" or token.info.split()[:1] not in (["python"], ["py"]):
            continue
        if before is not None and before.type == "html_block" and NOT_RUN.search(before.content):
            continue
        first = token.map[0] + 1
        block = token.content.splitlines()
        lines[first : first + len(block)] = block
    return "\n".join(lines) + "\n"


PROGRAMS = {path.relative_to(ROOT): program_of(path.read_text()) for path in PAGES}


@pytest.mark.parametrize("page", [page for page, program in PROGRAMS.items() if program.strip()], ids=str)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    program = PROGRAMS[page]
    if re.search(r"^\s*(import|from) torch\b", program, re.MULTILINE):
        pytest.importorskip("torch")
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program)
    run = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, f"{page} (line numbers are those of the page):\n{run.stdout}"


@pytest.mark.parametrize("page", PROGRAMS, ids=str)
def test_local_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)[^)]*\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}, which is not there"


def test_blocks_are_found_in_order_on_their_own_lines() -> None:
    text = "# A\n\n```python\na = 1\n```\n\n- in a list\n\n    ```python\n    b = a\n    ```\n\n```bash\nfalse\n```\n"
    text += "\n<!-- not run: it would never end -->\n```python\nwhile True: ...\n```\n"
    assert program_of(text).split("\n")[3] == "a = 1"
    assert program_of(text).split("\n")[9] == "b = a"
    assert [line for line in program_of(text).split("\n") if line] == ["a = 1", "b = a"]
