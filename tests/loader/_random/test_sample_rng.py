from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.loader._random.sample_rng import SampleRNG


def test_sample_rng_has_torchs_fields() -> None:
    rng = SampleRNG(3)
    assert type(rng.random_generator) is random.Random
    assert type(rng.numpy_generator) is np.random.Generator
    assert rng.random_generator is rng.random_generator
    torch = pytest.importorskip("torch")
    assert type(rng.torch_generator) is torch.Generator


def test_sample_rng_has_no_torch_generator_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    assert SampleRNG(3).torch_generator is None


def test_before_any_sample_the_workers_seed_counts() -> None:
    assert SampleRNG(3).random_generator.random() == SampleRNG(3).random_generator.random()
    assert SampleRNG(3).random_generator.random() != SampleRNG(4).random_generator.random()


def test_nothing_is_made_before_it_is_asked_for() -> None:
    rng = SampleRNG(3)
    assert rng.streams == []
    rng.numpy_generator.random()
    assert len(rng.streams) == 1


# `sample_rng()`

WORKERS: dict[str, dict[str, Any]] = {
    "serial": {},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "processes": {"num_workers": 2, "multiprocessing_context": "fork"},
    "processes with threads": {"num_workers": 2, "multiprocessing_context": "fork", "threads_per_worker": 3},
}


def drawn(rng: Any) -> list[float]:
    numbers = [rng.random_generator.random(), float(rng.numpy_generator.random())]
    if (torch := sys.modules.get("torch")) is not None:
        numbers.append(float(torch.rand((), generator=rng.torch_generator)))
    return numbers


class Draws(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, *drawn(stoker.sample_rng()), *drawn(stoker.sample_rng())


def samples(dataset: Any, **settings: Any) -> list[Any]:
    settings = {"collate_fn": list, "seed": 2, **settings}
    with stoker.DataLoader(dataset, 2, **settings) as loader:
        return [sample for batch in loader for sample in batch]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU
@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_sample_rng_gives_the_same_numbers_on_each_backend(workers: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    told = samples(Draws(), shuffle=True, **workers)
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]
    assert told == samples(Draws(), shuffle=True)
    assert len({number for _, *numbers in told for number in numbers}) == 12 * 6


class Compares(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        info = stoker.get_worker_info()
        return info is not None and info.rng is stoker.sample_rng()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [*WORKERS][1:])
def test_in_a_worker_sample_rng_is_the_rng_of_its_info(workers: str) -> None:
    assert all(samples(Compares(), **WORKERS[workers]))


def test_torchs_thread_safe_generator_is_the_samples() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.random, "thread_safe_generator"):
        pytest.skip("torch has it from 2.13 on")

    class ThreadSafe(Draws):
        def __getitem__(self, index: int) -> Any:
            return index, float(torch.rand((), generator=torch.random.thread_safe_generator()))

    class Own(Draws):
        def __getitem__(self, index: int) -> Any:
            return index, float(torch.rand((), generator=stoker.sample_rng().torch_generator))

    assert samples(ThreadSafe(), **WORKERS["threads"]) == samples(Own())


@pytest.mark.parametrize("method", ["thread", "process"])
def test_a_nested_loader_seeds_sample_rng_for_its_own_samples(method: str) -> None:
    class Nests(Draws):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            first = stoker.sample_rng()
            inner = samples(Draws())
            return first is stoker.sample_rng(), inner

    expected = samples(Draws())
    assert samples(Nests()) == samples(Nests(), num_workers=1, worker_method=method) == [(True, expected)] * 2


def test_sample_rng_is_given_back_after_an_error() -> None:
    class Raises(Draws):
        def __getitem__(self, index: int) -> Any:
            raise ValueError

    for raises in (ValueError, KeyboardInterrupt, SystemExit):
        Raises.__getitem__ = lambda self, index, raises=raises: (_ for _ in ()).throw(raises)  # type: ignore[method-assign,misc]
        with pytest.raises(raises):
            samples(Raises())
        assert type(stoker.sample_rng()) is not SampleRNG


def test_sample_rng_outside_a_fetch_is_seeded_globally() -> None:
    torch = pytest.importorskip("torch")

    def seeded() -> list[float]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        rng = stoker.sample_rng()
        random.seed(2)
        np.random.seed(2)
        torch.manual_seed(2)
        return drawn(rng)

    first = seeded()
    assert first == seeded()
    assert drawn(stoker.sample_rng()) != first
    rng = stoker.sample_rng()
    assert len({*drawn(rng), *drawn(rng), *drawn(stoker.sample_rng())}) == 9
    for reseed in (random.seed, np.random.seed, torch.manual_seed):  # each from the global one of its kind
        reseed(5)
        one = drawn(stoker.sample_rng())
        reseed(5)
        assert sum(a == b for a, b in zip(one, drawn(stoker.sample_rng()), strict=True)) == 1


def test_under_torchs_loader_sample_rng_follows_from_its_seed() -> None:
    torch = pytest.importorskip("torch")

    def epoch(workers: int) -> list[Any]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        return list(torch.utils.data.DataLoader(Draws(), None, num_workers=workers))

    for workers in (0, 2):
        told = epoch(workers)
        assert told == epoch(workers)
        assert len({number for _, *numbers in told for number in numbers}) == 12 * 6


def test_sample_rng_does_not_ask_which_worker_it_is() -> None:
    class Rolls(stoker.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return ((number, *drawn(stoker.sample_rng())) for number in range(8))

    with pytest.warns(stoker.StokerWarning, match="Rolls does not share its samples out"):
        told = samples(Rolls(), num_workers=2, worker_method="thread")
    assert sorted(told) == samples(Rolls())
