from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import stoker
from stoker.samplers import BatchSampler, SequentialSampler


@pytest.mark.parametrize("n", [0, 1, 5, 6, 7])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_equal_torchs(n: int, batch_size: int, drop_last: bool) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    ours = BatchSampler(SequentialSampler(range(n)), batch_size, drop_last)
    theirs = torch_data.BatchSampler(torch_data.SequentialSampler(range(n)), batch_size, drop_last)
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)


def test_batches_are_lists_of_whatever_the_sampler_yields() -> None:
    assert list(BatchSampler("abcde", 2, False)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(BatchSampler("abcde", 2, True)) == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_generator_makes_one_pass_and_has_no_length(drop_last: bool) -> None:
    batches = BatchSampler((i for i in range(4)), 2, drop_last)
    assert list(batches) == [[0, 1], [2, 3]]
    assert list(batches) == []
    with pytest.raises(TypeError):
        len(batches)


@pytest.mark.parametrize("drop_last", [False, True])
def test_indices_are_asked_for_no_earlier_than_their_batch(drop_last: bool) -> None:
    asked: list[int] = []

    def sampler() -> Iterator[int]:
        for index in range(6):
            asked.append(index)
            yield index

    batches = iter(BatchSampler(sampler(), 2, drop_last))
    assert asked == []
    assert next(batches) == [0, 1] == asked
    assert next(batches) == [2, 3]
    assert asked == [0, 1, 2, 3]


def test_an_error_of_the_sampler_comes_through() -> None:
    def sampler() -> Iterator[int]:
        yield from (0, 1, 2)
        raise OSError("gone")

    batches = iter(BatchSampler(sampler(), 2, False))
    assert next(batches) == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(batches)


def test_an_object_with_getitem_alone_is_iterable() -> None:
    class Old:
        def __getitem__(self, place: int) -> int:
            return [7, 8, 9][place]

    assert list(BatchSampler(Old(), 2, False)) == [[7, 8], [9]]  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, None, [2]])
def test_bad_batch_size(batch_size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size should be a positive integer value, but got batch_size="):
        BatchSampler(range(3), batch_size, False)


@pytest.mark.parametrize("drop_last", [0, None, "yes"])
def test_bad_drop_last(drop_last: Any) -> None:
    with pytest.raises(ValueError, match=f"drop_last should be a boolean value, but got drop_last={drop_last}"):
        BatchSampler(range(3), 2, drop_last)


def test_batch_sampler_has_torchs_attributes() -> None:
    batches = BatchSampler(range(3), 2, True)
    assert (batches.sampler, batches.batch_size, batches.drop_last) == (range(3), 2, True)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_sampler_that_each_iter_begins_anew(drop_last: bool) -> None:
    class Anew:
        def __iter__(self) -> Iterator[int]:
            self.left = iter(range(5))
            return self

        def __next__(self) -> int:
            return next(self.left)

    batches = list(islice(BatchSampler(Anew(), 2, drop_last), 4))
    assert batches == ([[0, 1], [2, 3]] if drop_last else [[0, 1], [2, 3], [4]])


def test_a_repr_names_the_arguments() -> None:
    shuffled = stoker.RandomSampler(range(10))
    assert repr(shuffled) == "RandomSampler(data_source=range(0, 10), replacement=False)"
    assert (
        repr(stoker.BatchSampler(shuffled, 3, False))
        == f"BatchSampler(sampler={shuffled}, batch_size=3, drop_last=False)"
    )
    assert (
        repr(stoker.SequentialSampler(list(range(10**5)))) == "SequentialSampler(data_source=[0, 1, 2, 3, 4, 5, ...])"
    )
    bucketed = stoker.BucketBatchSampler(range(1, 100), 4)
    assert repr(bucketed) == "BucketBatchSampler(99 lengths, batch_size=4, shuffle=True, drop_last=False)"
    assert repr(object.__new__(stoker.RandomSampler)) == "RandomSampler()"
