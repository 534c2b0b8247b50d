"""The page of the fault matrix is what the table of its tests gives, and the table has all its cells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.matrix.cells import CELLS, FAULTS, PHASES, Cannot

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    script = ROOT / "tests" / "faults" / "matrix" / "page.py"
    run = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("phase", PHASES)
def test_each_fault_has_its_cell(phase: str) -> None:
    assert CELLS[phase].keys() == FAULTS.keys()
    assert all(cell.reason.endswith(".") for cell in CELLS[phase].values() if isinstance(cell, Cannot))
