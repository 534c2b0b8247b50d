"""Installed frameworks under `stoker.install()`: torch's order, each sample once, Stoker's engine, exact resume."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")  # of others


def loops() -> Any:
    path = Path(__file__).with_name("framework_loops.py")
    spec = importlib.util.spec_from_file_location("framework_loops", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["framework_loops"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOOPS = loops()
EXACT = ("lightning", "fabric", "accelerate", "transformers", "ignite", "torchdata")
IN_CI = ("plain", *EXACT, "skorch", "datasets")


@pytest.mark.parametrize("name", IN_CI)
def test_framework_gets_torchs_samples_from_us(name: str) -> None:
    try:
        metadata.version(LOOPS.LOOPS[name][1])
    except metadata.PackageNotFoundError:
        pytest.skip(f"{LOOPS.LOOPS[name][1]} is not installed")
    torchs, ours = LOOPS.both(name)
    assert ours.samples == torchs.samples
    epochs = [ours.samples[start : start + LOOPS.SAMPLES] for start in range(0, len(ours.samples), LOOPS.SAMPLES)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(LOOPS.SAMPLES))] * 2
    assert (torchs.engines, ours.engines) == ([0], [1])
    if name in EXACT and (name != "accelerate" or ours.interrupted is not None):
        first, rest = ours.interrupted
        assert len(first) == LOOPS.STOP * LOOPS.BATCH
        assert sorted(first + rest) == list(range(LOOPS.SAMPLES))
