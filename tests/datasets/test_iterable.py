from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stoker.datasets.base import is_stream
from stoker.datasets.chain import ChainDataset
from stoker.datasets.iterable import from_iterable
from stoker.datasets.map import MapDataset
from stoker.testing.streams import IteratorKeepsState, KeepsState, Numbers, Plain, StreamSuite


def countdown(start: int, step: int = 1) -> Iterator[int]:
    yield from range(start, 0, -step)


class Sized:
    """A dataset by index that no `iter()` would end."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    "make",
    [
        lambda: from_iterable(countdown, 9, step=2),
        lambda: from_iterable(lambda: MapDataset("abc", ord)),
        lambda: from_iterable(list, range(5)),
        lambda: from_iterable(Numbers, 5),
        lambda: from_iterable(Plain, 5),
        lambda: from_iterable(KeepsState, 5),
        lambda: from_iterable(IteratorKeepsState, 5),
        lambda: from_iterable(lambda: iter(IteratorKeepsState(5))),
        lambda: from_iterable(Sized),
    ],
    ids=["generator", "map", "list", "stream", "plain", "keeps_state", "iterable", "iterator", "sized"],
)
class TestFromIterable(StreamSuite):
    pass


def test_factory_and_arguments_can_be_read_back() -> None:
    dataset: Any = from_iterable(countdown, 9, step=2)
    assert is_stream(dataset)
    assert (dataset.factory, dataset.args, dataset.kwargs) == (countdown, (9,), {"step": 2})
    assert list(dataset) == [9, 7, 5, 3, 1]


@pytest.mark.parametrize(
    ("made", "samples"),
    [({7: "a", 8: "b"}, [7, 8]), (deque([1, 2]), [1, 2]), ({1}, [1]), ("ab", ["a", "b"]), (np.arange(2), [0, 1])],
    ids=["dict", "deque", "set", "string", "array"],
)
def test_stream_gives_the_samples_of_its_factory(made: Any, samples: list[Any]) -> None:
    assert list(from_iterable(lambda: made)) == samples


def test_lists_are_entered_at_the_index() -> None:
    class Reads(list[int]):
        read = 0

        def __getitem__(self, index: Any) -> Any:
            self.read += 1
            return super().__getitem__(index)

    numbers = Reads(range(1000))
    dataset = from_iterable(lambda: numbers)
    dataset.load_state_dict({"index": 998})
    assert list(dataset) == [998, 999]
    assert numbers.read == 2


def test_the_factory_is_called_once_for_each_iteration() -> None:
    calls = []
    dataset = from_iterable(lambda: calls.append(1) or [1, 2])
    assert calls == []
    assert (list(dataset), list(dataset), len(calls)) == ([1, 2], [1, 2], 2)


def test_stream_that_has_lost_samples_is_an_error() -> None:
    long, short = from_iterable(countdown, 9), from_iterable(countdown, 3)
    samples = iter(long)
    for _ in range(5):
        next(samples)
    short.load_state_dict(long.state_dict())
    with pytest.raises(ValueError, match="stands behind sample 5, but the dataset ends after 3"):
        iter(short)


def test_iterator_in_place_of_a_factory_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a generator, which cannot be called.*from_iterable\(f, x\)"):
        from_iterable(countdown(3))  # type: ignore[arg-type]


def test_a_factory_that_returns_nothing_is_named() -> None:
    def forgetful() -> Any:
        return None

    with pytest.raises(TypeError, match="forgetful returned None, which is not iterable"):
        next(iter(from_iterable(forgetful)))


def test_factory_that_raises_stopiteration_ends_no_stream() -> None:
    chain: ChainDataset[int] = ChainDataset([from_iterable(lambda: next(iter([]))), from_iterable(range, 2)])
    samples = iter(chain)
    with pytest.raises(RuntimeError, match=r"factory of from_iterable\(\) raised StopIteration, which would end"):
        next(samples)
    assert list(samples) == [0, 1]
