"""Random numbers are drawn when torch's loader draws them; states are exact at the boundaries without `seed=`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.data

import stoker

N, BATCH = 22, 3


class Squares(torch.utils.data.Dataset[int]):
    """Draws nothing."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index * index


class Stream(torch.utils.data.IterableDataset[int]):
    shards_itself = True

    """Draws nothing, and shares itself out."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, N, step))


class Eager(torch.utils.data.Sampler[int]):
    """Draws in `iter()`, from the global generator."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N).tolist())

    def __len__(self) -> int:
        return N


class Lazy(Eager):
    """Draws each index when it is asked for, and counts them."""

    walked = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            self.walked += 1
            yield int(torch.randint(N, ()))


Kind = tuple[Callable[[Any], dict[str, Any]], bool]

KINDS: dict[str, Kind] = {
    "in_order": (lambda g: {}, True),
    "shuffled": (lambda g: {"shuffle": True}, False),
    "torchs_random": (lambda g: {"sampler": torch.utils.data.RandomSampler(range(N))}, True),
    "torchs_random_own": (lambda g: {"sampler": torch.utils.data.RandomSampler(range(N), generator=g)}, True),
    "with_replacement": (
        lambda g: {"sampler": torch.utils.data.RandomSampler(range(N), True, 70, generator=g)},
        True,
    ),
    "weighted": (lambda g: {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * N, N, generator=g)}, True),
    "distributed": (lambda g: {"sampler": torch.utils.data.DistributedSampler(Squares(), 2, 0)}, False),
    "eager": (lambda g: {"sampler": Eager()}, True),
    "eager_batches": (
        lambda g: {"batch_sampler": _EagerBatches(), "batch_size": 1},
        True,
    ),
    "lazy": (lambda g: {"sampler": Lazy()}, True),
    "unbatched": (lambda g: {"sampler": Eager(), "batch_size": None}, True),
    "stream": (lambda g: {"dataset": Stream()}, True),
}
"""Settings by name, and whether the batches are torch's."""


class _EagerBatches(torch.utils.data.Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(20).reshape(5, 4).tolist())

    def __len__(self) -> int:
        return 5


WORKERS: list[tuple[int, bool]] = [(0, False), (1, False), (2, False), (2, True)]


def made(kind: str, workers: int, persistent: bool, generator: Any, ours: bool = True) -> Any:
    module: Any = stoker if ours else torch.utils.data
    how = {"dataset": Squares(), "batch_size": BATCH, **KINDS[kind][0](generator)}
    how |= {"num_workers": workers, "persistent_workers": persistent, "generator": generator}
    return module.DataLoader(**how)


def steps(loader: Any, generator: Any, epochs: int) -> Iterator[tuple[str, Any, bytes, bytes | None]]:
    """What each step gives, and how the generators stand behind it."""

    def stands() -> tuple[bytes, bytes | None]:
        own = None if generator is None else generator.get_state().numpy().tobytes()
        return torch.get_rng_state().numpy().tobytes(), own

    for number in range(epochs):
        iterator = iter(loader)
        yield f"iter {number}", None, *stands()
        for count in itertools.count():
            batch = next(iterator, None)
            yield f"next {number}.{count}", None if batch is None else torch.as_tensor(batch).tolist(), *stands()
            if batch is None:
                break


@pytest.mark.parametrize("own", [False, True], ids=["global", "generator"])
@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_generators_stand_where_torch_leaves_them(kind: str, workers: int, persistent: bool, own: bool) -> None:
    if kind == "shuffled" and own:
        pytest.skip("one number is drawn where torch draws the whole order")
    told = []
    for ours in (True, False):
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(6) if own else None
        told.append(list(steps(made(kind, workers, persistent, generator, ours), generator, 3)))
    for mine, torchs in zip(*told, strict=True):
        assert mine[0] == torchs[0]
        assert mine[2:] == torchs[2:], mine[0]
        assert not KINDS[kind][1] or mine[1] == torchs[1], mine[0]


@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
def test_a_sampler_is_walked_as_far_as_torch_walks_it(workers: int, persistent: bool) -> None:
    walked: list[list[int]] = [[], []]
    for ours, counts in zip((True, False), walked, strict=True):
        loader = made("lazy", workers, persistent, None, ours)
        for _ in steps(loader, None, 2):
            counts.append(loader.sampler.walked)
    assert walked[0] == walked[1]


DRAWS_ITSELF = ("torchs_random", "torchs_random_own", "with_replacement", "weighted", "eager", "eager_batches", "lazy")
"""Kinds whose samplers draw, so that the user's generator has to be restored."""


