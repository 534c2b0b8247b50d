"""Programs with a known cause of waiting: `stoker run` names it, and the change that mends it comes first."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stoker._core.machine.cpus import cpus
from stoker.diagnostics.page.report_page import page_data
from stoker.diagnostics.watched_program import ScriptRun, command_of

pytest.importorskip("torch")
if not hasattr(os, "sched_getaffinity"):
    pytest.skip("CPU time is read from /proc", allow_module_level=True)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

MORE_WORKERS = ("samples wait", "num_workers=")
COMPUTES = {"CPUs in use", "samples compute"}

SAID: dict[str, tuple[Any, ...]] = {
    "a slow sampler": ("sampler", "Make the sampler quicker: Weighted takes"),
    "a slow sampler, Stoker's loader": ("sampler", "Make the sampler quicker: Weighted takes"),
    "samples that sleep behind a quick sampler": MORE_WORKERS,
    "a loader made in each epoch": (
        "loader made anew",
        "Make the loader once, before the loop, with persistent_workers=True: it is made 12 times at train.py:",
    ),
    "one loader with persistent workers, samples that sleep": MORE_WORKERS,
    "spawned workers and short epochs": ("first batches", "Pass persistent_workers=True: the first batch"),
    "an index that each worker reads": (
        "first batches",
        "Pass persistent_workers=True: the first batch",
        "as a worker's first batch takes",
    ),
    "samples that sleep in several epochs": MORE_WORKERS,
    "more workers and threads than CPUs": ("too many workers", f"Pass num_workers={cpus().number} and leave out"),
    "a worker for each CPU, samples that compute": (COMPUTES, "Make samples cheaper (a faster decoder"),
    "slow collation": (COMPUTES, "Make collation cheaper"),
    "large batches": ("hand-over", "Make batches smaller in bytes", "a batch has 32 MiB"),
    "one slow sample in 320": ("slow batches", "Pass prefetch_factor=", "stoker profile lists the slowest"),
    "samples that sleep, without workers": ("no workers", "Pass num_workers="),
    "a slow step": (None, None),
    "an iterator for each batch": ("an iterator for each batch", "Keep one iterator"),
}
"""By the program: the cause, the words with which the suggestion begins, and more that it holds."""

SAME_CAUSE = {
    "a slow sampler",
    "an index that each worker reads",
    "one loader with persistent workers, samples that sleep",
    "samples that sleep in several epochs",
    "a worker for each CPU, samples that compute",
}
"""Programs beside another one of the same cause, which CI leaves out: each takes seconds."""


@pytest.fixture(scope="module")
def programs() -> ModuleType:
    """The module of the benchmark, which has the programs."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("first_suggestions", BENCHMARKS / "first_suggestions.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def test_each_program_has_its_cause(programs: ModuleType) -> None:
    assert list(SAID) == list(programs.PROGRAMS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in SAME_CAUSE else []) for name in SAID]
)
def test_first_suggestion(name: str, programs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = programs.PROGRAMS[name]
    if program.library == "stoker":
        monkeypatch.setenv("STOKER_TORCH", "0")
    path = tmp_path / "train.py"
    path.write_text(programs.text_of(program))
    script = ScriptRun(command_of(str(path), None, [str(cpus().number)]), stdout=subprocess.DEVNULL)
    assert script.run() == 0
    data = page_data(script.measurements, "torch")
    (found,) = data["loaders"]
    cause, begins, *also = SAID[name]
    told = f"{found['cause']}: {found['text']} {found['change']}"
    assert found["cause"] in cause if isinstance(cause, set) else found["cause"] == cause, told
    if begins is None:
        assert found["verdict"] == "compute-bound" and found["change"] is None, told
    elif begins.endswith("="):
        assert begins in found["change"], told
    else:
        assert found["change"].startswith(begins), told
    assert all(words in found["change"] for words in also), told
    line = 1 + programs.text_of(program)[: programs.text_of(program).index("DataLoader(")].count("\n")
    assert found["settings"]["made_at"] == f"train.py:{line}"
    if cause is COMPUTES:
        assert all(known is None or "computing" in known for known in data["what_if"]), "a simulated curve"
