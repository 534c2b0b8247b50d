"""The soak runs, in its shortest form, and says what it finds and how to do it again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

if sys.platform != "linux":
    pytest.skip("the soak looks into /proc", allow_module_level=True)

SEED = 6  # whose first runs are short, and have deaths
SOAK = Path(__file__).parents[1] / "soak"

PLANTED = f"""
import os, runpy, subprocess, sys
sys.path.insert(0, {str(SOAK)!r})
import run
real = run.run

def broken(*arguments):
    real(*arguments)
    {{}}

run.run = broken
sys.argv = ["soak", "--seconds", "1", "--seed", "6"]
runpy.run_path({str(SOAK / "__main__.py")!r}, run_name="__main__")
"""


def soak(*command: object) -> subprocess.CompletedProcess[str]:
    without_torch = {**os.environ, "STOKER_TORCH": "0"}  # which takes longer to import than all this
    command = (sys.executable, *map(str, command))
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=without_torch)


def test_a_short_soak() -> None:
    ended = soak(SOAK, "--seconds", 2, "--seed", SEED)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("soak of 2 s, seed 6\n")
    assert "all batches those of the calm runs" in ended.stdout
    assert "loaders: " in ended.stdout and "left behind: nothing" in ended.stdout


def test_soak_prints_the_seed_it_drew() -> None:
    first, second = (soak(SOAK, "--seconds", 0) for _ in range(2))
    assert first.returncode == second.returncode == 0
    assert first.stdout.splitlines()[0] != second.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("os.open(os.devnull, os.O_RDONLY)", "descriptor"),
        ("subprocess.Popen(['sleep', '4.5'], stdout=-3, stderr=-3)", "process"),
        ("run.compare(['a'], ['b'], True, 'these')", "the first other one at 0"),
    ],
)
def test_soak_reports_its_findings(planted: str, told: str) -> None:
    ended = soak("-c", PLANTED.format(planted))
    assert ended.returncode == 1
    assert told in ended.stderr
    assert "run 0 of seed 6 (again: python tests/soak --seed 6 --run 0 --times 20)" in ended.stderr
