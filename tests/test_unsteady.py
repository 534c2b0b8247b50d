"""CI runs a test that failed again, and passes if that was a matter of a moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unsteady import NEVER

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]

ONCE = """
import pathlib

def test_once() -> None:
    tries = pathlib.Path(__file__).with_name("tries")
    with tries.open("a") as file:
        file.write("x")
    assert len(tries.read_text()) > {after}, "a moment"
"""
LEFT = """
import pytest

from tests.unsteady import NEVER

@pytest.fixture
def bad():
    yield
    assert False, "left behind"

def test_left(bad) -> None:
    pass
"""
FOUR = """
import pathlib
import pytest

from tests.unsteady import NEVER

@pytest.mark.parametrize("number", range(4))
def test_once(number: int) -> None:
    tried = pathlib.Path(__file__).with_name(f"tried{number}")
    was_tried = tried.exists()
    tried.touch()
    assert was_tried
"""
TWO = "\ndef test_two() -> None:\n    assert False\n"


def run(folder: Path, text: str, at: str = "test_it.py", *more: str) -> subprocess.CompletedProcess[str]:
    file = folder / at
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "tests.unsteady", "-p", "no:cacheprovider", *more, str(file)]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )


@pytest.mark.parametrize("more", [(), ("-n", "1")])
def test_failure_of_a_moment_passes_and_is_printed(tmp_path: Path, more: tuple[str, ...]) -> None:
    if more:
        pytest.importorskip("xdist")
    ended = run(tmp_path, ONCE.format(after=1), "test_it.py", *more)
    assert ended.returncode == 0, ended.stdout
    assert "UNSTEADY: test_it.py::test_once" in ended.stdout and "AssertionError: a moment" in ended.stdout
    assert "1 unsteady" in ended.stdout.splitlines()[-1] and "failed" not in ended.stdout.splitlines()[-1]
    assert (tmp_path / "tries").read_text() == "xxx"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (ONCE.format(after=2), "test_it.py"),  # it fails once more
        (ONCE.format(after=1) + TWO, "test_it.py"),  # another one fails always
        (ONCE.format(after=1), f"{NEVER[0]}test_it.py"),
        (LEFT, "test_it.py"),
        ("def test_x() -> None:\n    raise RuntimeError('Timeout (>120.0s)')\n", "test_it.py"),
        (FOUR, "test_it.py"),
    ],
    ids=["twice", "two", "samples", "left", "hangs", "four"],
)
def test_other_failures_fail_the_run(tmp_path: Path, text: str, at: str) -> None:
    ended = run(tmp_path, text, at)
    assert ended.returncode == 1, ended.stdout
    assert "UNSTEADY" not in ended.stdout


def test_few_tests_are_known_as_unsteady() -> None:
    lines = [line for line in (ROOT / "tests/unsteady.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) <= 5
    for line in lines:
        name, day, cause = line.split(", ", 2)
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text() and len(day) == 10 and cause
