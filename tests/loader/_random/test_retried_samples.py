"""Samples that failed and were fetched again draw the same random numbers as if they had not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, Dataset, RetryDataset, sample_rng
from stoker.datasets.stream import State, Stream, StreamIterator


class Augmented(Dataset[tuple[Any, ...]]):
    """Draws from every generator, before and after it fails."""

    def __init__(self, failures: dict[int, int]) -> None:
        self.failures = failures

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        drawn = (random.random(), np.random.random(), sample_rng().numpy_generator.random())
        if self.failures.get(index, 0):
            self.failures[index] -= 1
            raise ConnectionResetError(f"sample {index}")
        return (index, *drawn, random.random(), sample_rng().random_generator.random())


class AugmentedStream(Stream[tuple[Any, ...]]):
    def __init__(self, failures: dict[int, int]) -> None:
        self.inner = Augmented(failures)

    def _begin(self, state: State | None) -> StreamIterator[tuple[Any, ...]]:
        return AugmentedIterator(self.inner, 0 if state is None else state["at"])


class AugmentedIterator(StreamIterator[tuple[Any, ...]]):
    def __init__(self, inner: Augmented, at: int) -> None:
        self._inner = inner
        self._at = at

    def __next__(self) -> tuple[Any, ...]:
        if self._at >= len(self._inner):
            raise StopIteration
        self._at += 1
        return self._inner[self._at - 1]

    def state_dict(self) -> State:
        return {"at": self._at}


def delivered(dataset: Any, **arguments: Any) -> list[Any]:
    with DataLoader(dataset, batch_size=4, seed=5, output="numpy", **arguments) as loader:
        return [tuple(row) for batch in loader for row in zip(*(column.tolist() for column in batch), strict=True)]


FAILURES = {2: 1, 9: 2, 20: 1, 21: 3}


@pytest.mark.filterwarnings("ignore:Samples drew from random generators that all threads")
@pytest.mark.parametrize("seeding", ["auto", "sample"])
@pytest.mark.parametrize(
    "workers",
    [
        {},
        {"num_workers": 2, "multiprocessing_context": "fork"},
        {"num_workers": 2, "worker_method": "thread", "seeding": "worker"},
        {"num_workers": 1, "threads_per_worker": 2, "multiprocessing_context": "fork"},
    ],
    ids=["none", "fork", "thread", "threads"],
)
def test_failures_change_no_random_number(workers: dict[str, Any], seeding: str) -> None:
    arguments: dict[str, Any] = {"shuffle": True, "seeding": seeding, **workers}
    columns = slice(None) if "thread" not in str(workers) else slice(3, 4)  # threads share the global generators
    expected = [row[columns] for row in delivered(RetryDataset(Augmented({}), wait=0), **arguments)]
    found = [row[columns] for row in delivered(RetryDataset(Augmented({**FAILURES}), wait=0), **arguments)]
    assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*share its samples out")
def test_failures_of_a_stream_change_no_random_number(workers: int) -> None:
    expected = delivered(RetryDataset(AugmentedStream({}), wait=0), num_workers=workers)
    assert len(expected) == 40
    assert delivered(RetryDataset(AugmentedStream({**FAILURES}), wait=0), num_workers=workers) == expected
