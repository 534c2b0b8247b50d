"""Samples that draw random numbers below streams that hold samples: resumed, or after a death, they draw the same."""

from __future__ import annotations

import itertools
import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader, FilterDataset, MapDataset, ShuffleDataset, WindowDataset

LENGTH = 60


class Numbers(stoker.IterableDataset[int]):
    """Knows where it stands."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return Reader(self.length)


class Reader:
    def __init__(self, length: int) -> None:
        self.at, self.length = -1, length

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at >= self.length:
            raise StopIteration
        return self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Generated(Numbers):
    """Does not."""

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


def drawn(number: int) -> tuple[int, float]:
    return number, random.random()


def drawn_often(number: int) -> tuple[int, float]:
    """More or fewer numbers, of several generators."""
    own = stoker.sample_rng().random_generator.random()
    return number, own + sum(random.random() for _ in range(number % 3)) + float(np.random.rand())


def drawn_late(number: int) -> tuple[int, float]:
    """Most draw nothing, and none of the first do."""
    return number, random.random() if number % 7 == 6 and number > LENGTH // 3 else 0.0


def is_kept(sample: Any) -> bool:
    return hash(str(sample)) is not None and sample[0] % 3 != 1


def document(sample: tuple[int, float]) -> list[int]:
    number, value = sample
    return [number, int(1e6 * value)] * (1 + number % 3)


def packed(source: Any, _: Path) -> Any:
    rows = stoker.PackDataset(MapDataset(source, document), 8, window=6)
    return MapDataset(rows, lambda row: tuple(row["tokens"].tolist()))


def own(sample: tuple[int, float]) -> tuple[int, float, float]:
    """Draws above what others have drawn."""
    return (*sample, random.random())


def view_of(sample: tuple[int, float], view: int) -> tuple[int, float, float]:
    return (*sample, view + random.random())


HOLDERS: dict[str, Callable[[Any, Path], Any]] = {
    "shuffle": lambda source, _: ShuffleDataset(source, 6),
    "shuffle, drawn above as well": lambda source, _: MapDataset(ShuffleDataset(source, 6), own),
    "shuffle of a shuffle": lambda source, _: ShuffleDataset(ShuffleDataset(source, 5, seed=1), 9),
    "filter above": lambda source, _: FilterDataset(ShuffleDataset(source, 6), is_kept),
    "filter below": lambda source, _: ShuffleDataset(FilterDataset(source, is_kept), 6),
    "windows": lambda source, _: MapDataset(WindowDataset(source, 5, 2), tuple),
    "windows apart": lambda source, _: MapDataset(WindowDataset(source, 2, 5), tuple),
    "windows, shuffled": lambda source, _: MapDataset(ShuffleDataset(WindowDataset(source, 4, 2), 3), tuple),
    "windows of what is shuffled": lambda source, _: MapDataset(WindowDataset(ShuffleDataset(source, 5), 4, 3), tuple),
    "views": lambda source, _: stoker.ViewsDataset(source, 2, view_of),
    "packed": packed,
    "cached": lambda source, folder: stoker.CacheDataset(source, folder=folder, key="k"),
    "mix": lambda source, _: stoker.MixDataset(
        [ShuffleDataset(source, 6), MapDataset(WindowDataset(MapDataset(Numbers(40), drawn), 3), tuple)], [2, 1]
    ),
    "chain": lambda source, _: stoker.ChainDataset(
        [ShuffleDataset(source, 6), ShuffleDataset(MapDataset(Generated(30), drawn), 4)]
    ),
}
DRAWS: dict[str, Callable[[int], Any]] = {"once": drawn, "often": drawn_often, "late": drawn_late}


def made(holder: str, source: Any, draws: str, folder: Path) -> Any:
    return HOLDERS[holder](MapDataset(source(), DRAWS[draws]), folder)


def loader(dataset: Any, workers: int = 0, **settings: Any) -> Any:
    return DataLoader(dataset, batch_size=3, num_workers=workers, seed=3, collate_fn=list, **settings)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ShuffleDataset does not share|.*does not share its samples out")
        warnings.filterwarnings("ignore", ".*samples again")
        warnings.filterwarnings("ignore", ".*killed by signal")
        warnings.filterwarnings("ignore", "This DataLoader will create 3 worker processes")
        yield


@pytest.mark.parametrize("draws", ["often", *(pytest.param(name, marks=pytest.mark.slow) for name in ("once", "late"))])
@pytest.mark.parametrize("source", [Numbers, pytest.param(Generated, marks=pytest.mark.slow)])
@pytest.mark.parametrize("holder", HOLDERS)
def test_resumed_behind_each_batch(holder: str, source: Any, draws: str, tmp_path: Path) -> None:
    names = map(str, itertools.count())

    def new() -> Any:
        return loader(made(holder, source, draws, tmp_path / next(names)))

    whole = list(new())
    assert len(whole) > 3
    for count in range(1, len(whole)):
        first = new()
        with iter(first) as iterator:
            received = list(itertools.islice(iterator, count))
            state = first.state_dict()
        again = new()
        again.load_state_dict(state)
        with iter(again) as iterator:
            received += list(itertools.islice(iterator, 2))
            state = again.state_dict()
        third = new()
        if len(received) < len(whole):
            third.load_state_dict(state)
            received += list(third)
        assert received == whole, count


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("holder", HOLDERS)
def test_resumed_with_workers(holder: str, workers: int, tmp_path: Path) -> None:
    names = map(str, itertools.count())

    def new() -> Any:
        return loader(made(holder, Numbers, "often", tmp_path / next(names)), workers)

    whole = list(new())
    for count in range(1, len(whole), 3):
        first = new()
        with iter(first) as iterator:
            received = list(itertools.islice(iterator, count))
            state = first.state_dict()
        again = new()
        again.load_state_dict(state)
        assert received + list(again) == whole, count


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (1, 2), (0, 2), (2, 0)])
@pytest.mark.parametrize("holder", ["shuffle", "filter above", "windows", "packed", "shuffle of a shuffle"])
def test_resumed_with_another_number_of_workers(holder: str, before: int, after: int, tmp_path: Path) -> None:
    """A stream that is shared out by stride: each sample is what it would have been."""

    def new(workers: int) -> Any:
        return loader(made(holder, Numbers, "often", tmp_path), workers)

    whole = sorted(sample for batch in new(before) for sample in batch)
    for count in (1, 2, 5):
        first = new(before)
        with iter(first) as iterator:
            received = list(itertools.islice(iterator, count))
            state = first.state_dict()
        again = new(after)
        again.load_state_dict(state)
        received += list(again)
        assert sorted(sample for batch in received for sample in batch) == whole, count


class Killing:
    """The first time that this number comes, its worker dies."""

    def __init__(self, number: int, mark: Path) -> None:
        self.number, self.mark = number, mark

    def __call__(self, sample: Any) -> Any:
        if sample[0] == self.number and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


@pytest.mark.parametrize("number", [0, 8, 33])
@pytest.mark.parametrize("source", [Numbers, Generated])
def test_after_a_death(source: Any, number: int, tmp_path: Path) -> None:
    def dataset(mark: Path) -> Any:
        return MapDataset(ShuffleDataset(MapDataset(source(), drawn_often), 6), Killing(number, mark))

    (calm := tmp_path / "calm").touch()
    whole = list(loader(dataset(calm), 1))
    killed = loader(dataset(tmp_path / "killed"), 1)
    assert list(killed) == whole
    assert (tmp_path / "killed").exists()


def test_state_keeps_nothing_of_samples_that_draw_nothing() -> None:
    """A state grows by what is needed."""

    def size(dataset: Any) -> int:
        found = loader(dataset)
        with iter(found) as iterator:
            list(itertools.islice(iterator, 5))
            return str(found.state_dict()).count("steps")

    assert size(ShuffleDataset(MapDataset(Numbers(), drawn), 6)) == 1
    assert size(ShuffleDataset(Numbers(), 6)) == 0
