from __future__ import annotations

from typing import Any

import pytest

from stoker.datasets import StackDataset


class Batched:
    """Asked once for many samples; may give too few."""

    def __init__(self, n: int, missing: int = 0) -> None:
        self.n = n
        self.missing = missing
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index * 10

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls.append(indices)
        return [index * 10 for index in indices][self.missing :]


def test_tuples_from_positions() -> None:
    data: StackDataset[Any] = StackDataset("abc", Batched(3))
    assert len(data) == 3
    assert data[1] == ("b", 10)
    assert data.__getitems__([2, 0]) == [("c", 20), ("a", 0)]
    assert isinstance(data.datasets, tuple)


def test_dicts_from_names() -> None:
    data: StackDataset[Any] = StackDataset(text="abc", number=Batched(3))
    assert data[1] == {"text": "b", "number": 10}
    assert data.__getitems__([2, 0]) == [{"text": "c", "number": 20}, {"text": "a", "number": 0}]
    assert list(data.__getitems__([1])[0]) == ["text", "number"]
    assert isinstance(data.datasets, dict)


def test_a_dataset_that_can_is_asked_once() -> None:
    batched = Batched(3)
    StackDataset(batched, "abc").__getitems__([2, 0, 2])
    assert batched.calls == [[2, 0, 2]]


@pytest.mark.parametrize("data", [StackDataset(Batched(3, missing=1)), StackDataset(x=Batched(3, missing=1))])
def test_dataset_that_gives_too_few_samples_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"Nested dataset's output size mismatch\. Expected 3, got 2"):
        data.__getitems__([0, 1, 2])


def test_stack_dataset_refuses_bad_arguments() -> None:
    with pytest.raises(ValueError, match="both types are given"):
        StackDataset([1], x=[1])
    with pytest.raises(ValueError, match="At least one dataset should be passed"):
        StackDataset()
    with pytest.raises(ValueError, match="Size mismatch between datasets"):
        StackDataset([1], [1, 2])
    with pytest.raises(ValueError, match="Size mismatch between datasets"):
        StackDataset(a=[1], b=[1, 2])
