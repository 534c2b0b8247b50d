"""The benchmark of the device runs its lines on the CPU, so that none is run for the first time on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


def test_dry_run(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    command = [ROOT / "benchmarks" / "device.py", "--quick", "--accelerator", "fake", "--case", "random orders"]
    run = [sys.executable, *map(str, command), "--json", str(path)]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (measured,) = json.loads(path.read_text())["cases"]
    assert measured["figures"]["wrong batches"]["stoker, device="]["median"] == 0


def test_script_is_sound() -> None:
    subprocess.run(["bash", "-n", str(ROOT / "scripts" / "gpu.sh")], check=True)
