"""A generator below other streams that draws its order from a global generator: resumed, its order is the same."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stoker
from stoker import ChainDataset, DataLoader, FilterDataset, MapDataset, WindowDataset


class Shuffled(stoker.IterableDataset[int]):
    """Draws its order when it is asked for its first sample."""

    def __init__(self, first: int = 0, length: int = 30) -> None:
        self._numbers = range(first, first + length)

    def __iter__(self) -> Iterator[int]:
        numbers = list(self._numbers)
        random.shuffle(numbers)
        yield from numbers


class Picking(Shuffled):
    """Draws at each sample."""

    def __iter__(self) -> Iterator[int]:
        left = list(self._numbers)
        while left:
            yield left.pop(random.randrange(len(left)))


def is_even(number: int) -> bool:
    return number % 2 == 0


BELOW: dict[str, Callable[[Any], Any]] = {
    "alone": lambda kind: kind(),
    "map": lambda kind: MapDataset(kind(), abs),
    "chain": lambda kind: ChainDataset([kind(0, 10), kind(100, 10)]),
    "filter": lambda kind: FilterDataset(kind(), is_even),
    "mix": lambda kind: stoker.MixDataset([kind(), kind(100, 9)], [1, 1], stop="drop"),
    "interleave": lambda kind: stoker.InterleaveDataset([kind(), kind(100, 9)], open_at_once=2),
    "zip": lambda kind: MapDataset(stoker.ZipDataset(kind(), kind(100)), sum),
    "chain of filters": lambda kind: ChainDataset([FilterDataset(kind(first), is_even) for first in (0, 100)]),
    "shuffle": lambda kind: stoker.ShuffleDataset(kind(), 8),
    "window": lambda kind: MapDataset(WindowDataset(kind(), 3, 1), sum),
    "chain of windows": lambda kind: MapDataset(
        ChainDataset([WindowDataset(kind(first, 9), 3, 1) for first in (0, 100)]), sum
    ),
}


def loader(kind: Any, below: str, workers: int) -> Any:
    return DataLoader(BELOW[below](kind), batch_size=3, num_workers=workers, seed=3, collate_fn=list)


def resumed_everywhere(kind: Any, below: str, workers: int) -> Iterator[tuple[bool, bool]]:
    """For a state behind each batch: whether the same follows, and whether it was told that others came."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = list(loader(kind, below, workers))
    for count in range(1, len(whole)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            first = loader(kind, below, workers)
            with iter(first) as iterator:
                received = list(itertools.islice(iterator, count))
                state = first.state_dict()
            again = loader(kind, below, workers)
            again.load_state_dict(state)
            received += list(again)
        yield received == whole, any("gave other samples" in str(warning.message) for warning in told)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("below", BELOW)
def test_nested_generator_gives_the_same_order_on_resume(below: str, workers: int) -> None:
    assert set(resumed_everywhere(Shuffled, below, workers)) == {(True, False)}


@pytest.mark.parametrize("below", BELOW)
def test_changed_order_on_resume_is_reported(below: str) -> None:
    """What draws at each sample cannot be drawn as it was: other streams asked for it who knows when."""
    assert (False, False) not in set(resumed_everywhere(Picking, below, 0))
