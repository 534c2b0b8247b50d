from __future__ import annotations

from typing import Any

import pytest

from stoker.datasets.base import is_stream
from stoker.datasets.iterable import from_iterable
from stoker.datasets.map import MapDataset
from stoker.datasets.zip import ZipDataset
from stoker.errors import StateError
from stoker.testing.streams import SOURCES, Numbers, StreamSuite


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: ZipDataset(kind(6), "abcdefgh") for kind in SOURCES.values()),
        lambda: ZipDataset(Numbers(9), ZipDataset(Numbers(5, 12), Numbers(4))),
        lambda: ZipDataset(Numbers(4), [1, 2, 3, 4], strict=True),
    ],
    ids=[*SOURCES, "nested", "strict"],
)
class TestZipStreams(StreamSuite):
    pass


def test_indexed_zip_ends_with_the_shortest_source() -> None:
    dataset = ZipDataset("abcd", range(3))
    assert (len(dataset), dataset.datasets, dataset.strict) == (3, ("abcd", range(3)), False)
    assert [dataset[i] for i in range(3)] == [("a", 0), ("b", 1), ("c", 2)]
    assert dataset[-1] == ("c", 2)
    with pytest.raises(IndexError, match="index 3 is outside of a dataset of 3 samples"):
        dataset[3]
    assert not is_stream(dataset)


def test_zip_with_a_stream_is_a_stream() -> None:
    dataset: Any = ZipDataset("abcd", Numbers(3))
    assert is_stream(dataset)
    assert list(dataset) == [("a", 0), ("b", 1), ("c", 2)]
    assert len(dataset) == 3


def test_strict_refuses_another_length_at_once_by_index() -> None:
    assert len(ZipDataset("abc", range(3), strict=True)) == 3
    with pytest.raises(ValueError, match=r"have \[2, 3\] samples"):
        ZipDataset("abc", range(2), strict=True)


@pytest.mark.parametrize(("lengths", "longer"), [((3, 2), 0), ((2, 3), 1), ((2, 2, 3), 2), ((3, 3, 2), 0)])
def test_strict_streams_are_refused_at_the_end(lengths: tuple[int, ...], longer: int) -> None:
    samples = iter(ZipDataset(*map(Numbers, lengths), strict=True))  # type: ignore[call-overload]
    assert [next(samples)[0] for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match=f"dataset {lengths.index(2)} has ended, but dataset {longer} has more"):
        next(samples)


def test_failing_sample_leaves_the_other_pairs_together() -> None:
    first: Any = MapDataset(Numbers(4), lambda number: 6 // (number - 1))
    second: Any = MapDataset(Numbers(4), lambda number: 6 // (number - 2))
    dataset: Any = ZipDataset(Numbers(4), first, second, Numbers(4))
    samples = iter(dataset)
    assert next(samples) == (0, -6, -3, 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            next(samples)
    state = dataset.state_dict()
    assert list(samples) == [(3, 3, 6, 3)]
    dataset.load_state_dict(state)
    assert list(dataset) == [(3, 3, 6, 3)]


def test_the_epoch_is_passed_on() -> None:
    source = Numbers(3)
    ZipDataset([1], source).set_epoch(5)
    assert source.epoch == 5


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="was given no dataset"):
        ZipDataset()
    with pytest.raises(TypeError, match="a generator, which is not a dataset"):
        ZipDataset([1], (i for i in range(3)))


def test_a_state_of_another_number_of_datasets_is_refused() -> None:
    two, three = (ZipDataset(*[Numbers(3)] * number) for number in (2, 3))
    next(iter(two))  # type: ignore[call-overload]
    three.load_state_dict(two.state_dict())  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="of 2 datasets, but there are 3"):
        iter(three)  # type: ignore[call-overload]


@pytest.mark.parametrize("place", [0, 1])
def test_interrupted_zip_gives_no_mixed_pairs(place: int) -> None:
    class Interrupted:
        """Ctrl-C comes once, at 3."""

        def __init__(self) -> None:
            self.number = -1

        def __iter__(self) -> Interrupted:
            return self

        def __next__(self) -> int:
            self.number += 1
            if self.number == 3:
                raise KeyboardInterrupt
            return self.number

    streams = [from_iterable(lambda: range(100, 108)), from_iterable(Interrupted)]
    pairs = ZipDataset(*(streams if place else streams[::-1]))
    iterator = iter(pairs)
    for _ in range(2):
        next(iterator)
    state = pairs.state_dict()
    next(iterator)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    for call in (lambda: next(iterator), pairs.state_dict):
        with pytest.raises(StateError, match="was interrupted"):
            call()
    pairs.load_state_dict(state)
    with pytest.raises(KeyboardInterrupt):
        list(pairs)  # it comes again, behind the pair of the state


def test_zip_goes_on_after_a_failed_sample() -> None:
    pairs = iter(ZipDataset(from_iterable(lambda: range(2)), from_iterable(lambda: range(3))))
    assert list(pairs) == [(0, 0), (1, 1)]
    assert next(pairs, None) is None
