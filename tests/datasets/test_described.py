"""What a dataset says of a sample is heard through those that hand its samples on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.datasets import CacheDataset, ConcatDataset, MapDataset, Subset
from stoker.datasets.gather import describe


class Photos:
    """Says of each sample which it is."""

    stoker_protocol = True

    def __init__(self, name: str, length: int) -> None:
        self._name = name
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index

    def describe(self, index: int) -> str:
        return f"{self._name}/{index}"


def test_dataset_describes_its_own_samples() -> None:
    assert describe(Photos("a", 3), 2) == "a/2"
    assert describe([1, 2], 0) is None


def wrappers(data: Any) -> list[Any]:
    ours: list[Any] = [Subset(data, [4, 2, 0]), Subset(Subset(data, np.arange(5)), [4, 2, 0])]
    return [*ours, ConcatDataset([Subset(data, [4]), [7], Subset(data, [2, 0])])]


def test_subset_describes_a_sample_by_its_source_index() -> None:
    for data in wrappers(Photos("a", 5))[:2]:
        assert [describe(data, index) for index in (0, 1, -1)] == ["a/4", "a/2", "a/0"]


def test_wrapping_datasets_pass_on_the_description() -> None:
    data = Photos("a", 5)
    for around in (MapDataset(data, str), CacheDataset(data, memory=1 << 16), MapDataset(Subset(data, [3, 4]), str)):
        place = 1 if len(around) == 2 else 4
        assert describe(around, place) == "a/4"
    assert describe(MapDataset([1, 2], str), 0) is None


def test_each_of_several_has_its_own() -> None:
    data: Any = ConcatDataset([Photos("a", 2), range(3), Photos("b", 2)])
    assert [describe(data, index) for index in range(-1, 7)] == ["b/1", "a/0", "a/1", None, None, None, "b/0", "b/1"]


def test_missing_sample_has_no_description() -> None:
    """It raises when it is asked for, and that is told; a second complaint would only hide it."""
    for data in wrappers(Photos("a", 5)):
        assert describe(data, 99) is None and describe(data, -99) is None


def test_error_in_a_description_passes_through() -> None:
    class Broken(Photos):
        def describe(self, index: int) -> str:
            raise IndexError("no such file")

    for data in wrappers(Broken("a", 5)):
        with pytest.raises(IndexError, match="no such file"):
            describe(data, 0)


def test_torchs_datasets_pass_on_the_description() -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    inner = torch_data.ConcatDataset([Photos("a", 2), torch_data.Subset(Photos("b", 9), [8, 7])])
    assert [describe(inner, index) for index in range(4)] == ["a/0", "a/1", "b/8", "b/7"]
    assert describe(Subset(torch_data.Subset(inner, [3, 2, 1]), [0]), 0) == "b/7"

    class Turned(torch_data.Subset):  # type: ignore[misc]
        """What its indices mean is its own."""

    assert describe(Turned(Photos("a", 9), [1]), 0) is None
