"""How many rows one worker is handed."""

from __future__ import annotations

import pytest

from stoker._engine.supervision.split_policy import (
    AT_FIRST,
    BETWEEN,
    COMPARISONS,
    DEARER,
    LARGE,
    LONGEST,
    PATIENCE,
    SHORTEST,
    WORTH,
    SplitPolicy,
    is_trial,
)


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


def compared(cut: SplitPolicy, ratio: float, times: int = 1, waits: bool = False, late: float = 1.0) -> int:
    """Compares whole units with parts whose rows cost `ratio` times as much: processor time, or time if samples wait.
    The time of parts is `late` times as long for another reason.
    """
    for _ in range(times):
        for is_part, cost in ((True, ratio * (1 + 1e-9)), (True, ratio * (1 + 1e-9)), (False, 1.0)):
            rows = 8 if is_part else 64
            cut.spent(is_part, rows, rows * cost * (late if is_part else 1.0), rows * (0.01 if waits else cost))
    return cut.dearer


@pytest.mark.parametrize("waits", [False, True])
def test_parts_that_cost_more_in_three_comparisons(waits: bool) -> None:
    cut = SplitPolicy(2, 1.0)
    assert [compared(cut, DEARER, waits=waits) for _ in range(4)] == [1, 2, COMPARISONS, COMPARISONS]
    assert compared(cut, 0.1, 100) == COMPARISONS  # it is decided
    assert compared(SplitPolicy(2, 1.0), 0.99 * DEARER, 10, waits) == 0


def test_comparison_in_favour_of_parts_begins_anew() -> None:
    cut = SplitPolicy(2, 1.0)
    assert compared(cut, DEARER, COMPARISONS - 1) == COMPARISONS - 1
    assert compared(cut, 0.5) == 0


def test_comparisons_of_an_earlier_epoch_count() -> None:
    assert compared(SplitPolicy(2, 1.0, COMPARISONS - 1), 2 * DEARER) == COMPARISONS


def test_busy_machine_does_not_make_parts_dear() -> None:
    assert compared(SplitPolicy(2, 1.0), 1.0, 10, late=5.0) == 0


def test_only_units_that_would_be_split_are_compared() -> None:
    assert compared(SplitPolicy(2, WORTH / 1000), 10.0, 10) == 0  # they are cheap
    assert compared(SplitPolicy(1, 1.0), 10.0, 10) == 0
    cut = SplitPolicy(2, 1.0)
    cut.spent(False, 64, 64.0, 64.0)  # nothing to compare with
    cut.spent(True, 8, 80.0, 80.0)
    assert cut.dearer == 0


def test_few_ascending_units_are_trials() -> None:
    for workers in (2, 4):
        every = BETWEEN * (workers - 1)
        numbers = range(3 * every)
        assert [number for number in numbers if is_trial(number, workers, 0)] == [0, 1, every, 2 * every]
    assert [number for number in range(9) if is_trial(number, 2, 1)] == [0, 1, 2, 4, 6, 8]
