from __future__ import annotations

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import numpy as np
import pytest

from stoker import DataLoader
from stoker._core.worker_info import WorkerInfo, current
from stoker.datasets import rate_limit
from stoker.datasets.base import is_stream
from stoker.datasets.rate_limit import RateLimitDataset
from stoker.datasets.retry import RetryDataset
from stoker.datasets.stack import TensorDataset
from stoker.testing.gather import GatherSuite
from stoker.testing.streams import SOURCES, Numbers, StreamSuite


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rate_limit, "monotonic", lambda: clock.now)
    monkeypatch.setattr(rate_limit, "sleep", clock.sleep)
    return clock


@pytest.mark.parametrize(
    "make", [*(lambda kind=kind: RateLimitDataset(kind(6), 1e9) for kind in SOURCES.values())], ids=[*SOURCES]
)
class TestRateLimitStreams(StreamSuite):
    pass


@pytest.mark.parametrize("dataset", [RateLimitDataset(TensorDataset(np.arange(12.0).reshape(4, 3)), 1e9)])
class TestRateLimitGathers(GatherSuite):
    pass


def test_samples_are_evenly_spaced(clock: Clock) -> None:
    dataset: Any = RateLimitDataset(range(100), 4)
    assert [dataset[index] for index in range(9)] == list(range(9))
    assert clock.waits == [0.25] * 8
    clock.now += 0.1  # the time that a sample takes counts
    dataset[0]
    assert clock.waits[8:] == [pytest.approx(0.15)]
    clock.now += 1000  # a pause is not made up for
    dataset[0]
    dataset[1]
    assert clock.waits[9:] == [0.25]


def test_less_than_one_in_a_second(clock: Clock) -> None:
    dataset: Any = RateLimitDataset(range(100), 0.1)
    dataset[0]
    dataset[-1]
    assert clock.waits == [10]


def test_a_batch_counts_its_samples(clock: Clock) -> None:
    class Batched(list[int]):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [self[index] for index in indices]

    dataset: Any = RateLimitDataset(Batched(range(100)), 10)
    assert dataset.__getitems__([5, 6, 7, 8, 9]) == [5, 6, 7, 8, 9]
    assert dataset[0] == 0
    assert clock.waits == [0.5]
    assert not hasattr(RateLimitDataset(range(3), 1), "__getitems__")


def test_gathered_rows_count(clock: Clock) -> None:
    dataset: Any = RateLimitDataset(TensorDataset(np.arange(50)), 10)
    out = [np.zeros(20, np.int64)]
    for _ in range(2):
        dataset.gather(np.arange(20), out)
    assert clock.waits == [2] and out[0].tolist() == list(range(20))


def test_streams_are_limited(clock: Clock) -> None:
    assert list(RateLimitDataset(Numbers(5), 2)) == list(range(5))  # type: ignore[call-overload]
    assert clock.waits == [0.5] * 5  # the end, too, is asked for


def test_attempts_count(clock: Clock) -> None:
    class Flaky(list[int]):
        failures = 3

        def __getitem__(self, index: Any) -> Any:
            self.failures -= 1
            if self.failures >= 0:
                raise ConnectionResetError
            return super().__getitem__(index)

    assert RetryDataset(RateLimitDataset(Flaky(range(3)), 10), wait=0)[1] == 1
    assert clock.waits == [pytest.approx(0.1)] * 3


@pytest.mark.parametrize("worker", [0, 1, 3])
def test_each_worker_has_its_share(worker: int, clock: Clock) -> None:
    dataset: Any = RateLimitDataset(range(100), 8)

    def read() -> None:
        current.becomes(WorkerInfo(worker, 4, 0, dataset))
        for index in range(3):
            dataset[index]

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert clock.waits == [*([worker / 8] if worker else []), 0.5, 0.5]


def test_threads_share_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of all threads together are those of one: they are planned under a lock."""
    waits: list[float] = []
    monkeypatch.setattr(rate_limit, "monotonic", lambda: 100.0)
    monkeypatch.setattr(rate_limit, "sleep", waits.append)
    dataset: Any = RateLimitDataset(range(1000), 10)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(dataset.__getitem__, range(200))) == list(range(200))
    assert sorted(waits) == pytest.approx([number / 10 for number in range(1, 200)])


@pytest.mark.parametrize(
    "workers",
    [
        {},
        {"num_workers": 2, "multiprocessing_context": "fork"},
        {"num_workers": 2, "multiprocessing_context": "spawn"},
        {"num_workers": 2, "worker_method": "thread"},
    ],
    ids=["none", "fork", "spawn", "thread"],
)
def test_a_loader_keeps_the_rate(workers: dict[str, Any]) -> None:
    dataset = RateLimitDataset(range(60), 200)
    began = time.monotonic()
    with DataLoader(dataset, batch_size=4, shuffle=True, seed=1, output="numpy", **workers) as loader:
        found = [number for batch in loader for number in batch.tolist()]
    assert time.monotonic() - began > 0.28  # one of two workers makes at least 30, at 100/s
    assert sorted(found) == list(range(60))


@pytest.mark.parametrize("source", [[1, 2], Numbers(1, 3)], ids=["index", "stream"])
def test_copies_and_pickles_stay_what_they_are(source: Any, clock: Clock) -> None:
    dataset: Any = RateLimitDataset(source, 5)
    if not is_stream(dataset):
        assert dataset[0] == 1
    for twin in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(cloudpickle.dumps(dataset))):
        assert type(twin) is type(dataset) and twin.per_second == 5
        assert len(twin) == 2
        assert (list(twin) if is_stream(twin) else [twin[0], twin[1]]) == [1, 2]


def test_descriptions_epochs_and_shards_are_passed_on() -> None:
    source = Numbers(7, num_shards=3)
    dataset: Any = RateLimitDataset(source, 1e9)
    dataset.set_epoch(4)
    assert source.epoch == 4
    assert (dataset.num_shards, list(dataset.shard(num_shards=3, index=1))) == (3, [1, 4])
    assert dataset.shard(num_shards=3, index=1).per_second == 1e9
    assert RateLimitDataset([1], 1).describe(0) is None


@pytest.mark.parametrize(
    ("per_second", "error"),
    [(0, ValueError), (-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (True, TypeError)],
)
def test_bad_rates_are_refused(per_second: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="per_second is"):
        RateLimitDataset([1], per_second)
    with pytest.raises(TypeError, match="which is not a dataset"):
        RateLimitDataset(iter([1]), 1)
