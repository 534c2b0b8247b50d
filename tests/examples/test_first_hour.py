"""`scripts/first_hour.py`: its walks, its programs, and what counts as a missed goal."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def first_hour(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("first_hour")


def test_help_names_the_walks() -> None:
    command = [sys.executable, str(SCRIPTS / "first_hour.py"), "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--walk {images,text,platform}" in said and "goal" in said


@pytest.mark.parametrize("name", ["PHOTOS", "TEXT", "STORE", "SMALL", "MISTAKE"])
def test_programs_are_python(name: str, first_hour: Any) -> None:
    compile(getattr(first_hour, name).replace("{package}", "stoker"), name, "exec")


@pytest.mark.parametrize(("met", "code"), [(True, 0), (None, 0), (False, 1)])
def test_missed_goal_is_an_error(
    met: bool | None, code: int, first_hour: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def walk(clean: Any, options: argparse.Namespace) -> Iterator[Any]:
        yield first_hour.Figure("images", "a step", "4 min", "3 min", met)

    monkeypatch.setitem(first_hour.WALKS, "images", walk)
    monkeypatch.setattr(sys, "argv", ["first_hour.py", "--walk", "images"])
    assert first_hour.main() == code
    said = capsys.readouterr().out
    assert "a step" in said and f"{code} of 1 goals missed" in said
