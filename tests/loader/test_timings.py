"""The times of each batch, for a profiler: from every backend, on one clock, and only if they are asked for."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, Dataset, IterableDataset
from stoker._engine.timings import BatchTimings
from stoker.loader.record import record_of

BACKENDS = pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="serial"),
        pytest.param({"num_workers": 2, "worker_method": "thread"}, id="thread"),
        pytest.param(
            {"num_workers": 2},
            id="fork",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only"),
        ),
        pytest.param({"num_workers": 2, "multiprocessing_context": "spawn"}, id="spawn"),
    ],
)
SAMPLE = 0.002  # seconds
BATCH, BATCHES = 8, 4


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> Any:
        until = time.perf_counter() + SAMPLE
        while time.perf_counter() < until:
            pass
        return np.full(30_000, index, np.float32)


class SlowStream(IterableDataset[Any]):
    shards_itself = False

    def __iter__(self) -> Any:
        return (Slow()[index] for index in range(BATCH * BATCHES))


def timed(dataset: Any, **options: Any) -> tuple[list[BatchTimings], float, float]:
    """Returns the times of an epoch's batches, and when it began and ended."""
    loader = DataLoader(dataset, batch_size=BATCH, output="numpy", **options)
    found: list[BatchTimings] = []
    record_of(loader).timing_sink = found.append
    begun = time.perf_counter()
    for received, _ in enumerate(loader, 1):
        assert len(found) == received  # before the training loop has the batch
    return found, begun, time.perf_counter()


@BACKENDS
def test_every_batch_has_its_times(options: dict[str, Any]) -> None:
    found, begun, ended = timed(Slow(), **options)
    assert [(times.batch, times.samples, times.kind) for times in found] == [
        (batch, BATCH, "batch") for batch in range(BATCHES)
    ]
    last = begun
    for times in found:
        assert last <= times.asked <= times.asked + times.waited <= ended
        last = times.asked + times.waited
        assert times.made
        for made in times.made:
            assert begun <= made.begun <= made.ended <= last  # one clock in all processes
            assert made.worker < max(1, options.get("num_workers", 0))
            assert min(made.fetch, made.collate, made.write, made.wait) >= 0
            assert all(seconds >= SAMPLE for seconds in made.samples)
            assert sum(made.samples) <= made.fetch + made.wait
        assert sum(len(made.samples) for made in times.made) == BATCH  # also if several workers made it
    waits = any(made.wait for times in found for made in times.made)
    assert waits == (options.get("worker_method", "process") == "process" and "num_workers" in options)  # for slots


@BACKENDS
def test_the_batches_of_a_stream_have_times(options: dict[str, Any]) -> None:
    found, _, _ = timed(SlowStream(), **options)
    assert sum(times.samples for times in found) == BATCH * BATCHES
    assert all(made.fetch >= SAMPLE for times in found for made in times.made)
    assert all(len(times.made) == 1 for times in found)


class Breaks(Slow):
    def __getitem__(self, index: int) -> Any:
        if index == BATCH:
            raise ValueError("broken")
        return super().__getitem__(index)


@BACKENDS
def test_a_failed_batch_has_times(options: dict[str, Any]) -> None:
    loader = DataLoader(Breaks(), batch_size=BATCH, output="numpy", **options)
    found: list[BatchTimings] = []
    record_of(loader).timing_sink = found.append
    with loader, pytest.raises(ValueError, match="broken"):
        for _ in loader:
            pass
    assert [times.kind for times in found] == ["batch", "error"] and found[1].made


def collate_slowly(samples: list[Any]) -> Any:
    time.sleep(0.02)
    return np.stack(samples)


@BACKENDS
def test_collation_is_told_apart_from_fetching(options: dict[str, Any]) -> None:
    found, _, _ = timed(Slow(), collate_fn=collate_slowly, **options)
    for times in found:
        (made,) = times.made
        assert made.collate >= 0.02 and made.fetch >= BATCH * SAMPLE


@BACKENDS
def test_batches_and_order_are_the_same_with_timings(options: dict[str, Any]) -> None:
    def values(sink: Any) -> list[float]:
        loader = DataLoader(Slow(), batch_size=BATCH, shuffle=True, seed=5, output="numpy", **options)
        record_of(loader).timing_sink = sink
        return [float(value) for batch in loader for value in batch[:, 0]]

    assert values(None) == values(lambda times: None)


@BACKENDS
def test_nothing_is_measured_unless_it_is_asked_for(options: dict[str, Any]) -> None:
    loader = DataLoader(Slow(), batch_size=BATCH, output="numpy", **options)
    iterator = iter(loader)
    found: list[BatchTimings] = []
    record_of(loader).timing_sink = found.append  # too late for the workers
    with iterator:
        next(iterator)
    assert found[0].made == ()
