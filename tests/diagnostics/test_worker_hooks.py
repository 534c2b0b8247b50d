"""Hooks in workers: which loader a batch is for, how long it took, and how many are recorded."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest

from stoker.diagnostics import recorder as recorders
from stoker.diagnostics import worker_hooks
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.recorder import Recorder, bytes_in
from stoker.diagnostics.watched_program import ScriptRun, command_of
from stoker.diagnostics.worker_hooks import STARTED_BY, Thinning, WorkerHooks, starting


class FakeLoader:
    dataset = (1, 2)
    batch_size = 4
    batch_sampler = ()
    num_workers = 1


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> type:
    """A class that makes batches, measured as those of torch are."""

    class Fetcher:
        def fetch(self, indices: list[int]) -> list[int]:
            if not indices:
                raise StopIteration
            return list(map(abs, indices))

    module = ModuleType("made_of_batches")
    module.Fetcher = Fetcher  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_of_batches", module)
    monkeypatch.setitem(worker_hooks.MADE, "made_of_batches", (("Fetcher", "fetch"),))
    return Fetcher


def test_batches_belong_to_the_loader_that_started_the_worker(tmp_path: Path, maker: type) -> None:
    recorder = Recorder(str(tmp_path))
    WorkerHooks(recorder).measure("made_of_batches")
    mark = recorder.new_mark()
    assert maker().fetch([-1]) == [1]  # no epoch: nothing is recorded
    with starting(mark):
        assert os.environ[STARTED_BY] == mark
        for number in range(3):
            assert maker().fetch([-number]) == [number]
        with pytest.raises(StopIteration):
            maker().fetch([])
    assert STARTED_BY not in os.environ
    record = recorder.begin(FakeLoader(), "a.py:1", 0.0, 0.1, mark=mark)
    recorder.batch(record, 0.1, 0.2, 4)
    recorder.size(record, 4096)
    recorder.flush()
    known = Measurements()
    known.read(str(tmp_path))
    (loader,) = known.loaders
    assert [len(works) for works in loader.works] == [3] and loader.sizes == [4096]
    assert all(0 <= work.seconds < 60 and work.begun <= time.perf_counter() for work in loader.works[0])
    assert loader.summary().batches == 1


class Recorded(Recorder):
    """Keeps what it is given: the mark, and the seconds of wall and CPU time."""

    def __init__(self) -> None:
        super().__init__("nowhere")
        self.given: list[tuple[str, float, float]] = []

    def work(self, mark: str, begun: float, seconds: float, cpu: float, collated: float | None) -> None:
        self.given.append((mark, seconds, cpu))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the hooks measure: seconds of wall time, of which half is CPU time."""
    now = [0.0]
    times = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0] / 2)
    monkeypatch.setattr(worker_hooks, "time", times)
    return now


