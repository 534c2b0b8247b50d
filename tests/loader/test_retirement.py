"""Workers that are replaced before they do harm, and batches that the memory holds only one by one."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader, MemoryLimitError, StokerWarning
from stoker._engine import supervisor
from stoker.events import Event

N = 60
MIB = 1 << 20

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::stoker.StokerWarning")]


@pytest.fixture(params=["fork", "forkserver"])
def birth(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Run:
    """Epochs of a loader, and what was told of meanwhile."""

    def __init__(self, dataset: Any, birth: str | None = "fork", **settings: Any) -> None:
        self.events: list[Event] = []
        default: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "output": "numpy", "seed": 5}
        default |= {"multiprocessing_context": birth, "on_event": self.events.append}
        self.loader: Any = DataLoader(dataset, **default | settings)

    def batches(self) -> list[bytes]:
        return [b"".join(np.asarray(leaf).tobytes() for leaf in batch) for batch in self.loader]

    @property
    def told(self) -> list[str]:
        return [event.kind for event in self.events]


class Numbers(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return np.array([index, random.random(), np.random.rand()]), np.full(2_000, index)


def test_after_so_many_samples(birth: str) -> None:
    calm = Run(Numbers(), None, num_workers=0, shuffle=True).batches()
    run = Run(Numbers(), birth, shuffle=True, max_samples_per_worker=8)
    with pytest.warns(StokerWarning, match=r"worker [01] \(pid \d+\) is replaced between two batches: it has made"):
        assert run.batches() == calm
    assert set(run.told) == {"retired"}
    assert len(run.told) >= N // (8 + 2 * 4)  # it may have two units more in hand
    assert run.loader.report().event_counts == {"retired": len(run.told)}


def test_each_worker_retires_in_its_turn() -> None:
    class Pids(Numbers):
        def __getitem__(self, index: int) -> Any:
            return np.array(os.getpid())

    with Run(Pids(), persistent_workers=True, max_samples_per_worker=1, num_workers=3).loader as loader:
        pids = [int(pid) for _ in range(3) for batch in loader for pid in set(batch.tolist())]
    assert len(pids) == 3 * N // 4  # each batch was made by one worker
    assert all(pids.count(pid) <= 2 for pid in pids)


def test_workers_do_not_retire_by_default() -> None:
    run = Run(Numbers())
    run.batches()
    assert run.told == []


# Memory


class Leaks(stoker.Dataset[Any]):
    """Keeps 5 MiB of each sample. A sample is what the worker's memory has grown by."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._first: int | None = None

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        self._kept.append(np.ones(5 * MIB, np.uint8))
        resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        private = (resident - shared) * os.sysconf("SC_PAGE_SIZE")
        if self._first is None:
            self._first = private
        return np.array([index, private - self._first])


def test_a_leaky_dataset_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOOK", 0.0)  # at each answer
    run = Run(Leaks(), memory_budget=80 * MIB)
    with pytest.warns(StokerWarning, match=r"private memory has grown by \d+ MiB, and 20 are allowed"):
        samples = np.concatenate(list(run.loader))
    assert samples[:, 0].tolist() == list(range(N))
    assert set(run.told) == {"retired"}
    # What is allowed, two batches that it may have made by the first look, and two that it may have in hand by the last
    assert samples[:, 1].max() < (20 + (2 + 2) * 4 * 5 + 10) * MIB < N / 2 * 5 * MIB


def test_memory_inherited_at_birth_is_no_growth() -> None:
    class Holds(Numbers):
        def __init__(self) -> None:
            self._table = np.ones(100 * MIB, np.uint8)

        def __getitem__(self, index: int) -> Any:
            return self._table[index : index + 4].copy(), np.zeros(1)

    run = Run(Holds(), memory_budget=80 * MIB, persistent_workers=True)
    with run.loader:
        assert len(run.batches()) == len(run.batches()) == N / 4
    assert run.told == []


# Streams


class Shared(stoker.IterableDataset[Any]):
    """Shares itself out among the workers, and does not know where it stands."""

    def __iter__(self) -> Iterator[Any]:
        info = stoker.get_worker_info()
        assert info is not None
        for number in range(info.id, N, info.num_workers):
            yield np.array([number, random.random()])


