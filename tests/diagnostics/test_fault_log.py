"""Faults: recorded by the hooks, read back, counted by loader, and in words."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.diagnostics.fault_log import FaultLog
from stoker.diagnostics.loader_hooks import LoaderHooks
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.recorder import Recorder
from stoker.diagnostics.run_findings import finding_lines
from stoker.diagnostics.worker_hooks import LONGEST, NAMED, FaultHooks, in_words, sentence, why_ended
from stoker.events import FaultRecord, SampleFailed, SampleSkipped, WorkerDied, WorkerRetired, WorkersWouldHelp
from stoker.loader._accounting.ledger import Ledger


class FakeLoader:
    dataset = (1, 2)
    batch_size = 4
    batch_sampler = ()
    num_workers = 2


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[Recorder, FaultHooks, Ledger]]:
    recorder = Recorder(str(tmp_path))
    hooks = LoaderHooks(recorder, detailed=True)
    hooks.observe()
    recorder.mark = recorder.new_mark()
    recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.1, engine="stoker", mark=recorder.mark)
    yield recorder, hooks.faults, Ledger()
    hooks.undo()


def read(folder: Path, recorder: Recorder) -> Measurements:
    recorder.flush()
    known = Measurements()
    known.read(str(folder))
    return known


def failed(index: int, outcome: Any = "skipped", kind: Any = "exception") -> FaultRecord:
    return FaultRecord(
        kind=kind, outcome=outcome, position=index, exception="OSError: no", traceback="", worker=1, index=index,
        description=f"photos/{index}.jpg",
    )  # fmt: skip


def test_events_are_counted_and_the_first_are_named(tmp_path: Path, recorded: Any) -> None:
    recorder, _, ledger = recorded
    for number in range(3 * NAMED):
        ledger.event(SampleFailed(message=f"sample {number} failed", fault=failed(number), worker=1, batch=number))
        if number == 2 * NAMED:
            recorder.flush()
    ledger.event(SampleFailed(message="sample 9 failed", fault=failed(9, "replaced")))
    ledger.event(SampleSkipped(message="too dark", fault=failed(4, kind="skip")))
    ledger.event(WorkersWouldHelp(message="not a fault"))
    assert ledger.events["hint"].count == 1
    log = read(tmp_path, recorder).loaders[0].faults
    assert log.counts == {"sample left out": 3 * NAMED, "sample replaced": 1, "sample skipped": 1}
    named = [one for one in log.named if one["what"] == "sample left out"]
    assert len(named) == NAMED and named[3]["sample"] == "photos/3.jpg" and named[3]["worker"] == 1
    assert log.text == "60 samples were left out, 1 sample was replaced, 1 sample asked to be skipped"


def test_workers_are_replaced_for_causes(tmp_path: Path, recorded: Any) -> None:
    recorder, _, ledger = recorded
    stack = "It was worker 0.\nIts last Python stack:\n  File x.py"
    ledger.event(WorkerDied(message=stack, worker=0, code=-9))
    ledger.event(WorkerDied(message="hung", worker=0, code=-9, stalled=True))
    ledger.event(WorkerDied(message="died", worker=1, code=-9))
    ledger.event(WorkerRetired(message="worker 1 uses 2 GiB", worker=1))
    ledger.event(WorkerDied(message="the end", worker=1, code=1, ends=True))
    log = read(tmp_path, recorder).loaders[0].faults
    assert log.causes == {"SIGKILL": 2, "hung": 1, "grown or old": 1}
    assert log.text == "4 workers were replaced (2 SIGKILL, hung, grown or old), 1 warning"
    assert log.named[0]["text"] == "It was worker 0."


def test_time_of_an_event_is_on_the_clock_of_the_run(tmp_path: Path, recorded: Any) -> None:
    recorder, _, ledger = recorded
    ledger.event(WorkerDied(message="earlier", time=time.time() - 5))
    known = read(tmp_path, recorder)
    known.begun = time.perf_counter() - 20
    (fault,) = known.loaders[0].faults.as_dict(known.begun)["named"]
    assert fault["at"] == pytest.approx(15, abs=1)


def test_error_that_a_loader_raised_ends_the_program_once(
    tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, hooks, _ = recorded
    error = RuntimeError("DataLoader worker (pid 5) is killed by signal: Killed.")
    hooks.raised(error, time.perf_counter())
    recorder.mark = None
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    hooks.ended()
    known = read(tmp_path, recorder)
    assert known.faults.counts == {} and known.loaders[0].faults.counts == {"error raised": 1}
    assert finding_lines(known, known.loaders) == ["a.py:1: 1 error was raised by the loader."]


def test_error_of_the_program_itself_belongs_to_no_loader(
    tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, hooks, _ = recorded
    recorder.mark = None
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    hooks.ended()
    monkeypatch.setattr(sys, "last_value", ValueError("NaN"), raising=False)
    hooks.ended()
    known = read(tmp_path, recorder)
    assert known.faults.counts == {"program failed": 1}
    assert finding_lines(known, known.loaders) == ["program failed: ValueError: NaN"]


def test_loader_of_stokers_without_faults_says_so(tmp_path: Path, recorded: Any) -> None:
    known = read(tmp_path, recorded[0])
    assert finding_lines(known, known.loaders) == ["Faults: none; no worker was replaced, no sample was left out."]
    known.loaders[0].about["engine"] = "torch"
    assert finding_lines(known, known.loaders) == []


def test_event_that_cannot_be_read_does_no_harm(tmp_path: Path, recorded: Any) -> None:
    recorder, hooks, _ = recorded

    class Broken(RuntimeError):
        def __str__(self) -> str:
            raise ValueError

    hooks.heed(SimpleNamespace(kind="exception", details=None))
    hooks.raised(Broken(), 1.0)
    assert read(tmp_path, recorder).loaders[0].faults.counts == {}


@pytest.mark.parametrize(
    ("details", "why"),
    [
        ({}, None),
        ({"code": -11}, "SIGSEGV"),
        ({"code": -99}, "signal 99"),
        ({"code": 3}, "exit code 3"),
        ({"code": -9, "stalled": True}, "hung"),
    ],
)
def test_why_a_worker_ended(details: dict[str, Any], why: str | None) -> None:
    assert why_ended(details) == why


def test_messages_are_short_sentences() -> None:
    assert sentence("a worker\nhung. Its Python stack:\nFile x") == "a worker hung."
    assert len(sentence("x " * 1000)) == LONGEST
    of_torch = (
        "Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\nOSError: cut\n"
    )
    assert in_words(OSError(of_torch)) == "OSError: cut" and in_words(OSError()) == "OSError"
    error = RuntimeError("DataLoader worker (pid(s) 5) exited unexpectedly")
    error.__cause__ = RuntimeError("DataLoader worker (pid 5) is killed by signal: Killed. ")
    assert in_words(error).endswith("exited unexpectedly (DataLoader worker (pid 5) is killed by signal: Killed.)")


def test_log_keeps_few_of_many_processes() -> None:
    log = FaultLog()
    for number in range(100):
        log.heed({"fault": "stall", "at": float(number), "count": 1, "text": "hung", "mark": str(os.getpid())})
    assert len(log.named) == NAMED and log.text == "100 warnings"
