"""Which worker does which unit. What random interleavings keep is in `test_interleavings.py`."""

from __future__ import annotations

from stoker._supervision.dispatch import SLOW_UNIT, Dispatch


def started(workers: int) -> Dispatch:
    dispatch = Dispatch(workers)
    for worker in range(workers):
        dispatch.joined(worker)
    return dispatch


def test_free_units_go_out_in_order_to_whoever_is_free() -> None:
    dispatch = started(2)
    for unit in range(4):
        dispatch.submitted(unit, None)
    assert dispatch.hand_out() == [(0, 0), (1, 1)]
    dispatch.answered(1, 1, SLOW_UNIT * 2)
    assert dispatch.hand_out() == [(1, 2)]


def test_a_worker_of_cheap_units_holds_two() -> None:
    dispatch = started(1)
    for unit in range(4):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    dispatch.answered(0, 0, SLOW_UNIT / 2)
    assert dispatch.hand_out() == [(0, 1), (0, 2)]


def test_a_bound_unit_waits_for_its_worker() -> None:
    dispatch = started(2)
    dispatch.submitted(0, 1)
    dispatch.submitted(1, 1)
    assert dispatch.hand_out() == [(1, 0)]
    assert dispatch.outstanding == [0, 1]


def test_a_death_names_what_was_held_and_nothing_else() -> None:
    dispatch = started(2)
    for unit in range(3):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    assert dispatch.died(0) == [0]
    assert dispatch.outstanding == [1, 2]
    assert dispatch.hand_out() == []


def test_what_a_dead_worker_held_comes_before_all_later_units() -> None:
    dispatch = started(2)
    for unit in range(5):
        dispatch.submitted(unit, 1 if unit == 1 else None)
    assert dispatch.hand_out() == [(0, 0), (1, 1)]
    dispatch.requeued(dispatch.died(0) + dispatch.died(1))
    dispatch.joined(0)
    assert dispatch.hand_out() == [(0, 0)]
    dispatch.answered(0, 0, SLOW_UNIT * 2)
    assert dispatch.hand_out() == [(0, 2)]  # the first one is bound to the other
    dispatch.joined(1)
    assert dispatch.hand_out() == [(1, 1)]


def test_an_earlier_unit_never_waits_behind_a_later_one() -> None:
    """Which may itself wait for the earlier one to have its memory."""
    dispatch = started(2)
    for unit in range(3):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    dispatch.answered(1, 1, SLOW_UNIT / 2)  # from now on each may hold two
    assert dispatch.hand_out() == [(1, 2)]
    dispatch.requeued(dispatch.died(0))
    assert dispatch.hand_out() == []
    dispatch.joined(0)
    assert dispatch.hand_out() == [(0, 0)]


def test_dropping_keeps_what_was_begun() -> None:
    dispatch = started(1)
    for unit in range(4):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    assert dispatch.dropped(3) == [1, 2]
    assert dispatch.outstanding == [0, 3]


def test_who_retires_gets_no_more_and_answers_what_it_holds() -> None:
    dispatch = started(2)
    for unit in range(4):
        dispatch.submitted(unit, None)
    assert dispatch.hand_out() == [(0, 0), (1, 1)]
    dispatch.retires(0)
    assert dispatch.held(0) == [0]
    dispatch.answered(0, 0, SLOW_UNIT * 2)
    assert dispatch.hand_out() == [] and dispatch.held(0) == []
    assert dispatch.died(0) == []
    dispatch.joined(0)
    assert dispatch.hand_out() == [(0, 2)]


def test_units_that_are_bound_to_one_that_retires_wait_for_who_takes_its_place() -> None:
    dispatch = started(2)
    dispatch.retires(1)
    dispatch.submitted(0, 1)
    assert dispatch.hand_out() == [] and dispatch.outstanding == [0]
    dispatch.joined(1)
    assert dispatch.hand_out() == [(1, 0)]


def test_one_that_dies_while_it_retires_loses_what_it_held() -> None:
    dispatch = started(1)
    dispatch.submitted(0, None)
    dispatch.hand_out()
    dispatch.retires(0)
    dispatch.requeued(dispatch.died(0))
    dispatch.joined(0)
    assert dispatch.hand_out() == [(0, 0)]
