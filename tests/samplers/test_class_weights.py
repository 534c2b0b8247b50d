from __future__ import annotations

import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stoker.datasets.columnar import columns
from stoker.samplers import class_weights as module
from stoker.samplers.class_weights import weights_from_labels

LABELS = [2, 7, 7, 2, 7, 7, -1]
EXPECTED = [1 / 2, 1 / 4, 1 / 4, 1 / 2, 1 / 4, 1 / 4, 1.0]


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        tuple(map(str, LABELS)),
        [str(label).encode() for label in LABELS],
        [np.int32(label) for label in LABELS],
        columns(LABELS),
        columns(list(map(str, LABELS))),
        np.array(LABELS),
        np.array(LABELS, np.int8),
        np.array(LABELS) - 100,
        np.array(LABELS, ">i4"),
        np.array(LABELS) * 2**60 // 7,
        np.array(LABELS).astype(np.uint64),
        np.array(LABELS).astype(str),
        np.array(LABELS, object),
        np.repeat(LABELS, 2)[::2],
    ],
)
def test_a_sample_weighs_one_by_the_size_of_its_class(labels: Any) -> None:
    weights = weights_from_labels(labels)
    assert weights.dtype == np.float64
    assert weights.shape == (7,)
    assert weights.tolist() == EXPECTED


def test_class_weights_of_tensor_labels() -> None:
    torch = pytest.importorskip("torch")
    assert weights_from_labels(torch.tensor(LABELS)).tolist() == EXPECTED
    assert weights_from_labels(torch.tensor(LABELS, dtype=torch.int16)).tolist() == EXPECTED
    with pytest.raises(TypeError, match=r"label 0 is tensor\(1\), of type Tensor"):
        weights_from_labels([torch.tensor(1), torch.tensor(1)])


def test_bools_are_two_classes() -> None:
    assert weights_from_labels([True, False, True]).tolist() == [0.5, 1, 0.5]
    assert weights_from_labels(np.array([True, False, True])).tolist() == [0.5, 1, 0.5]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64])
def test_labels_at_the_ends_of_their_type(dtype: Any) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    assert weights_from_labels(np.array([low, high, high], dtype)).tolist() == [1, 0.5, 0.5]
    assert weights_from_labels(np.array([high - 1, high, high], dtype)).tolist() == [1, 0.5, 0.5]


@pytest.mark.parametrize("spread", [1, 2**40])
def test_blocks_do_not_show(spread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).integers(0, 50, 1000) * spread
    whole = weights_from_labels(labels)
    monkeypatch.setattr(module, "_BLOCK", 64)
    assert weights_from_labels(labels).tolist() == whole.tolist()
    assert weights_from_labels(labels.tolist()).tolist() == whole.tolist()
    with pytest.raises(TypeError, match=r"label 900 is 1.5, of type float"):
        weights_from_labels([*labels.tolist()[:900], 1.5])


def test_classes_get_equal_shares() -> None:
    labels = np.repeat(np.arange(4), [1, 10, 100, 1000])
    assert np.bincount(labels, weights_from_labels(labels)) == pytest.approx(np.ones(4))


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9, 0.9999, 1 - 2**-40, 1 - 2**-53])
def test_effective_numbers_are_exact(beta: float) -> None:
    counts = [1, 2, 3, 10, 777]
    weights = weights_from_labels(np.repeat(np.arange(5), counts), beta=beta)
    exact = [(1 - Fraction(beta)) / (1 - Fraction(beta) ** count) for count in counts]
    assert weights[np.cumsum(counts) - 1].tolist() == pytest.approx(list(map(float, exact)), rel=1e-15)


def test_beta_leads_from_equal_samples_to_equal_classes() -> None:
    assert weights_from_labels(LABELS, beta=0).tolist() == [1.0] * 7
    assert weights_from_labels(LABELS, beta=1 - 2**-50).tolist() == pytest.approx(EXPECTED)


def test_golden_weights() -> None:
    labels = np.repeat([0, 1], [1_000_003, 49])
    weights = weights_from_labels(labels, beta=0.999)
    assert [weights[0].hex(), weights[-1].hex()] == ["0x1.0624dd2f1aa00p-10", "0x1.56758572d1b58p-6"]


def test_weights_of_an_integer_array_take_no_extra_memory() -> None:
    labels = np.arange(500_000, dtype=np.int32) % 1000
    tracemalloc.start()
    try:
        weights = weights_from_labels(labels)
        assert tracemalloc.get_traced_memory()[1] < weights.nbytes + 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("labels", [[], np.array([], int), columns([])])
def test_class_weights_without_labels_are_refused(labels: Any) -> None:
    with pytest.raises(ValueError, match="there are no labels"):
        weights_from_labels(labels)


def test_labels_of_other_than_one_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(4, 3\): argmax\(1\) makes labels of one-hot rows"):
        weights_from_labels(np.zeros((4, 3), int))
    with pytest.raises(ValueError, match=r"have shape \(\)"):
        weights_from_labels(np.array(3))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([1.0, 2.0]), "are float64"),
        ([1, 2.0], "label 1 is 2.0, of type float"),
        ([1, None], "label 1 is None, of type NoneType"),
        ([("a.jpg", 3)], "of type tuple. Give one class for each sample"),
        ([[1], [2]], "of type list"),
        (np.array([1, None]), "label 1 is None"),
        (columns([("a.jpg", 3)]), "of type tuple"),
    ],
)
def test_invalid_labels_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        weights_from_labels(labels)


@pytest.mark.parametrize("beta", [-0.1, 1, 1.5, float("nan")])
def test_class_weights_refuse_a_bad_beta(beta: float) -> None:
    with pytest.raises(ValueError, match=f"beta should be at least 0 and below 1, but got beta={beta}"):
        weights_from_labels([1, 2], beta=beta)
