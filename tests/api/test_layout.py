"""The layout of the source: folders that can be taken in at a glance, and files that can be read in one go."""

from __future__ import annotations

import ast
from pathlib import Path

import stoker

SOURCE = Path(stoker.__file__).parent
FILES = 14
"""Files of a folder at most, `__init__.py` left out."""
LINES = 450
ONE_FILE_EACH = {"datasets", "samplers", "sources", "diagnostics/cli/commands"}
"""Folders with a file for each public kind."""


def test_folders_hold_at_most_14_files() -> None:
    wide = {}
    for folder in [SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir())]:
        files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        if len(files) > FILES and folder.relative_to(SOURCE).as_posix() not in ONE_FILE_EACH:
            wide[str(folder.relative_to(SOURCE))] = len(files)
    assert wide == {}


def test_long_files_say_why() -> None:
    silent = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        told = ast.get_docstring(ast.parse(text)) or ""
        if text.count("\n") > LINES and "long because" not in told and "why it is long" not in told:
            silent.append(str(path.relative_to(SOURCE)))
    assert silent == []
