"""Every public name has its place in the reference."""

import re
from pathlib import Path

import stoker

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_reference_names_the_public_names() -> None:
    pages = "\n".join(path.read_text() for path in sorted(REFERENCE.glob("*.md")))
    shown = re.findall(r"^::: stoker\.(\w+)$", pages, re.MULTILINE)
    assert len(shown) == len(set(shown))
    errors = {name for name, thing in vars(stoker.errors).items() if isinstance(thing, type)}
    assert {*shown, *errors, "errors"} == set(stoker.__all__)
