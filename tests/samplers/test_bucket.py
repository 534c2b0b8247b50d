from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

from stoker.errors import StokerWarning
from stoker.samplers.bucket import BucketBatchSampler
from stoker.samplers.order import BatchOrder, HasBatches

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

SQUARES = np.arange(5000) ** 2
LENGTHS = SQUARES % 97 + 3


def sampler(*arguments: Any, **options: Any) -> BucketBatchSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StokerWarning)
        return BucketBatchSampler(*arguments, **options)


def whole(order: BatchOrder) -> list[list[int]]:
    """All batches; their positions are those of a walk."""
    batches = [order.batch(number) for number in range(len(order))]
    sizes = [0, *map(len, batches)]
    assert [order.position(number) for number in range(len(order))] == np.cumsum(sizes)[:-1].tolist()
    return batches


def indices(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def drawn_lengths(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, 61, n).tolist()  # type: ignore[no-any-return]


LENGTHS_DRAWN = st.builds(drawn_lengths, st.integers(1, 250), st.integers(0, 99))
KEYS = st.integers(0, 2**64 - 1)


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    lengths=LENGTHS_DRAWN, size=st.integers(1, 40), shuffle=st.booleans(), drop_last=st.booleans(), key=KEYS
)
def test_batches_of_a_size(lengths: list[int], size: int, shuffle: bool, drop_last: bool, key: int) -> None:
    hypothesis.assume(not drop_last or len(lengths) >= size)
    batches = whole(sampler(lengths, size, shuffle=shuffle, drop_last=drop_last).batches(key))
    full, rest = divmod(len(lengths), size)
    assert [len(batch) for batch in batches] == [size] * full + [rest] * (rest > 0 and not drop_last)
    seen = indices(batches)
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(len(lengths)))


@hypothesis.settings(max_examples=40)
@hypothesis.given(lengths=LENGTHS_DRAWN, tokens=st.integers(60, 500), buckets=st.integers(1, 20), key=KEYS)
def test_batches_of_tokens(lengths: list[int], tokens: int, buckets: int, key: int) -> None:
    for drop_last in (False, True):
        try:
            chosen = sampler(lengths, max_tokens=tokens, buckets=buckets, drop_last=drop_last)
        except ValueError:
            assert drop_last
            continue
        batches = whole(chosen.batches(key))
        assert len(batches) == len(chosen)
        assert all(max(lengths[index] for index in batch) * len(batch) <= tokens for batch in batches)
        seen = indices(batches)
        assert len(set(seen)) == len(seen)
        assert drop_last or len(seen) == len(lengths)


@hypothesis.settings(max_examples=40)
@hypothesis.given(lengths=LENGTHS_DRAWN, at=st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True), key=KEYS)
def test_boundaries_keep_buckets_apart(lengths: list[int], at: list[int], key: int) -> None:
    boundaries = sorted(at)
    homes = np.searchsorted(boundaries, lengths)
    counts = np.bincount(homes)
    hypothesis.assume((counts > 0).sum() > 1)
    batches = whole(sampler(lengths, 4, buckets=boundaries).batches(key))
    assert all(len({homes[index] for index in batch}) == 1 for batch in batches)
    assert sorted(indices(batches)) == list(range(len(lengths)))
    assert len(batches) == sum(-(-count // 4) for count in counts.tolist())
    tokens = whole(sampler(lengths, max_tokens=100, buckets=boundaries).batches(key))
    assert all(len({homes[index] for index in batch}) == 1 for batch in tokens)
    assert all(max(lengths[index] for index in batch) * len(batch) <= 100 for batch in tokens)
    assert sorted(indices(tokens)) == list(range(len(lengths)))


def test_each_bucket_with_boundaries_drops_its_last_batch() -> None:
    lengths = [1] * 10 + [5] * 7 + [9] * 3
    batches = whole(sampler(lengths, 4, buckets=[1, 5], drop_last=True).batches(0))
    assert sorted(lengths[batch[0]] for batch in batches) == [1, 1, 5]
    assert all(len(batch) == 4 for batch in batches)


# A change of one of these changes the batches of epochs that models were trained with.
BY_SIZE = {
    0: [[4976, 2493, 999, 3715, 165, 2842], [4170, 4946]],
    2**64 - 1: [[3090, 3381, 1829, 4351, 887, 3672], [2036, 388]],
}
BY_TOKENS = {
    0: [[1431, 3565, 2352, 3322, 4050], 4924],
    2**64 - 1: [[4543, 4155, 566, 1083, 3120, 1568, 4931], 4924],
}
APART = {
    0: [[2973, 768, 1603, 666, 1126, 3075], [1799, 1966, 4630, 4803, 4026, 3414]],
    2**64 - 1: [[1216, 2297, 3357, 4411, 979, 4921], [283, 3851, 3542, 1696, 2848, 2842]],
}


@pytest.mark.parametrize("key", BY_SIZE)
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, ">f4"])
def test_the_batches_never_change(key: int, dtype: Any) -> None:
    lengths = LENGTHS.astype(dtype)
    order = sampler(lengths, 6).batches(key)
    assert [order.batch(0), order.batch(833)] == BY_SIZE[key]
    order = sampler(lengths, max_tokens=500).batches(key)
    assert [order.batch(0), order.position(547)] == BY_TOKENS[key]
    order = sampler(lengths, 6, buckets=[20, 60]).batches(key)
    assert [order.batch(0), order.batch(833)] == APART[key]


def test_batch_does_not_depend_on_earlier_requests() -> None:
    order = sampler(LENGTHS, max_tokens=300).batches(4)
    forward = whole(order)
    again = sampler(LENGTHS.tolist(), max_tokens=300).batches(4)
    found: dict[int, tuple[list[int], int]] = {}

    def ask(first: int) -> None:
        for number in range(len(again) - 1 - first, -1, -4):
            found[number] = again.batch(number), again.position(number)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number][0] for number in range(len(order))] == forward
    assert [found[number][1] for number in range(len(order))] == [order.position(k) for k in range(len(order))]