class Noise(Squares):
    """What the samples draw shows the epoch's seed."""

    def __getitem__(self, index: int) -> Any:
        return index, int(torch.randint(1 << 40, ()))


class NoisyStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        return ((index, int(torch.randint(1 << 40, ()))) for index in super().__iter__())


def noisy(kind: str, workers: int, persistent: bool, generator: Any) -> Any:
    how = {"batch_size": BATCH, **KINDS[kind][0](generator)}
    how |= {"dataset": NoisyStream() if kind == "stream" else Noise()}
    return stoker.DataLoader(
        **how, num_workers=workers, persistent_workers=persistent and workers > 0, generator=generator, shard="auto"
    )


def rest(iterator: Iterator[Any]) -> list[Any]:
    return [torch.stack([torch.as_tensor(value) for value in batch]).tolist() for batch in iterator]


BOUNDARIES = ("between", "begun", "middle", "last", "ended")


def stop_at(loader: Any, where: str) -> Iterator[Any]:
    """Brings a loader to a place in its second epoch; returns what it goes on with."""
    rest(iter(loader))
    if where == "between":
        return iter(())
    iterator = iter(loader)
    if where == "middle":
        next(iterator), next(iterator), next(iterator)
    elif where == "last":
        for _ in range(len(loader) if hasattr(loader.dataset, "__len__") else -(-N // BATCH)):
            next(iterator)
    elif where == "ended":
        rest(iterator)
    return iterator


@pytest.mark.filterwarnings("ignore:.*read .* samples again:stoker.errors.StokerWarning")
@pytest.mark.parametrize("own", [False, True], ids=["global", "generator"])
@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "batches" not in kind and kind != "unbatched"])
def test_a_loaded_state_goes_on_as_the_first_loader(kind: str, workers: int, persistent: bool, own: bool) -> None:
    for where in BOUNDARIES:
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(6) if own else None
        loader = noisy(kind, workers, persistent, generator)
        iterator = stop_at(loader, where)
        before = torch.get_rng_state(), None if generator is None else generator.get_state()
        state = loader.state_dict()
        assert loader.state_dict() == state
        assert torch.equal(torch.get_rng_state(), before[0])
        assert generator is None or torch.equal(generator.get_state(), before[1])
        torch.rand(5)  # of the training
        expected = rest(iter(loader) if where in ("between", "ended") else iterator)
        loader.close()
        generator = torch.Generator().manual_seed(78) if own else None
        torch.manual_seed(77)
        other = noisy(kind, workers if kind == "stream" else 2 - workers, persistent, generator)
        other.load_state_dict(state)
        if kind in DRAWS_ITSELF:
            torch.set_rng_state(before[0])
            torch.rand(5)
            if generator is not None:
                generator.set_state(before[1])
        found = rest(iter(other))
        other.close()
        assert found == expected or (kind == "lazy" and where != "between"), where


class Counting(stoker.IterableDataset[int]):
    """Counts its epochs, and says so."""

    def __init__(self) -> None:
        self.epoch = self.at = self.loaded = 0

    def __iter__(self) -> Iterator[int]:
        start, self.loaded = self.loaded, 0
        for self.at in range(start + 1, 7):
            yield 100 * self.epoch + self.at
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.loaded = state["passes"], state["at"]
        if self.loaded == 6:
            self.epoch -= 1  # what is left of it is nothing


@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
@pytest.mark.parametrize("seed", [None, 3])
def test_datasets_go_on_from_an_epochs_end(workers: int, persistent: bool, seed: int | None) -> None:
    def loader_() -> Any:
        how = {"num_workers": workers, "persistent_workers": persistent, "seed": seed}
        return stoker.DataLoader(Counting(), 2, shard="none", **how)

    def numbers(loader: Any) -> list[Any]:
        return [batch.tolist() for batch in loader]

    first, other = loader_(), loader_()
    numbers(first), numbers(first)
    other.load_state_dict(first.state_dict())
    assert numbers(first) == numbers(other)
    assert numbers(first) == numbers(other)
    first.close(), other.close()


def test_a_seed_counts_for_all_epochs_behind_a_loaded_state() -> None:
    def loader() -> Any:
        return stoker.DataLoader(Squares(), 5, shuffle=True, seed=3, num_workers=1, persistent_workers=True)

    first, other = loader(), loader()
    other.load_state_dict(stop_and_save(first))
    with first, other:
        list(other)
        assert [batch.tolist() for batch in first] == [batch.tolist() for batch in other]


def stop_and_save(loader: Any) -> Any:
    next(iter(loader))
    return loader.state_dict()
