from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.samplers import by_class as module
from stoker.samplers.by_class import ByClass


@pytest.fixture(params=[7, 2**20])
def blocks_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", request.param)


LABELS = [
    [3],
    [1, 1, 1, 1, 1, 1, 1, 1],
    [5, -2, 5, 5, 9, -2, 0, 0, 9, 9, 9, 9, 5, 1, 1, 5, 5, 5, 5, 5, 5, 2],
    ["cat", "a very long word", "dog", "cat", "dog", "ox", "ox", "ant", "cat"],
    [True, False, False, True, True, True, True, True, True, True],
    [0.5, 0.5, 1.5, -0.5, 1.5, 0.5, 0.5, 0.5, 0.5, 0.5],
    list(range(40, 0, -1)),
]


@pytest.mark.usefixtures("blocks_of")
@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_members_are_those_that_a_stable_sort_gives(labels: list[Any]) -> None:
    found = ByClass(labels)
    classes, counts = np.unique(labels, return_counts=True)
    assert found.classes.tolist() == classes.tolist()
    assert found.counts.tolist() == counts.tolist()
    assert found.members.tolist() == np.argsort(labels, kind="stable").tolist()
    assert found.members.dtype == np.uint32
    first = found.samples(np.arange(len(classes)), np.zeros(len(classes), int))
    assert first.tolist() == [labels.index(label) for label in classes.tolist()]
    assert first.dtype == np.int64


def test_integers_on_both_sides_of_two_to_the_63_stay_apart() -> None:
    """As an array they would be floats, and two of these three one class."""
    found = ByClass([2**63 + 1, 2**63 + 2, 5, 5])
    assert found.classes.tolist() == [5, 2**63 + 1, 2**63 + 2] and found.counts.tolist() == [2, 1, 1]
    assert ByClass([2**63, 0.5]).classes.dtype == np.float64


@pytest.mark.usefixtures("blocks_of")
def test_any_kind_of_array_will_do() -> None:
    labels = np.random.default_rng(0).integers(0, 300, 1000)
    expected = ByClass(labels.tolist()).members.tolist()
    arrays = [labels.astype(">i2"), labels.astype(np.uint16), np.repeat(labels, 3)[::3], labels.astype(object)]
    assert all(ByClass(array).members.tolist() == expected for array in arrays)


def test_a_tensor_will_do() -> None:
    torch = pytest.importorskip("torch")
    assert ByClass(torch.tensor([5, 3, 5])).members.tolist() == [1, 0, 2]


def test_labels_that_cannot_be_sorted_are_refused() -> None:
    with pytest.raises(TypeError, match=r"labels of dtype object cannot be sorted \(.*\): give integers or strings"):
        ByClass(np.array([1, "a", None], object))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], r"labels should be in one dimension, one for each sample, but have shape \(0,\)$"),
        (3, r"but have shape \(\)$"),
        (np.eye(3), r"but have shape \(3, 3\): argmax makes labels of one-hot rows"),
        ([1.0, 2.0, float("nan"), 1.0], r"labels\[2\] is nan: each sample needs a class"),
    ],
)
def test_bad_labels(labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ByClass(labels)


def test_the_index_of_a_missing_label_counts_earlier_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 4)
    with pytest.raises(ValueError, match=r"labels\[9\] is nan"):
        ByClass([0.0] * 9 + [float("nan")])