def test_epochs_differ_in_batches_and_their_order() -> None:
    chosen = sampler(LENGTHS, 10)
    first, second = (whole(chosen.batches(key)) for key in (0, 1))
    assert not {frozenset(batch) for batch in first} & {frozenset(batch) for batch in second}
    tops = [max(LENGTHS[batch]) for batch in first]
    assert abs(np.corrcoef(tops, range(len(tops)))[0, 1]) < 0.15


def test_unshuffled_buckets_begin_with_the_longest() -> None:
    chosen = sampler([3, 9, 1, 9, 3, 9, 1, 9], 2, shuffle=False, buckets=[1, 3])
    assert whole(chosen.batches(0)) == whole(chosen.batches(1)) == [[1, 3], [5, 7], [0, 4], [2, 6]]
    assert list(chosen) == whole(chosen.batches(5))


def test_walking_gives_the_batches_of_random_access() -> None:
    chosen = sampler(LENGTHS, 10, generator=np.random.default_rng(0))
    first, second = list(chosen), list(chosen)
    assert first != second
    assert sorted(indices(first)) == sorted(indices(second)) == list(range(5000))
    assert len(chosen) == 500
    assert isinstance(chosen, HasBatches)


def test_attributes_are_the_arguments() -> None:
    chosen = sampler(LENGTHS, max_tokens=400, drop_last=True, buckets=[20])
    assert chosen.lengths is LENGTHS
    assert (chosen.batch_size, chosen.max_tokens, chosen.shuffle, chosen.drop_last) == (None, 400, True, True)
    assert chosen.buckets == [20]


# Padding.


def exact_share(lengths: np.ndarray, order: BatchOrder) -> float:
    batches = [lengths[batch] for batch in whole(order)]
    return 1 - sum(batch.sum() for batch in batches) / sum(batch.max() * len(batch) for batch in batches)


def log_normal(n: int) -> np.ndarray:
    return np.maximum(1, 100 * np.exp(np.random.default_rng(0).standard_normal(n))).astype(np.int32)


def test_the_share_of_padding_is_exact_for_few_batches() -> None:
    lengths = log_normal(1000)
    chosen = sampler(lengths, 16)
    assert chosen.padding_share(3) == pytest.approx(exact_share(lengths, chosen.batches(3)))
    assert sampler([7] * 50, 4).padding_share() == 0


@pytest.mark.parametrize("how", [{"batch_size": 16}, {"max_tokens": 12_000}])
def test_the_share_of_padding_is_estimated_for_many(how: Any) -> None:
    lengths = log_normal(20_000)
    chosen = sampler(lengths, **how)
    assert chosen.padding_share(3) == pytest.approx(exact_share(lengths, chosen.batches(3)), rel=0.2)


def test_buckets_keep_padding_low() -> None:
    lengths = log_normal(20_000)
    assert exact_share(lengths, sampler(lengths, 32, buckets=1).batches(0)) > 0.75
    assert exact_share(lengths, sampler(lengths, 32).batches(0)) < 0.07
    tokens = sampler(lengths, max_tokens=12_000)
    assert exact_share(lengths, tokens.batches(0)) < 0.07
    assert lengths.sum() / (12_000 * len(tokens)) > 0.85  # of the budget is used


def test_much_padding_is_warned_of() -> None:
    lengths = log_normal(2000)
    with pytest.warns(
        StokerWarning,
        match=r"81% of an epoch is padding: 2000 samples with lengths from 2 to 2145, batch_size=32, buckets used: 1\. "
        r".* make more buckets \(buckets=\), make batches smaller",
    ) as told:
        BucketBatchSampler(lengths, 32, buckets=1)
    assert len(told) == 1
    assert told[0].filename == __file__
    BucketBatchSampler(lengths, 32)  # and nothing is told: warnings are errors here


# Bad input.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give exactly one of batch_size and max_tokens, but got neither"),
        ({"batch_size": 4, "max_tokens": 9}, "batch_size and max_tokens, but got batch_size=4 and max_tokens=9"),
        ({"batch_size": 0}, "batch_size should be a positive integer value, but got batch_size=0"),
        ({"batch_size": 2.0}, "batch_size should be a positive integer value"),
        ({"max_tokens": -1}, "max_tokens should be a positive number, but got max_tokens=-1"),
        ({"max_tokens": float("nan")}, "max_tokens should be a positive number"),
        ({"max_tokens": 50}, r"lengths\[\d+\] is \d+, above max_tokens=50.*the greatest length is 99"),
        ({"batch_size": 4, "shuffle": 1}, "shuffle should be a boolean value"),
        ({"batch_size": 4, "drop_last": None}, "drop_last should be a boolean value"),
        ({"batch_size": 4, "buckets": 0}, "buckets should be a positive integer value, but got buckets=0"),
        ({"batch_size": 4, "buckets": [30, 20]}, r"boundaries should ascend, but buckets\[0\] is 30"),
        ({"batch_size": 4, "buckets": [1, 2]}, r"\[1, 2\] put all samples into one bucket: lengths are from 3 to 99"),
        ({"batch_size": 4, "buckets": [500]}, r"the boundaries \[500\] put all samples into one bucket"),
        ({"batch_size": 5001, "drop_last": True}, "no batch is left: 5000 samples do not fill one"),
    ],
)
def test_bad_options(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BucketBatchSampler(LENGTHS, **options)


def test_batch_out_of_range_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="there is no batch 3: the epoch has 3"):
        sampler([1] * 9, 3).batches(0).batch(3)
