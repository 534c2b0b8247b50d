from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.samplers.order import BatchOrder, HasBatches
from stoker.samplers.stratified import StratifiedBatchSampler, _spreading_step

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

LABELS = np.arange(5000) ** 2 % 23 % 9


def whole(order: BatchOrder) -> list[list[int]]:
    """All batches; their positions are those of a walk."""
    batches = [order.batch(number) for number in range(len(order))]
    sizes = [0, *map(len, batches)]
    assert [order.position(number) for number in range(len(order))] == np.cumsum(sizes)[:-1].tolist()
    return batches


def indices(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def drawn_counts(classes: int, seed: int) -> list[int]:
    return (np.random.default_rng(seed).geometric(0.04, classes)).tolist()  # type: ignore[no-any-return]


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    counts=st.builds(drawn_counts, st.integers(1, 14), st.integers(0, 99)),
    size=st.integers(1, 40),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    key=st.integers(0, 2**64 - 1),
)
def test_each_class_has_its_share_of_each_batch(
    counts: list[int], size: int, shuffle: bool, drop_last: bool, key: int
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    n = len(labels)
    hypothesis.assume(not drop_last or n >= size)
    batches = whole(StratifiedBatchSampler(labels, size, shuffle, drop_last).batches(key))
    full, rest = divmod(n, size)
    assert [len(batch) for batch in batches] == [size] * full + [rest] * (rest > 0 and not drop_last)
    for batch in batches:
        there = np.bincount(labels[batch], minlength=len(counts))
        assert np.all(np.abs(there * n - np.array(counts) * len(batch)) < n)
    seen = indices(batches)
    assert len(set(seen)) == len(seen)
    assert drop_last or len(seen) == n
    left_out = np.array(counts) - np.bincount(labels[seen], minlength=len(counts))
    assert np.all(np.abs(left_out * n - np.array(counts) * (n - len(seen))) < n)


def longest_gap(places: list[int], ring: int) -> float:
    """Beside the mean one."""
    return max(np.diff([*places, places[0] + ring])) * len(places) / ring


def test_a_rare_class_is_spread_over_the_epoch() -> None:
    labels = np.array([0] * 2000 + [1] * 13 + [2] * 60 + [3] * 1 + [4] * 26)
    for key in range(30):
        batches = whole(StratifiedBatchSampler(labels, 20).batches(key))
        assert len(batches) == 105
        for rare, count in ((1, 13), (2, 60), (4, 26)):
            there = [number for number, batch in enumerate(batches) if rare in labels[batch]]
            assert len(there) == count
            assert longest_gap(there, 105) < 3


@pytest.mark.parametrize("ring", [1, 2, 3, 6, 7, 12, 30, 150, 489, 1000, 2310, 15_060, 45_486])
def test_any_few_successive_steps_are_spread(ring: int) -> None:
    back = pow(_spreading_step(ring), -1, ring)
    for count in {int(1.3**power) for power in range(41)} | set(range(1, 40)):
        if count <= ring:
            assert longest_gap(np.sort(np.arange(count) * back % ring).tolist(), ring) < 3, count


def test_rare_classes_meet_others_in_the_next_epoch() -> None:
    labels = np.array([0] * 900 + list(range(1, 101)))  # a hundred classes of one sample
    epochs = [whole(StratifiedBatchSampler(labels, 20).batches(key)) for key in range(2)]
    together = [{frozenset(labels[batch].tolist()) for batch in batches} for batches in epochs]
    assert all(len(of_epoch) == 50 for of_epoch in together)
    assert len(together[0] & together[1]) < 3


def test_a_class_of_one_sample_may_be_in_any_batch() -> None:
    chosen = StratifiedBatchSampler([0] * 99 + [1], 10)
    where = [[99 in batch for batch in whole(chosen.batches(key))].index(True) for key in range(400)]
    counts = np.bincount(where, minlength=10)
    assert np.abs(counts - 40).max() < 5 * np.sqrt(36)


def test_each_sample_meets_each_other_as_often() -> None:
    labels = np.array([0] * 12 + [1] * 4)
    met = np.zeros((16, 16))
    for key in range(600):
        for batch in whole(StratifiedBatchSampler(labels, 4).batches(key)):
            met[np.ix_(batch, batch)] += 1
    common = met[:12, :12][np.triu_indices(12, 1)]
    assert np.abs(common - 600 * 2 / 11).max() < 5 * np.sqrt(600 * 2 / 11)
    assert np.abs(met[:12, 12:] - 600 / 4).max() < 5 * np.sqrt(600 / 4)


def test_a_batch_is_not_in_order_of_its_classes() -> None:
    labels = np.repeat([0, 1], 500)
    batches = whole(StratifiedBatchSampler(labels, 10).batches(1))
    first_halves = [int(labels[batch[:5]].sum()) for batch in batches]
    assert set(first_halves) >= {1, 2, 3, 4}
    assert abs(np.mean(first_halves) - 2.5) < 0.5


def test_unshuffled_batches_are_in_order_of_the_dataset() -> None:
    chosen = StratifiedBatchSampler(["b", "a"] * 6 + ["a"] * 6, 6, shuffle=False)
    expected = [[0, 1, 2, 3, 5, 7], [4, 6, 9, 11, 12, 13], [8, 10, 14, 15, 16, 17]]
    assert whole(chosen.batches(0)) == whole(chosen.batches(7)) == list(chosen) == expected


# A change of one of these changes the batches of epochs that models were trained with.
GOLDEN = {
    0: [
        [4701, 272, 4713, 430, 4664, 3366, 1075, 3277, 31, 3669, 3417, 4208],
        [2247, 4341, 4904, 1066, 3692, 1243, 3408, 276],
    ],
    2**64 - 1: [
        [1627, 221, 3522, 2169, 4923, 600, 1161, 4945, 119, 3920, 3539, 4572],
        [1818, 1535, 2404, 376, 3675, 1890, 253, 1900],
    ],
}


@pytest.mark.parametrize("key", GOLDEN)
def test_the_batches_never_change(key: int) -> None:
    for labels in (LABELS, [f"class {label}" for label in LABELS], LABELS.astype(">i2")):
        order = StratifiedBatchSampler(labels, 12).batches(key)
        assert [order.batch(0), order.batch(416)] == GOLDEN[key]


def test_batch_does_not_depend_on_earlier_requests(
    asked_by_threads: Callable[[BatchOrder], list[list[int]]],
) -> None:
    forward = whole(StratifiedBatchSampler(LABELS, 30).batches(4))
    assert asked_by_threads(StratifiedBatchSampler(LABELS, 30).batches(4)) == forward


def test_walking_gives_the_batches_of_random_access() -> None:
    chosen = StratifiedBatchSampler(LABELS, 10, generator=np.random.default_rng(0))
    first, second = list(chosen), list(chosen)
    assert first != second
    assert sorted(indices(first)) == sorted(indices(second)) == list(range(5000))
    assert len(chosen) == 500
    assert isinstance(chosen, HasBatches)
    assert chosen.labels is LABELS


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (LABELS, {"batch_size": 0}, "batch_size should be a positive integer value, but got batch_size=0"),
        (LABELS, {"batch_size": True}, "batch_size should be a positive integer value"),
        (LABELS, {"batch_size": 2, "shuffle": "yes"}, "shuffle should be a boolean value"),
        (LABELS, {"batch_size": 2, "drop_last": 0}, "drop_last should be a boolean value"),
        ([], {"batch_size": 2}, r"labels should be in one dimension, .* but have shape \(0,\)"),
        (np.eye(4), {"batch_size": 2}, r"have shape \(4, 4\): argmax makes labels"),
        ([0, 1, 1], {"batch_size": 5, "drop_last": True}, "no batch is left: 3 samples do not fill one"),
    ],
)
def test_bad_input(labels: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StratifiedBatchSampler(labels, **options)


def test_batch_out_of_range_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="there is no batch -1: the epoch has 3"):
        StratifiedBatchSampler([1, 2, 1, 2, 1], 2).batches(0).batch(-1)