def test_batches_of_an_inner_loader_belong_to_the_outer_one(
    maker: Any, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = maker.fetch

    def fetch(self: Any, indices: list[int]) -> list[int]:
        clock[0] += 1
        return plain(self, indices) if len(indices) < 2 else [maker().fetch([index])[0] for index in indices]

    monkeypatch.setattr(maker, "fetch", fetch)
    recorder = Recorded()
    WorkerHooks(recorder).measure("made_of_batches")
    with starting("7:1"):
        assert maker().fetch([1, 2, 3]) == [1, 2, 3]
        assert recorder.given == [("7:1", 4.0, 2.0)]
        with pytest.raises(StopIteration):
            maker().fetch([])
        assert maker().fetch([1]) == [1]  # the failed one is over
    assert recorder.given[1:] == [("7:1", 1.0, 0.5)] and recorder._works["7:1"][0] == 3


def test_time_of_some_rows_stands_for_the_whole_batch(clock: list[float]) -> None:
    def make() -> str:
        clock[0] += 2
        return "rows"

    recorder = Recorded()
    with starting("7:1"):
        assert [WorkerHooks(recorder).make(share, make) for share in (1.0, 0.25)] == ["rows", "rows"]
    assert recorder.given == [("7:1", 2.0, 1.0), ("7:1", 8.0, 4.0)]


def test_mark_of_the_process_comes_before_that_of_its_parent(maker: Any) -> None:
    recorder = Recorded()
    WorkerHooks(recorder).measure("made_of_batches")
    with starting("7:1"):
        recorder.mark = "9:1"  # a loader without workers, in a worker of another one
        maker().fetch([1])
        recorder.mark = None
        maker().fetch([1])
    assert [mark for mark, *_ in recorder.given] == ["9:1", "7:1"]


def test_forked_worker_has_the_mark_of_its_environment(tmp_path: Path, maker: Any) -> None:
    """A worker that is started anew is forked while its parent waits for a batch, of any loader."""
    recorder = Recorder(str(tmp_path))
    WorkerHooks(recorder).measure("made_of_batches")
    other, mine = recorder.new_mark(), recorder.new_mark()
    with starting(mine):
        recorder.mark = other
        pid = os.fork()
        if not pid:
            maker().fetch([1])
            recorder.flush()
            os._exit(recorder.mark is not None or recorder.new_mark() == f"{os.getppid()}:1")
        recorder.mark = None
    assert os.waitpid(pid, 0)[1] == 0
    for mark in other, mine:
        recorder.begin(FakeLoader(), f"{mark}.py:1", 0.0, 0.1, mark=mark)
    recorder.flush()
    known = Measurements()
    known.read(str(tmp_path))
    assert [[len(works) for works in loader.works] for loader in known.loaders] == [[0], [1]]


def test_a_part_of_many_batches_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "WORKS", 10)
    recorder = Recorder(str(tmp_path))
    due = [recorder.is_due("7:1") for _ in range(1000)]
    assert all(due[:20]) and 20 < sum(due) < 100
    assert any(due[900:])


def test_quick_batches_of_the_loops_process_are_thinned() -> None:
    here, now = Thinning(), 0.0

    def recorded(count: int, seconds: float) -> int:
        nonlocal now
        known = 0
        for _ in range(count):
            now += seconds
            here.passed += 1
            if here.passed >= here.every:
                here.recorded(now)
                known += 1
        return known

    assert recorded(100, 0.01) == 100
    assert 1000 // worker_hooks.MOST <= recorded(1000, 20e-6) < 40
    assert recorded(100, 0.01) > 30  # they are slow again
    assert 2000 < recorded(10_000, 0.01) < 7000


@pytest.mark.parametrize("shape", [(8,), (8, 2)])
def test_samples_are_counted_by_shape(shape: tuple[int, ...]) -> None:
    numpy = pytest.importorskip("numpy")
    one = numpy.zeros(shape)
    assert recorders.counted_by_shape(one) is numpy.ndarray
    assert recorders.counted_by_shape(one.view(numpy.recarray)) is None
    assert recorders.counted_by_shape("text") is None


def test_bytes_of_batches() -> None:
    numpy = pytest.importorskip("numpy")
    one = numpy.zeros((4, 8), "float32")
    assert bytes_in(one) == 128
    assert bytes_in({"x": [one, one], "y": (one, "text", 3, b"1234")}) == 3 * 128 + 4
    assert bytes_in([[[[[[one]]]]]]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("engine", ["torch", "stoker"])
def test_workers_of_a_program_are_measured(tmp_path: Path, engine: Literal["torch", "stoker"], context: str) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text(
        dedent(
            """
            import sys, time
            from torch.utils.data import DataLoader, Dataset

            class Slow(Dataset):
                def __len__(self):
                    return 120

                def __getitem__(self, index):
                    time.sleep(0.001)
                    return index

            if __name__ == "__main__":
                for workers in (0, 2):
                    context = sys.argv[1] if workers else None
                    for batch in DataLoader(Slow(), 4, num_workers=workers, multiprocessing_context=context):
                        pass
            """
        )
    )
    run = ScriptRun(command_of(str(path), None, [context]), engine)
    assert run.run() == 0
    for loader in run.measurements.loaders:
        (works,) = loader.works
        assert len(works) >= 8 and all(work.seconds >= 0.004 for work in works)
        assert loader.summary().batches == 30 and len(loader.sizes) == 4
