"""Which dataset fetches whole batches, and what lies in which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import columns
from stoker.datasets import (
    CacheDataset,
    ConcatDataset,
    MapDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from stoker.datasets.nesting import batched_by, held_by

PLAIN = list(range(4))


class Batched(list[int]):
    def __getitems__(self, indices: Any) -> list[Any]:
        return [self[index] for index in indices]


class Own(Subset[Any]):
    def __getitem__(self, idx: Any) -> Any:
        return "mine"

    def __getitems__(self, indices: Any) -> list[Any]:
        return ["mine" for _ in indices]


class Named(Subset[Any]):
    """Nothing is fetched otherwise."""

    name = "train"


BATCHED = Batched(PLAIN)
OWN = Own(PLAIN, [0])


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        Subset(PLAIN, [0]),
        Named(PLAIN, [0]),
        random_split(PLAIN, [2, 2])[0],
        Subset(Subset(PLAIN, [0, 1]), [0]),
        StackDataset(PLAIN, PLAIN),
        StackDataset(x=Subset(PLAIN, [0])),
        MapDataset(Subset(PLAIN, [0]), str),
        CacheDataset(Subset(PLAIN, [0]), memory=1 << 16),
        ConcatDataset([BATCHED]),
        TensorDataset(np.arange(4)),
        MapDataset(columns(["a", "b"]), str.upper),
        Subset(MapDataset(Subset(columns(["a", "b"]), [1]), str.upper), [0]),
    ],
    ids=lambda data: type(data).__name__,
)
def test_wrapper_without_getitems_fetches_sample_by_sample(data: Any) -> None:
    assert batched_by(data) is None


@pytest.mark.parametrize(
    "data",
    [
        BATCHED,
        Subset(BATCHED, [0]),
        Named(BATCHED, [0]),
        Subset(StackDataset(PLAIN, BATCHED), [0]),
        StackDataset(x=PLAIN, y=Subset(BATCHED, range(4))),
        MapDataset(Subset(BATCHED, [0]), str),
        CacheDataset(BATCHED, memory=1 << 16),
    ],
    ids=lambda data: type(data).__name__,
)
def test_a_dataset_of_the_users_is_found_in_ours(data: Any) -> None:
    assert batched_by(data) is BATCHED


def test_whatever_has_a_method_of_its_own_is_obeyed() -> None:
    assert batched_by(OWN) is OWN
    assert batched_by(Subset(OWN, [0])) is OWN
    rows = columns([("a", 0), ("b", 1)])
    assert batched_by(Subset(rows, [0])) is rows
    special: Subset[Any] = Subset(PLAIN, [0])
    special.__getitems__ = lambda indices: ["special"]  # type: ignore[method-assign]
    assert batched_by(special) is special


@pytest.mark.parametrize("home", ["stoker", "torch.utils.data"])
def test_samples_that_a_subclass_changes_are_not_passed_by(home: str) -> None:
    kind: Any = pytest.importorskip(home).StackDataset

    class Changed(kind):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            return ("changed", *super().__getitem__(index))

    class Both(Changed):
        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices]

    assert batched_by(Changed(BATCHED)) is None
    assert batched_by(kind(BATCHED)) is BATCHED
    both = Both(BATCHED)
    assert batched_by(both) is both


def test_torchs_own_hand_on_as_ours_do() -> None:
    data = pytest.importorskip("torch.utils.data")
    assert batched_by(data.random_split(PLAIN, [2, 2])[0]) is None
    assert batched_by(Subset(data.Subset(PLAIN, [0]), [0])) is None
    assert batched_by(data.Subset(BATCHED, [0])) is BATCHED
    assert batched_by(data.StackDataset(PLAIN, PLAIN)) is None

    class Theirs(data.Subset):  # type: ignore[misc, name-defined]
        def __getitems__(self, indices: Any) -> Any:
            return super().__getitems__(indices)

    theirs = Theirs(PLAIN, [0])
    assert batched_by(theirs) is theirs


def test_held_datasets_are_found() -> None:
    assert held_by(Subset(PLAIN, [0]), ("gather",)) == [PLAIN]
    assert held_by(StackDataset(x=PLAIN, y=BATCHED), ("gather",)) == [PLAIN, BATCHED]
    assert held_by(ConcatDataset([PLAIN, BATCHED]), ("gather",)) == [PLAIN, BATCHED]
    assert held_by(TensorDataset(np.arange(4)), ("gather",)) is None
    assert held_by(OWN, ("__getitem__",)) is None
    assert held_by(Path("a"), ("__getitem__",)) is None
