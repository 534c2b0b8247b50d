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
from stoker.datasets.columnar import Columns
from stoker.datasets.nesting import batched_by, held_by, unpickled_once
from tests.ownership import moved, named_like

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


@pytest.mark.parametrize(
    ("kind", "held"),
    [(Subset, (BATCHED, [0])), (ConcatDataset, ([BATCHED],)), (MapDataset, (BATCHED, str)), (StackDataset, (BATCHED,))],
)
def test_wrappers_hand_on_wherever_their_file_is(kind: Any, held: Any) -> None:
    users = type("Users", (kind,), {})
    for each in (kind, users):
        assert held_by(each(*held), ("__getitem__",)) == [BATCHED]
    members = {"__getitem__": lambda dataset, index: "mine", "__getitems__": lambda dataset, indices: ["mine"]}
    own = named_like(kind, **members)
    assert held_by(own(*held), ("__getitem__",)) is None
    alone = named_like(kind, object, __getitem__=lambda dataset, index: "mine", dataset=BATCHED, datasets=[BATCHED])
    assert held_by(alone(), ("__getitem__",)) is None
    with moved(kind):
        for each in (kind, users):
            assert held_by(each(*held), ("__getitem__",)) == [BATCHED]
        assert held_by(type(kind.__name__, (kind,), members)(*held), ("__getitem__",)) is None


def test_samples_changed_below_a_moved_class_are_kept() -> None:
    class Changed(StackDataset):
        def __getitem__(self, index: int) -> Any:
            return ("changed", *super().__getitem__(index))

    with moved(StackDataset):
        assert batched_by(Changed(BATCHED)) is None
        assert batched_by(StackDataset(BATCHED)) is BATCHED
    fetching = named_like(StackDataset, __getitems__=lambda dataset, indices: ["mine"])
    both = type("Both", (fetching,), {"__getitem__": lambda dataset, index: "mine"})(BATCHED)
    assert batched_by(both) is both  # the user's two methods


def test_rows_for_a_function_are_fetched_one_by_one() -> None:
    rows, users = columns(["a", "b"]), type("Users", (MapDataset,), {})
    for kind in (MapDataset, users):
        assert batched_by(kind(rows, str.upper)) is None
        with moved(MapDataset, Columns):
            assert batched_by(kind(rows, str.upper)) is None
    theirs = named_like(Columns, Batched)(PLAIN)
    assert batched_by(MapDataset(theirs, str)) is theirs


class Once(Batched):
    unpickle_once = True


def test_plain_wrappers_are_unpickled_once_if_what_they_hold_is() -> None:
    once = Once(PLAIN)
    assert unpickled_once(Subset(once, [0])) and unpickled_once(ConcatDataset([once]))
    assert not unpickled_once(Subset(BATCHED, [0])) and not unpickled_once(StackDataset(once))
    with moved(Subset, ConcatDataset):
        assert unpickled_once(Subset(once, [0])) and unpickled_once(ConcatDataset([once]))
    for theirs in (Named, named_like(Subset)):
        assert not unpickled_once(theirs(once, [0]))


def test_torchs_plain_wrappers_are_unpickled_once_too() -> None:
    data = pytest.importorskip("torch.utils.data")
    assert unpickled_once(data.Subset(Once(PLAIN), [0])) and unpickled_once(data.ConcatDataset([Once(PLAIN)]))
    assert not unpickled_once(type("Named", (data.Subset,), {})(Once(PLAIN), [0]))
