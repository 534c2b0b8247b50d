"""Which workers are to be replaced before they do harm."""

from __future__ import annotations

from stoker._engine.supervision.rules import RecyclingPolicy

MIB = 1 << 20


def test_no_worker_retires_without_a_limit() -> None:
    retirement = RecyclingPolicy(None, None)
    retirement.born(0)
    retirement.count_samples(0, 10**9)
    retirement.has(0, 0)
    retirement.has(0, 1 << 60)
    assert retirement.reason(0) is None


def test_after_so_many_samples() -> None:
    retirement = RecyclingPolicy(100, None)
    retirement.born(0)
    retirement.born(1)
    retirement.count_samples(0, 60)
    retirement.count_samples(1, 99)
    assert retirement.reason(0) is retirement.reason(1) is None
    retirement.count_samples(0, 60)
    assert retirement.reason(0) == "it has made 120 samples (max_samples_per_worker=100)"
    assert retirement.reason(1) is None


def test_growth_is_reckoned_from_the_first_look() -> None:
    retirement = RecyclingPolicy(None, 100 * MIB)
    retirement.born(0)
    retirement.has(0, 900 * MIB)  # what it was born with is the dataset
    retirement.has(0, 1000 * MIB)
    assert retirement.reason(0) is None
    retirement.has(0, 1001 * MIB)
    reason = retirement.reason(0)
    assert reason is not None and "grown by 101 MiB, and 100 are allowed" in reason and "memory_budget" in reason


def test_a_worker_that_shrinks_again_may_stay() -> None:
    retirement = RecyclingPolicy(None, 100 * MIB)
    retirement.born(0)
    for size in (0, 150 * MIB, 50 * MIB):
        retirement.has(0, size)
    assert retirement.reason(0) is None


def test_replacement_of_a_retired_worker_counts_from_zero() -> None:
    retirement = RecyclingPolicy(10, 100 * MIB)
    retirement.born(0)
    retirement.count_samples(0, 10)
    retirement.has(0, 0)
    retirement.has(0, 200 * MIB)
    retirement.born(0)
    assert retirement.reason(0) is None
    retirement.has(0, 200 * MIB)
    retirement.has(0, 250 * MIB)
    assert retirement.reason(0) is None
