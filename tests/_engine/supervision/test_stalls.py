"""Stalls are reported once, never for waits on another worker, and blamed the second time."""

from __future__ import annotations

import pytest

from stoker._engine.supervision.rules import Stall, Stalls

AFTER = 10.0


@pytest.fixture
def stalls() -> Stalls:
    return Stalls(AFTER)


@pytest.mark.parametrize("never", [None, 0, 0.0])
def test_stalls_are_not_watched_without_a_limit(never: float | None) -> None:
    stalls = Stalls(never)
    stalls.works_on(0, 1, 0.0)
    assert stalls.due(1e9) == [] and stalls.next_look(1e9) is None


def test_unit_that_takes_too_long_is_reported_once(stalls: Stalls) -> None:
    stalls.works_on(2, 7, 100.0)
    assert stalls.due(109.9) == []
    assert stalls.due(110.0) == [Stall(2, 7, 10.0)]
    assert stalls.due(500.0) == []
    assert stalls.next_look(500.0) is None


def test_each_worker_has_its_own_time(stalls: Stalls) -> None:
    stalls.works_on(0, 5, 0.0)
    stalls.works_on(1, 6, 4.0)
    assert stalls.next_look(3.0) == 7.0
    assert stalls.due(11.0) == [Stall(0, 5, 11.0)]
    assert stalls.next_look(11.0) == 3.0
    assert stalls.due(15.0) == [Stall(1, 6, 11.0)]


def test_repeated_announcement_does_not_restart_the_clock(stalls: Stalls) -> None:
    stalls.works_on(0, 5, 0.0)
    stalls.works_on(0, 5, 9.0)
    assert stalls.due(10.0) == [Stall(0, 5, 10.0)]


def test_a_unit_that_is_done_is_watched_no_more(stalls: Stalls) -> None:
    stalls.works_on(0, 5, 0.0)
    stalls.answered(5)
    stalls.works_on(0, 6, 9.0)
    assert stalls.due(18.0) == []
    stalls.works_on(0, None, 18.0)
    assert stalls.due(1e9) == [] and stalls.next_look(0.0) is None


def test_clock_of_a_stall_restarts_after_a_wait(stalls: Stalls) -> None:
    stalls.works_on(0, 5, 0.0)
    stalls.works_on(0, None, 9.0)
    assert stalls.due(1e6) == []
    stalls.works_on(0, 5, 1e6)
    assert stalls.due(1e6 + 9) == []
    assert stalls.due(1e6 + 10) == [Stall(0, 5, 10.0)]


def test_a_look_that_is_late_is_due_at_once(stalls: Stalls) -> None:
    stalls.works_on(0, 5, 0.0)
    assert stalls.next_look(99.0) == 0.0


def test_time_in_which_all_were_frozen_does_not_count(stalls: Stalls) -> None:
    stalls.works_on(0, 5, 0.0)
    stalls.forgive(60.0)
    assert stalls.due(69.0) == []
    assert stalls.next_look(69.0) == 1.0
    assert stalls.due(70.0) == [Stall(0, 5, 10.0)]


def test_a_place_is_guilty_the_second_time(stalls: Stalls) -> None:
    assert [stalls.ended(7, 4) for _ in range(2)] == [False, True]


def test_a_sample_may_be_guilty_again_and_any_other_place_once() -> None:
    stalls = Stalls(AFTER)
    assert [stalls.ended(7, 4) for _ in range(4)] == [False, True, True, True]
    assert [stalls.ended(7, -4) for _ in range(4)] == [False, True, False, False]


def test_stall_without_a_place_blames_none_and_is_repeated() -> None:
    stalls = Stalls(AFTER)
    for number in range(4):
        stalls.works_on(0, 7, 0.0)
        assert stalls.due(AFTER) == [Stall(0, 7, AFTER)], number
        assert not stalls.ended(7, None)


def test_known_stall_is_of_one_unit_and_place(stalls: Stalls) -> None:
    assert [stalls.ended(unit, place) for unit, place in [(7, 4), (7, 5), (8, 4), (8, 5)]] == [False] * 4


def test_stalled_unit_is_reported_again_by_its_next_worker(stalls: Stalls) -> None:
    stalls.works_on(0, 7, 0.0)
    assert stalls.due(10.0)
    stalls.ended(7, 4)
    stalls.works_on(0, None, 10.0)
    stalls.works_on(1, 7, 11.0)
    assert stalls.due(21.0) == [Stall(1, 7, 10.0)]


def test_stalled_unit_that_was_answered_is_no_suspect(stalls: Stalls) -> None:
    stalls.ended(7, 4)
    stalls.answered(7)
    assert not stalls.ended(7, 4)
