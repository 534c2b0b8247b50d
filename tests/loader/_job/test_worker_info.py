"""`get_worker_info()`, ours and torch's, in every place where a user can ask."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import stoker

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:The loader guesses that"),
]

BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "thread": {"num_workers": 2, "worker_method": "thread"},
    "multiprocessing": {"num_workers": 2, "multiprocessing_context": "fork"},
}
ALL = pytest.mark.parametrize("method", BACKENDS)


class Asking:
    """Samples are what the worker knows about itself."""

    def __init__(self, ask: Any = stoker.get_worker_info) -> None:
        self.ask = ask

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        info = self.ask()
        if info is None:
            return None
        return {
            "id": info.id,
            "num_workers": info.num_workers,
            "seed": info.seed,
            "is_ours": info.dataset is self,
            "worker_method": info.worker_method,
            "rng": [type(generator).__name__ for generator in (info.rng.random_generator, info.rng.numpy_generator)],
        }


def epoch(dataset: Any, method: str, **settings: Any) -> list[Any]:
    return [batch[0] for batch in stoker.DataLoader(dataset, collate_fn=list, **BACKENDS[method], **settings)]


@pytest.mark.parametrize("method", ["thread", "multiprocessing"])
def test_worker_info_is_set_in_a_sample(method: str) -> None:
    told = epoch(Asking(), method, seed=1)
    assert {info["id"] for info in told} <= {0, 1}
    assert {info["num_workers"] for info in told} == {2}
    assert len({info["seed"] - info["id"] for info in told}) == 1
    assert all(info["is_ours"] for info in told)
    assert {info["worker_method"] for info in told} == {method}
    assert told[0]["rng"] == ["Random", "Generator"]


@ALL
def test_the_trainer_is_no_worker(method: str) -> None:
    assert stoker.get_worker_info() is None
    for _ in stoker.DataLoader(range(4), **BACKENDS[method]):
        assert stoker.get_worker_info() is None
    with pytest.raises(ValueError):
        list(stoker.DataLoader(_Raises(), **BACKENDS[method]))
    assert stoker.get_worker_info() is None


class _Raises:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        raise ValueError


class InThread(Asking):
    """Asks in a thread that it starts."""

    def __getitem__(self, index: int) -> Any:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(super().__getitem__, index).result()


@pytest.mark.parametrize("settings", [{}, {"threads_per_worker": 2}], ids=str)
def test_worker_info_is_set_in_threads_of_a_worker(settings: dict[str, Any]) -> None:
    told = epoch(InThread(), "multiprocessing", **settings)
    assert {info["worker_method"] for info in told} == {"multiprocessing"}
    assert all(info["is_ours"] for info in told)
    assert epoch(InThread(), "thread") == [None] * 6  # in the trainer a thread belongs to no worker
    assert stoker.get_worker_info() is None


@ALL
def test_torchs_function_gives_the_same(method: str) -> None:
    """But not in the trainer's own process, where it is None as ever; also once worker threads have connected it."""
    torch = pytest.importorskip("torch")
    ask = torch.utils.data.get_worker_info
    list(stoker.DataLoader(range(2), num_workers=1, worker_method="thread"))
    told = epoch(Asking(ask), method)
    if method == "serial":
        assert told == [None] * 6
    else:
        assert {info["worker_method"] for info in told} == {method}
    assert ask() is None


def test_worker_info_in_torchs_workers_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    list(stoker.DataLoader(range(2), num_workers=1, worker_method="thread"))
    told = next(iter(torch.utils.data.DataLoader(_Kind(), collate_fn=list, num_workers=1)))
    assert told == ["torch.utils.data._utils.worker"] * 2  # and so does ours, because frameworks put theirs in place


class _Kind:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        import torch

        info = torch.utils.data.get_worker_info() if index == 0 else stoker.get_worker_info()
        return None if info is None else type(info).__module__

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[0], self[1]]


@pytest.mark.parametrize("method", ["thread", "multiprocessing"])
def test_worker_info_is_set_in_init_collator_and_stream(method: str) -> None:
    seen = threading.local()

    def init(worker: int) -> None:
        info = stoker.get_worker_info()
        assert info is not None
        assert info.id == worker
        assert info.dataset.number == 0
        seen.info = info

    def collate(samples: list[Any]) -> list[Any]:
        info = stoker.get_worker_info()
        assert info is not None
        assert info is seen.info
        return [(info.id, *samples)]

    loader = stoker.DataLoader(_Stream(), worker_init_fn=init, collate_fn=collate, **BACKENDS[method])
    assert [batch[0] for batch in loader] == [(0, 0), (1, 1), (0, 0), (1, 1)]


class _Stream(stoker.IterableDataset[int]):
    number = 0

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        assert info is not None
        return iter([info.id] * 2)


def test_each_thread_configures_a_stream_of_its_own() -> None:
    def init(worker: int) -> None:
        info = stoker.get_worker_info()
        assert info is not None
        info.dataset.number = worker + 1

    dataset = _Stream()
    list(stoker.DataLoader(dataset, worker_init_fn=init, collate_fn=list, **BACKENDS["thread"]))
    assert dataset.number == 0


def test_worker_info_is_none_without_workers() -> None:
    torch = pytest.importorskip("torch")
    assert epoch(Asking(), "serial") == list(torch.utils.data.DataLoader(Asking(), None)) == [None] * 6
    for ask in (stoker.get_worker_info, torch.utils.data.get_worker_info):
        assert flat(stoker.DataLoader(Halves(ask), None)) == flat(torch.utils.data.DataLoader(Halves(ask), None))


def flat(loader: Any) -> list[Any]:
    return [int(sample) for sample in loader]


class Halves(stoker.IterableDataset[int]):
    """A training script's: its trainer reads one half, and its workers the other."""

    def __init__(self, ask: Any) -> None:
        self.ask = ask

    def __iter__(self) -> Iterator[int]:
        return iter(range(4) if self.ask() is None else range(4, 8))


@pytest.mark.parametrize("method", ["thread", "multiprocessing"])
def test_loader_without_workers_in_a_worker_sees_that_worker(method: str) -> None:
    torch = pytest.importorskip("torch")

    class Nests(Asking):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getitem__(self, index: int) -> Any:
            before = stoker.get_worker_info()
            assert before is not None
            seen = [info["id"] for info in self.inner(Asking(), None)]
            assert stoker.get_worker_info() is before
            return seen == [before.id] * 6

    for inner in (stoker.DataLoader, torch.utils.data.DataLoader):
        assert epoch(Nests(inner), method) == [True] * 6


def test_seeds_are_torchs_in_worker_mode() -> None:
    """`seeding="worker"`: global generators start as in torch's workers, from the worker's seed."""
    torch = pytest.importorskip("torch")

    class Draws(Asking):
        def __getitem__(self, index: int) -> Any:
            info = stoker.get_worker_info()
            assert info is not None
            return info.seed, torch.initial_seed(), float(torch.rand(())), float(np.random.rand())

    told = epoch(Draws(), "multiprocessing", seeding="worker", worker_init_fn=lambda worker: None)
    for seed, initial, drawn, _ in told[:2]:
        assert seed == initial
        assert drawn == float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
    assert len({numbers[2:] for numbers in told}) == 6
