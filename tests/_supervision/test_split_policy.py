"""How many rows one worker is handed."""

from __future__ import annotations

import pytest

from stoker._supervision.split_policy import AT_FIRST, LARGE, LONGEST, PATIENCE, SHORTEST, WORTH, SplitPolicy


def shares(cut: SplitPolicy, rows: int) -> list[int]:
    """The parts into which a unit falls."""
    left, parts = rows, []
    while left:
        parts.append(cut.share(rows, left))
        left -= parts[-1]
    return parts


def test_a_large_unit_is_shared_before_anything_is_known() -> None:
    cut = SplitPolicy(2)
    assert shares(cut, LARGE) == [AT_FIRST] * (LARGE // AT_FIRST)
    assert shares(cut, LARGE - 1) == [LARGE - 1]


def test_cheap_batches_are_not_split() -> None:
    cut = SplitPolicy(2)
    cut.learned(4, 4 * WORTH / 65)
    assert shares(cut, 64) == [64]


@pytest.mark.parametrize("workers", [2, 3, 16])
@pytest.mark.parametrize("rows", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("seconds", [1e-5, 1e-4, 1e-3, 0.02, 3.0])
def test_parts_of_a_unit_are_neither_tiny_nor_long(workers: int, rows: int, seconds: float) -> None:
    cut = SplitPolicy(workers)
    cut.learned(1, seconds)
    parts = shares(cut, rows)
    assert sum(parts) == rows and all(part > 0 for part in parts)
    if rows * seconds < WORTH:
        assert len(parts) == 1
    for part in parts[:-1]:
        assert part * seconds >= SHORTEST
        assert part == 1 or part * seconds <= max(LONGEST, SHORTEST + seconds)
        assert part <= -(-rows // workers) or part * seconds <= SHORTEST + seconds
    assert parts[-1] < parts[0] * 1.5 or len(parts) == 1


def test_one_worker_splits_no_batch() -> None:
    cut = SplitPolicy(1)
    cut.learned(1, 1.0)
    assert shares(cut, 64) == [64]


def test_units_without_rows_are_whole() -> None:
    cut = SplitPolicy(2)
    cut.learned(1, 1.0)
    assert cut.share(0, 0) == 0


def test_unsplittable_batches_are_not_tried_again() -> None:
    cut = SplitPolicy(2)
    cut.learned(1, 1.0)
    cut.in_vain(for_good=True)
    assert shares(cut, 64) == [64]


def test_splitting_is_given_up_where_most_units_fail() -> None:
    cut = SplitPolicy(2)
    cut.learned(1, 1.0)
    for _ in range(PATIENCE + 2):
        cut.shared()
    for _ in range(PATIENCE + 2):
        cut.in_vain(for_good=False)
        assert len(shares(cut, 64)) > 1
    cut.in_vain(for_good=False)
    assert shares(cut, 64) == [64]


def test_whether_units_are_shared_is_known_when_one_was() -> None:
    cut = SplitPolicy(2)
    assert cut.shares(64) is None
    cut.learned(64, 64 * WORTH)
    assert cut.shares(64) is None  # they are to be; whether they can be is not known
    assert cut.shares(1) is False
    cut.shared()
    assert cut.shares(64) is True
    cut.in_vain(for_good=True)
    assert cut.shares(64) is False and cut.gave_up


def test_cheap_batches_are_known_at_once() -> None:
    cut = SplitPolicy(2)
    cut.learned(64, WORTH / 2)
    assert cut.shares(64) is False and not cut.gave_up
    assert SplitPolicy(1).shares(64) is False


def test_row_time_of_an_earlier_epoch_is_used() -> None:
    assert shares(SplitPolicy(2, 2 * WORTH / 64), 64) == [32, 32]
    assert shares(SplitPolicy(2, WORTH / 65), 64) == [64]


def test_the_cost_follows_what_is_seen() -> None:
    cut = SplitPolicy(2)
    cut.learned(1, 10.0)  # the first sample imported something
    for _ in range(20):
        cut.learned(64, 64e-6)
    assert shares(cut, 64) == [64]