class Keeping(stoker.IterableDataset[Any]):
    """And does."""

    def __init__(self) -> None:
        self._next: int | None = None

    def __iter__(self) -> Iterator[Any]:
        info = stoker.get_worker_info()
        assert info is not None
        if self._next is None:
            self._next = info.id
        while self._next < N:
            number, self._next = self._next, self._next + info.num_workers
            yield np.array([number, random.random()])

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


def test_worker_of_an_immovable_stream_retires_at_its_end() -> None:
    run = Run(Shared(), max_samples_per_worker=4)
    iterator, batches = iter(run.loader), []
    for batch in iterator:
        batches.append(batch.tobytes())
        assert "retired" not in run.told or len(batches) > N // 4 - 4
    assert batches == Run(Shared()).batches()
    stays = [event for event in run.events if event.kind == "retire_failed"]
    assert sorted(event.worker for event in stays) == [0, 1]  # type: ignore[type-var]
    assert "it has made 4 samples (max_samples_per_worker=4)" in stays[0].message
    assert "load_state_dict(state)" in stays[0].message


@pytest.mark.parametrize("kind", [Keeping, "plain"])
def test_a_stream_goes_on_where_it_stood(kind: Any, birth: str) -> None:
    class Plain(stoker.IterableDataset[Any]):
        """Is shared out by the loader, and read again."""

        def __iter__(self) -> Iterator[Any]:
            return iter([np.array([number, 0]) for number in range(N)])

    made = Plain if kind == "plain" else kind
    run = Run(made(), birth, max_samples_per_worker=8)
    assert run.batches() == Run(made(), birth).batches()
    assert set(run.told) == {"retired"} and len(run.told) >= 2


# A budget for batches


class Sized(stoker.Dataset[Any]):
    """Batch k, of one sample, has `sizes[k]` MiB."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> Any:
        return np.broadcast_to(np.full(1, index, np.uint8), (self._sizes[index] * MIB,))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_batch_that_is_too_large_is_refused_with_numbers(workers: int, birth: str) -> None:
    sizes = [2, 2, 30, 2, 2, 2]
    loader = Run(Sized(sizes), birth, batch_size=1, num_workers=workers, memory_budget=40 * MIB, timeout=60).loader
    iterator = iter(loader)
    seen = [int(next(iterator)[0, 0]) for _ in range(2)]
    told = r"a batch needs 3\d\.\d MiB, but of the 20\.0 MiB that memory_budget leaves for batches, other batches take"
    with pytest.raises(MemoryLimitError, match=told):
        next(iterator)
    seen += [int(batch[0, 0]) for batch in iterator]
    assert seen == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("size", [7, 15])
def test_batches_that_fit_one_by_one_are_all_delivered(workers: int, size: int) -> None:
    """Prefetching shrinks to the memory there is, and no batch is refused."""
    settings = {"batch_size": 1, "num_workers": workers, "prefetch_factor": 4, "memory_budget": 40 * MIB}
    run = Run(Sized([size] * 12), timeout=60, **settings)
    seen, arena = [], 0
    iterator = iter(run.loader)
    for batch in iterator:
        seen.append(int(batch[0, 0]))
        arena = max(arena, iterator._backend.memory()["batches"] if iterator._backend else 0)
        del batch
    assert seen == list(range(12)) and run.told == []
    assert arena <= 20 * MIB


def test_batches_of_a_growing_size_are_all_delivered() -> None:
    run = Run(Sized(list(range(1, 17))), batch_size=1, prefetch_factor=4, memory_budget=40 * MIB, timeout=60)
    assert [int(batch[0, 0]) for batch in run.loader] == list(range(16))


def test_kept_batches_are_copied_out_of_a_retiring_worker() -> None:
    run = Run(Sized([4] * 12), batch_size=1, memory_budget=40 * MIB, timeout=60)
    assert [int(batch[0, -1]) for batch in list(run.loader)] == list(range(12))
