from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.errors import StokerWarning
from stoker.samplers.balanced import BalancedBatchSampler
from stoker.samplers.order import BatchOrder, HasBatches

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

LABELS = np.arange(5000) ** 2 % 23 % 9


def sampler(*arguments: Any, **options: Any) -> BalancedBatchSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StokerWarning)
        return BalancedBatchSampler(*arguments, **options)


def whole(order: BatchOrder) -> list[list[int]]:
    return [order.batch(number) for number in range(len(order))]


def drawn_counts(classes: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, 14, classes).tolist()  # type: ignore[no-any-return]


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    counts=st.builds(drawn_counts, st.integers(1, 10), st.integers(0, 99)),
    part=st.floats(0, 1),
    samples=st.integers(1, 8),
    key=st.integers(0, 2**64 - 1),
)
def test_classes_and_their_samples_come_equally_often(counts: list[int], part: float, samples: int, key: int) -> None:
    classes = max(1, round(part * len(counts)))
    labels = np.repeat(np.arange(len(counts)), counts)
    order = sampler(labels, classes, samples, num_batches=25).batches(key)
    used = np.zeros(len(labels), int)
    for number, batch in enumerate(whole(order)):
        assert order.position(number) == number * classes * samples
        rows = labels[batch].reshape(classes, samples)
        assert (rows == rows[:, :1]).all()
        assert len(set(rows[:, 0])) == classes
        for row in np.array(batch).reshape(classes, samples):
            repeats = np.unique(row, return_counts=True)[1]
            assert repeats.max() == -(-samples // counts[labels[row[0]]])
        np.add.at(used, batch, 1)
        of_class = [used[labels == one] for one in range(len(counts))]
        assert all(uses.max() - uses.min() <= 1 for uses in of_class)
        came = [uses.sum() // samples for uses in of_class]
        assert max(came) - min(came) <= 1


def test_classes_meet_others_in_each_cycle() -> None:
    labels = np.repeat(np.arange(12), 50)
    order = sampler(labels, 4, 2, num_batches=300).batches(0)
    together = {frozenset(labels[batch].tolist()) for batch in whole(order)}
    assert len(together) > 200


def test_samples_meet_others_in_each_cycle() -> None:
    labels = np.array([0] * 10 + [1] * 1000)
    order = sampler(labels, 2, 2, num_batches=200).batches(0)
    pairs = [frozenset(index for index in batch if index < 10) for batch in whole(order)]
    assert all(len(pair) == 2 for pair in pairs)
    assert len(set(pairs)) > 40  # of 45


def test_epochs_differ() -> None:
    chosen = sampler(LABELS, 3, 4)
    first, second = (whole(chosen.batches(key)) for key in (0, 1))
    assert not {frozenset(batch) for batch in first} & {frozenset(batch) for batch in second}


def test_an_epoch_has_about_as_many_samples_as_there_are_labels() -> None:
    assert len(sampler(LABELS, 3, 4)) == 416
    assert len(sampler([0, 1], 2, 4)) == 1
    assert len(sampler(LABELS, 3, 4, num_batches=7)) == len(sampler(LABELS, 3, 4, num_batches=7).batches(0)) == 7


# A change of one of these changes the batches of epochs that models were trained with.
GOLDEN = {
    0: [[2613, 1663, 4862, 1790, 2879, 4826, 3383, 412, 2455], [2934, 2267, 1738, 4318, 937, 3862, 3554, 4037, 3553]],
    2**64 - 1: [
        [3508, 747, 1506, 1820, 72, 636, 1099, 892, 4674],
        [4301, 3741, 3312, 924, 1476, 3262, 3765, 14, 2592],
    ],
}


@pytest.mark.parametrize("key", GOLDEN)
def test_the_batches_never_change(key: int) -> None:
    for labels in (LABELS, [f"class {label}" for label in LABELS], LABELS.astype(">i2")):
        order = BalancedBatchSampler(labels, 3, 3).batches(key)
        assert [order.batch(0), order.batch(554)] == GOLDEN[key]


def test_batch_does_not_depend_on_earlier_requests(
    asked_by_threads: Callable[[BatchOrder], list[list[int]]],
) -> None:
    forward = whole(sampler(LABELS, 4, 5).batches(4))
    assert asked_by_threads(sampler(LABELS, 4, 5).batches(4)) == forward


def test_a_batch_far_away_is_known_at_once() -> None:
    order = sampler(LABELS, 4, 5, num_batches=10**15).batches(0)
    batch = order.batch(10**15 - 1)
    assert len(set(batch)) == 20
    assert order.position(10**15 - 1) == 20 * (10**15 - 1)


def test_walking_gives_the_batches_of_random_access() -> None:
    chosen = sampler(LABELS, 3, 4, generator=np.random.default_rng(0))
    first, second = list(chosen), list(chosen)
    assert first != second
    assert len(first) == len(second) == len(chosen)
    assert isinstance(chosen, HasBatches)
    assert chosen.labels is LABELS


def test_class_with_too_few_samples_repeats_with_a_warning() -> None:
    labels = ["common"] * 20 + ["rare"] * 3 + ["rarer"] * 2
    with pytest.warns(
        StokerWarning,
        match=r"2 of 3 classes have fewer than samples_per_class=4 samples \(class rarer has 2\): a batch repeats "
        r"their samples\. Lower samples_per_class, or leave these classes out",
    ) as told:
        chosen = BalancedBatchSampler(labels, 3, 4)
    assert len(told) == 1
    assert told[0].filename == __file__
    for batch in whole(chosen.batches(0)):
        rows = {labels[row[0]]: row for row in np.array(batch).reshape(3, 4).tolist()}
        assert sorted(rows["rarer"]) == [23, 23, 24, 24]
        assert len(set(rows["rare"])) == 3
        assert len(set(rows["common"])) == 4


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (LABELS, (10, 2), "classes_per_batch=10, but the 5000 labels are of 8 classes: lower it to 8 or less"),
        (LABELS, (0, 2), "classes_per_batch should be a positive integer value, but got classes_per_batch=0"),
        (LABELS, (2, 1.5), "samples_per_class should be a positive integer value, but got samples_per_class=1.5"),
        (LABELS, (2, 2, 0), "num_batches should be a positive integer value, but got num_batches=0"),
        ([], (1, 1), r"labels should be in one dimension, .* but have shape \(0,\)"),
        ([[1, 2]], (1, 1), r"have shape \(1, 2\): argmax makes labels"),
        ([1.0, float("nan")], (1, 1), r"labels\[1\] is nan: each sample needs a class"),
    ],
)
def test_bad_input(labels: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BalancedBatchSampler(labels, *options)


def test_batch_out_of_range_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="there is no batch 2: the epoch has 2"):
        BalancedBatchSampler([1, 2, 1, 2], 2, 1).batches(0).batch(2)
