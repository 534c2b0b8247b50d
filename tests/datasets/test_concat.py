from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stoker.datasets import ConcatDataset, IterableDataset
from stoker.datasets.stream import resume

PARTS: list[Any] = [["a", "b"], [], ["c"], range(3)]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([0])


def test_samples_come_one_dataset_after_the_other() -> None:
    data: ConcatDataset[Any] = ConcatDataset(iter(PARTS))
    assert len(data) == 6
    assert data.datasets == PARTS
    assert data.cumulative_sizes == [2, 2, 3, 6] == ConcatDataset.cumsum(PARTS)
    assert [data[i] for i in range(6)] == ["a", "b", "c", 0, 1, 2]


def test_negative_indices_count_from_the_end() -> None:
    data: ConcatDataset[Any] = ConcatDataset(PARTS)
    assert [data[i] for i in range(-6, 0)] == [data[i] for i in range(6)]
    with pytest.raises(ValueError, match="absolute value of index should not exceed dataset length"):
        data[-7]


def test_beyond_the_end_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        ConcatDataset(PARTS)[6]


def test_an_index_that_is_a_tensor_stays_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    index = torch.tensor(-1)
    assert ConcatDataset(PARTS)[index] == 2
    assert index == -1


def test_nothing_and_streams_are_refused() -> None:
    with pytest.raises(AssertionError, match="datasets should not be an empty iterable"):
        ConcatDataset([])
    with pytest.raises(AssertionError, match="ConcatDataset does not support IterableDataset"):
        ConcatDataset([[1], Stream()])


def test_torchs_streams_are_refused() -> None:
    torch_data = pytest.importorskip("torch.utils.data")

    class Theirs(torch_data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter([0])

    with pytest.raises(AssertionError, match="ConcatDataset does not support IterableDataset"):
        ConcatDataset([Theirs()])


def test_the_misspelt_attribute_warns() -> None:
    data: ConcatDataset[Any] = ConcatDataset(PARTS)
    with pytest.warns(FutureWarning, match="`cummulative_sizes` attribute is renamed") as caught:
        assert data.cummulative_sizes == data.cumulative_sizes
    assert caught[0].filename == __file__


def test_walked_as_a_stream_it_is_resumed_by_its_index() -> None:
    data: ConcatDataset[Any] = ConcatDataset(PARTS)
    samples = resume(data, None)
    assert [next(samples) for _ in range(4)] == ["a", "b", "c", 0]
    assert list(resume(data, samples.state_dict())) == list(samples) == [1, 2]
