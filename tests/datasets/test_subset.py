from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.datasets import Subset


class Batched:
    def __getitem__(self, index: Any) -> Any:
        return ("one", index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [("many", index) for index in indices]


class OnlyOne(Subset[Any]):
    def __getitem__(self, idx: Any) -> Any:
        return "mine"


class Both(OnlyOne):
    def __getitems__(self, indices: Any) -> list[Any]:
        return [self[index] for index in indices]


class OnlyMany(Subset[Any]):
    def __getitems__(self, indices: Any) -> list[Any]:
        return ["mine"] * len(indices)


def test_samples_are_those_at_the_indices() -> None:
    indices = [3, 1]
    data: Subset[str] = Subset("abcd", indices)
    assert (len(data), data.dataset, data.indices) == (2, "abcd", indices)
    assert [data[0], data[1], data[-1]] == ["d", "b", "b"]
    assert data.__getitems__([1, 0, 1]) == ["b", "d", "b"]
    with pytest.raises(IndexError):
        data[2]


def test_a_dataset_with_getitems_is_asked_once() -> None:
    data: Subset[Any] = Subset(Batched(), [3, 1])
    assert data.__getitems__([1, 0]) == [("many", 1), ("many", 3)]
    assert Subset(data, [0]).__getitems__([0]) == [("many", 3)]


def test_a_list_of_positions_reaches_the_dataset_as_a_list() -> None:
    data: Subset[Any] = Subset(np.arange(10) * 2, [3, 1, 5])
    assert data[[0, 2]].tolist() == [6, 10]


def test_overriding_getitem_alone_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="OnlyOne overrides __getitem__ but not __getitems__"):
        OnlyOne([1], [0])
    assert Both([1], [0]).__getitems__([0]) == ["mine"]
    assert OnlyMany([1], [0]).__getitems__([0, 0]) == ["mine", "mine"]


def test_torchs_subset_within_ours() -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    inner = torch_data.Subset(Batched(), [7, 8, 9])
    data: Subset[Any] = Subset(inner, [2, 0])
    assert data[0] == ("one", 9)
    assert data.__getitems__([0, 1]) == [("many", 9), ("many", 7)]
