"""Names that a reader meets without context: test functions are short, and no two classes share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import stoker

TESTS = Path(__file__).parents[1]
SOURCE = Path(stoker.__file__).parent

LIMIT = 60
TORCHVISIONS = {"ColorJitter", "Compose", "Normalize", "RandomErasing", "RandomHorizontalFlip", "RandomResizedCrop"}
"""Names of torchvision's, each in `stoker.images` for an image and in `stoker.device` for a batch."""


def test_test_names_are_under_60_characters() -> None:
    long = [
        f"{path.relative_to(TESTS)}: {node.name}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) >= LIMIT
    ]
    assert not long


def test_class_names_are_unique_in_the_source() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {name for name, found in twice.items() if len(found) == 2 and found[1].startswith("images/")} == TORCHVISIONS
    assert set(twice) == TORCHVISIONS
