"""Every public name has its place in the reference."""

import re
from pathlib import Path

import stoker
from stoker import errors

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
GUIDES = REFERENCE.parent / "guides"


def test_the_guides_say_what_to_do_about_each_error() -> None:
    pages = "\n".join(path.read_text() for path in GUIDES.glob("*.md"))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert [kind.__name__ for kind in kinds if kind.__name__ not in pages and kind is not errors.StokerError] == []


def test_the_reference_names_the_public_names() -> None:
    pages = "\n".join(path.read_text() for path in sorted(REFERENCE.glob("*.md")))
    shown = re.findall(r"^::: stoker\.(\w+)$", pages, re.MULTILINE)
    assert len(shown) == len(set(shown))
    of_errors = {name for name in stoker.__all__ if hasattr(errors, name)}  # the page shows all of them
    assert {*shown, *of_errors, "device", "errors", "extend", "images"} == set(stoker.__all__)
