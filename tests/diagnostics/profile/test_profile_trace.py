"""The trace of a profile: nested tracks, each batch once in a worker and once in the loop, and arrows between them."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader
from stoker.diagnostics.profile import profile_session
from stoker.loader.record import record_of

SIZE, BATCH = 24, 4
BACKENDS = [
    pytest.param({}, id="serial"),
    pytest.param({"num_workers": 2, "worker_method": "thread"}, id="thread"),
    pytest.param(
        {"num_workers": 2},
        id="fork",
        marks=pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only"),
    ),
]


class Rows:
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return np.full(3, index)


def traced(path: Path, **options: Any) -> list[dict[str, Any]]:
    loader = DataLoader(Rows(), BATCH, output="numpy", seed=3, shuffle=True, **options)
    loader.profile(step=lambda batch: None, replay=2, trace=path)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def spans(events: list[dict[str, Any]], tid: int, begins: str = "") -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["tid"] == tid and e["name"].startswith(begins)]


@pytest.mark.parametrize("options", BACKENDS)
def test_tracks_are_nested_and_batches_are_linked(options: dict[str, Any], tmp_path: Path) -> None:
    events = traced(tmp_path / "trace.json", **options)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[0] == "training loop" and len(names) == 1 + max(1, options.get("num_workers", 0))
    waits, steps = spans(events, 0, "wait for batch"), spans(events, 0, "step with batch")
    assert [span["name"] for span in waits] == [f"wait for batch {n}" for n in range(SIZE // BATCH)]
    assert len(steps) == len(waits)
    made = [span for tid in names if tid for span in spans(events, tid, "batch")]
    assert {span["name"] for span in made} == {f"batch {n}" for n in range(SIZE // BATCH)}  # workers may share one
    samples = [span["name"] for tid in names if tid for span in spans(events, tid, "sample")]
    assert sorted(samples) == sorted(f"sample {n}" for n in range(SIZE))
    for tid in names:
        check_nested(spans(events, tid))
    begun, ended = ({e["id"]: e for e in events if e["ph"] == kind} for kind in "sf")
    assert set(begun) == set(ended) and len(begun) == len(made)
    assert all(e["tid"] == 0 and begun[e["id"]]["tid"] > 0 for e in ended.values())


def check_nested(track: list[dict[str, Any]]) -> None:
    """Each span lies in the one around it, or behind it."""
    around: list[float] = []
    for span in sorted(track, key=lambda span: (span["ts"], -span["dur"])):
        assert span["ts"] >= 0 and span["dur"] >= 0
        end = span["ts"] + span["dur"]
        while around and span["ts"] >= around[-1] - 1e-3:
            around.pop()
        assert not around or end <= around[-1] + 1e-3, span
        around.append(end)


def test_clock_is_that_of_torch_profiler(tmp_path: Path) -> None:
    before = time.time_ns()
    traced(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())
    begun = written["baseTimeNanoseconds"]
    last = max(e["ts"] + e.get("dur", 0) for e in written["traceEvents"] if "ts" in e)
    assert before - 10**7 <= begun <= begun + 1e3 * last <= time.time_ns() + 10**7


def test_long_traces_leave_samples_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_session, "MOST_SPANS", 25)
    events = traced(tmp_path / "trace.json")
    assert len(spans(events, 1, "sample")) == 2 * BATCH and len(spans(events, 1, "batch")) == SIZE // BATCH


def test_profile_that_is_left_writes_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for _ in DataLoader(Rows(), BATCH, output="numpy").profile(trace=path):
        break
    events = json.loads(path.read_text())["traceEvents"]
    assert [span["name"] for span in spans(events, 0)] == ["wait for batch 0"]


def test_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DataLoader(Rows(), BATCH).profile(trace=os.fspath(tmp_path / "nowhere" / "trace.json"))


def test_epoch_without_a_batch_has_a_trace_without_batches(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert list(DataLoader([], BATCH).profile(trace=path)) == []
    assert [e["name"] for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"] == []


def test_unwritable_trace_leaves_the_loader_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(profile_session.ProfileTrace, "write", full)
    loader = DataLoader(Rows(), BATCH, output="numpy")
    profile = loader.profile(trace=tmp_path / "trace.json", stacks=True)
    with pytest.raises(OSError, match="No space left"):
        list(profile)
    assert (record_of(loader).timing_sink, record_of(loader).sampled) == (None, False)
    assert profile.result.batches == SIZE // BATCH
