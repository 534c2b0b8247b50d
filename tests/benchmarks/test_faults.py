"""The benchmarks of faults still run, in their smallest form, and say what they are for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("the figures come from /proc", allow_module_level=True)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def figures(name: str, case: str, path: Path) -> Any:
    """What a benchmark has measured for one case: by figure and rival."""
    command = [BENCHMARKS / f"{name}.py", "--quick", "--rounds", 1, "--json", path, "--case", case]
    ended = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (measured,) = json.loads(path.read_text())["cases"]
    found = measured["figures"].items()
    return {name: {rival: told and told["median"] for rival, told in by.items()} for name, by in found}


@pytest.mark.long
def test_chaos(tmp_path: Path) -> None:
    found = figures("chaos", "segfaults", tmp_path / "results.json")
    assert found["batches delivered"]["stoker"] == 782 > found["batches delivered"]["torch"]
    assert found["ends with"]["stoker"] == "its end"
    assert re.search("Error|^nothing, after", found["ends with"]["torch"])  # now and then it hangs
    assert found["good samples lost"]["stoker"] == found["batches that differ"]["stoker"] == 0
    assert found["bad samples in the quarantine"]["stoker"] == 5


def test_recovery(tmp_path: Path) -> None:
    found = figures("recovery", "of 0 ms, forked", tmp_path / "results.json")
    for who in ("the worker", "one of two workers", "the zygote"):
        assert found[f"{who} dies: ms to the batch"]["stoker"] > 0
    assert found["ms from the death to the error"]["torch"] > 0


def test_unsupervised_engine_matches_the_product(tmp_path: Path) -> None:
    """Fails when the product's methods have changed, and what the benchmark takes out of them must follow."""
    assert figures("supervision", "64 samples", tmp_path / "results.json")["pairs"] == {"supervised / not": 8}
