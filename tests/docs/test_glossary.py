"""The glossary: one row for each term, and every term is in use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<term>[^|]+?) \| (?P<meaning>[^|]+?) \|$", re.MULTILINE)
TERMS = [row["term"] for row in ROW.finditer((ROOT / "docs" / "glossary.md").read_text()) if row["term"] != "term"]


def test_glossary_terms_have_one_row_each() -> None:
    assert len(TERMS) >= 20
    assert len(set(TERMS)) == len(TERMS)


@pytest.mark.parametrize("term", TERMS)
def test_glossary_term_is_used_in_source_and_guides(term: str) -> None:
    word = re.compile(rf"\b{term}s?\b", re.IGNORECASE)
    source = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert any(map(word.search, source))
    pages = [*(ROOT / "docs" / "guides").glob("*.md"), *(ROOT / "docs" / "design").glob("*.md")]
    assert any(word.search(page.read_text(encoding="utf-8")) for page in pages)
