from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.samplers import by_length as module
from stoker.samplers.by_length import (
    ByLength,
    checked_boundaries,
    checked_lengths,
    chosen_boundaries,
    some_sorted,
)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 63, 64, 65, 1000])
@pytest.mark.parametrize("block", [8, 1024])
def test_samples_are_found_without_an_index(n: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    monkeypatch.setattr(module, "_AT_ONCE", 4 * block)
    lengths = np.arange(n) * 7919 % 50 + 1
    boundaries = np.array([5, 6, 30])
    found = ByLength(lengths, boundaries)
    for bucket in range(4):
        expected = np.flatnonzero(np.searchsorted(boundaries, lengths) == bucket)
        assert found.counts[bucket] == len(expected)
        places = np.arange(len(expected))[::-1]
        assert found.samples(bucket, places).tolist() == expected[places].tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, ">i4", np.uint64, np.float16, np.float32, np.float64])
def test_any_kind_of_numbers_will_do(dtype: Any) -> None:
    lengths = (np.arange(3000) % 40 + 1).astype(dtype)
    expected = np.flatnonzero((lengths > 10) & (lengths <= 20)).tolist()
    for boundaries in (np.array([10, 20], dtype), np.array([10, 20]), np.array([10.5, 20.25])):
        found = ByLength(lengths, boundaries)
        assert found.samples(1, np.arange(found.counts[1])).tolist() == expected
    chosen = chosen_boundaries(some_sorted(lengths), 8)
    assert chosen.dtype == dtype
    assert np.bincount(np.searchsorted(chosen, lengths)).min() > 150


def test_a_boundary_that_a_length_rounds_to_is_compared_exactly() -> None:
    lengths = np.array([0.1, 0.2, 0.05], np.float32)  # the first is a little above 0.1
    found = ByLength(lengths, np.array([0.1]))
    assert found.counts.tolist() == [1, 2]
    assert found.samples(1, np.arange(2)).tolist() == [0, 1]


def test_lengths_are_not_copied(tmp_path: Path) -> None:
    n = 2_000_000
    lengths = np.memmap(tmp_path / "lengths", np.int32, "w+", shape=n)
    lengths[:] = np.arange(n) % 1000 + 1
    tracemalloc.start()
    given = checked_lengths(lengths, None)
    found = ByLength(given, chosen_boundaries(some_sorted(given), 64))
    found.samples(5, np.arange(100))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.shares_memory(given, lengths)
    assert kept < 0.4 * n
    assert peak < 20 << 20
    strided = lengths[::2]
    assert np.shares_memory(ByLength(strided, np.array([500]))._rows, strided)


def test_boundaries_weigh_samples_and_tokens() -> None:
    flat = chosen_boundaries(np.arange(1, 1001), 4)
    assert 375 < flat[0] < 450  # a quarter of the samples ends at 250, a quarter of the tokens at 500
    tail = np.array([10] * 900 + [1000] * 50 + [2000] * 50)
    assert chosen_boundaries(tail, 4).tolist() == [10, 1000, 2000]
    assert chosen_boundaries(np.full(100, 7), 9).tolist() == [7]
    assert chosen_boundaries(np.arange(1, 1001), 1).tolist() == []


def test_probed_lengths_come_from_the_whole_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    assert some_sorted(np.array([3, 1, 2])).tolist() == [1, 2, 3]
    monkeypatch.setattr(module, "_SAMPLE", 100)
    some = some_sorted(np.arange(100_000, 0, -1))
    assert len(some) == 100
    assert some.min() < 5000
    assert some.max() > 95_000
    assert (np.diff(some) > 0).all()


@pytest.mark.parametrize(
    ("lengths", "limit", "message"),
    [
        ([], None, r"lengths should be in one dimension, one for each sample, but have shape \(0,\)"),
        ([[1, 2]], None, r"have shape \(1, 2\)"),
        ([4, 3, -2, 5], None, r"positive and finite, but lengths\[2\] is -2: leave out samples that are empty"),
        ([4, 0], None, r"lengths\[1\] is 0"),
        ([4.0, float("nan")], None, r"lengths\[1\] is nan"),
        ([float("inf")], None, r"lengths\[0\] is inf"),
        ([4, 9, 12, 3], 8, r"lengths\[1\] is 9, above max_tokens=8, .* \(the greatest length is 12\)"),
        ([0.5, 2.5], 2, r"lengths\[1\] is 2.5, above max_tokens=2"),
    ],
)
def test_bad_lengths(lengths: Any, limit: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_lengths(lengths, limit)


@pytest.mark.parametrize("lengths", [["a"], [True, False], [1 + 2j], [None]])
def test_lengths_that_are_no_numbers(lengths: Any) -> None:
    with pytest.raises(TypeError, match="lengths should be integers or floats, but are of dtype"):
        checked_lengths(lengths, None)


def test_the_index_of_a_bad_length_counts_earlier_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 4)
    with pytest.raises(ValueError, match=r"lengths\[9\] is 0"):
        checked_lengths([1] * 9 + [0], None)


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        ([5, 3], r"boundaries should ascend, but buckets\[0\] is 5 and then comes 3"),
        ([1, 2, 2], r"buckets\[1\] is 2 and then comes 2"),
        ([1.0, float("nan")], r"then comes nan"),
        ([], "a number of buckets or a list of boundaries, but got"),
        ([[1, 2]], "a number of buckets or a list of boundaries, but got"),
        (["a"], "a number of buckets or a list of boundaries, but got"),
    ],
)
def test_bad_boundaries(boundaries: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_boundaries(boundaries)


def test_more_buckets_than_lengths_cost_no_padding() -> None:
    """Their number times the weights needs more than 64 bits."""
    lengths = np.arange(1, 65537)
    assert len(chosen_boundaries(lengths, 10**6)) > 0.6 * len(lengths)
