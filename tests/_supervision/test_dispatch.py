"""Which worker does which unit. What random interleavings keep is in `test_interleavings.py`."""

from __future__ import annotations

from stoker._supervision.cut import AT_FIRST, LARGE, WORTH, Cut
from stoker._supervision.dispatch import SLOW_UNIT, Dispatch, Run


def started(workers: int) -> Dispatch:
    dispatch = Dispatch(workers)
    for worker in range(workers):
        dispatch.joined(worker)
    return dispatch


def units(handed_out: list[tuple[int, Run]]) -> list[tuple[int, int]]:
    """(worker, unit) pairs, of whole units."""
    assert not any(run.is_part for _, run in handed_out)
    return [(worker, run.unit) for worker, run in handed_out]


def test_free_units_go_out_in_order_to_whoever_is_free() -> None:
    dispatch = started(2)
    for unit in range(4):
        dispatch.submitted(unit, None)
    assert units(dispatch.hand_out()) == [(0, 0), (1, 1)]
    dispatch.answered(1, Run(1), SLOW_UNIT * 2)
    assert units(dispatch.hand_out()) == [(1, 2)]


def test_a_worker_of_cheap_units_holds_two() -> None:
    dispatch = started(1)
    for unit in range(4):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    dispatch.answered(0, Run(0), SLOW_UNIT / 2)
    assert units(dispatch.hand_out()) == [(0, 1), (0, 2)]


def test_workers_that_come_later_are_handed_units_when_they_have_joined() -> None:
    dispatch = started(1)
    for unit in range(4):
        dispatch.submitted(unit, None)
    assert units(dispatch.hand_out()) == [(0, 0)]
    dispatch.grow(3)
    assert units(dispatch.hand_out()) == []
    dispatch.joined(2)
    assert units(dispatch.hand_out()) == [(2, 1)]
    dispatch.grow(2)
    dispatch.joined(1)
    assert units(dispatch.hand_out()) == [(1, 2)]
    assert dispatch.died(2) == [Run(1)]


def test_a_bound_unit_waits_for_its_worker() -> None:
    dispatch = started(2)
    dispatch.submitted(0, 1)
    dispatch.submitted(1, 1)
    assert units(dispatch.hand_out()) == [(1, 0)]
    assert dispatch.outstanding == [0, 1]


def test_a_death_names_what_was_held_and_nothing_else() -> None:
    dispatch = started(2)
    for unit in range(3):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    assert dispatch.died(0) == [Run(0)]
    assert dispatch.outstanding == [1, 2]
    assert dispatch.hand_out() == []


def test_what_a_dead_worker_held_comes_before_all_later_units() -> None:
    dispatch = started(2)
    for unit in range(5):
        dispatch.submitted(unit, 1 if unit == 1 else None)
    assert units(dispatch.hand_out()) == [(0, 0), (1, 1)]
    dispatch.requeued([run.unit for run in dispatch.died(0) + dispatch.died(1)])
    dispatch.joined(0)
    assert units(dispatch.hand_out()) == [(0, 0)]
    dispatch.answered(0, Run(0), SLOW_UNIT * 2)
    assert units(dispatch.hand_out()) == [(0, 2)]  # the first one is bound to the other
    dispatch.joined(1)
    assert units(dispatch.hand_out()) == [(1, 1)]


def test_an_earlier_unit_never_waits_behind_a_later_one() -> None:
    """Which may itself wait for the earlier one to have its memory."""
    dispatch = started(2)
    for unit in range(3):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    dispatch.answered(1, Run(1), SLOW_UNIT / 2)  # from now on each may hold two
    assert units(dispatch.hand_out()) == [(1, 2)]
    dispatch.requeued([run.unit for run in dispatch.died(0)])
    assert dispatch.hand_out() == []
    dispatch.joined(0)
    assert units(dispatch.hand_out()) == [(0, 0)]


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
    assert units(dispatch.hand_out()) == [(0, 0), (1, 1)]
    dispatch.retires(0)
    assert dispatch.held(0) == [Run(0)]
    dispatch.answered(0, Run(0), SLOW_UNIT * 2)
    assert dispatch.hand_out() == [] and dispatch.held(0) == []
    assert dispatch.died(0) == []
    dispatch.joined(0)
    assert units(dispatch.hand_out()) == [(0, 2)]


def test_units_that_are_bound_to_one_that_retires_wait_for_who_takes_its_place() -> None:
    dispatch = started(2)
    dispatch.retires(1)
    dispatch.submitted(0, 1)
    assert dispatch.hand_out() == [] and dispatch.outstanding == [0]
    dispatch.joined(1)
    assert units(dispatch.hand_out()) == [(1, 0)]


def test_one_that_dies_while_it_retires_loses_what_it_held() -> None:
    dispatch = started(1)
    dispatch.submitted(0, None)
    dispatch.hand_out()
    dispatch.retires(0)
    dispatch.requeued([run.unit for run in dispatch.died(0)])
    dispatch.joined(0)
    assert units(dispatch.hand_out()) == [(0, 0)]


def shared(workers: int, rows: int) -> Dispatch:
    """One in which a row takes so long that units of these rows are shared."""
    cut = Cut(workers)
    cut.learned(1, 2 * WORTH / rows)
    dispatch = Dispatch(workers, cut)
    for worker in range(workers):
        dispatch.joined(worker)
    return dispatch


def test_a_slow_unit_is_shared_and_the_next_begun_when_it_is_handed_out() -> None:
    dispatch = shared(2, 8)
    dispatch.submitted(0, None, 8)
    dispatch.submitted(1, None, 8)
    assert dispatch.hand_out() == [(0, Run(0, 0, 4)), (1, Run(0, 4, 8))]
    dispatch.answered(1, Run(0, 4, 8), WORTH)
    assert dispatch.hand_out() == [(1, Run(1, 0, 4))]
    assert dispatch.outstanding == [0, 1]
    dispatch.answered(0, Run(0, 0, 4), WORTH)
    dispatch.done(0)
    assert dispatch.outstanding == [1]


def test_who_has_a_part_has_nothing_else() -> None:
    """If its unit has to be made again, there must be somebody who does not wait for memory behind it."""
    dispatch = shared(2, 8)
    for unit in range(3):
        dispatch.submitted(unit, None, 8 if unit else 0)
    assert dispatch.hand_out() == [(0, Run(0)), (1, Run(1, 0, 4))]
    dispatch.answered(0, Run(0), SLOW_UNIT / 2)  # from now on each may hold two
    assert dispatch.hand_out() == [(0, Run(1, 4, 8))]
    assert dispatch.held(1) == [Run(1, 0, 4)]
    dispatch.answered(0, Run(1, 4, 8), SLOW_UNIT / 2)
    assert dispatch.hand_out() == [(0, Run(2, 0, 4))]


def test_units_that_may_not_be_shared_are_whole() -> None:
    dispatch = shared(2, 8)
    dispatch.submitted(0, None)
    assert dispatch.hand_out() == [(0, Run(0))]


def test_without_a_cut_nothing_is_shared() -> None:
    dispatch = started(2)
    dispatch.submitted(0, None, 64)
    assert dispatch.hand_out() == [(0, Run(0))]


def test_the_rest_of_a_unit_goes_out_at_once_when_rows_are_seen_to_be_cheap() -> None:
    cut = Cut(2)
    dispatch = Dispatch(2, cut)
    dispatch.joined(0)
    dispatch.submitted(0, None, LARGE)
    dispatch.submitted(1, None, LARGE)
    assert dispatch.hand_out() == [(0, Run(0, 0, AT_FIRST))]
    dispatch.answered(0, Run(0, 0, AT_FIRST), SLOW_UNIT * 2)
    cut.learned(AT_FIRST, 1e-6)
    assert dispatch.hand_out() == [(0, Run(0, AT_FIRST, LARGE))]
    dispatch.joined(1)
    assert dispatch.hand_out() == [(1, Run(1))]


def test_a_unit_that_is_withdrawn_comes_back_whole_and_in_its_place() -> None:
    dispatch = shared(2, 64)
    dispatch.submitted(0, None, 64)
    dispatch.submitted(1, None, 64)
    dispatch.retires(1)
    ((_, run),) = dispatch.hand_out()
    assert run.is_part and run.last < 64
    dispatch.withdrawn(0)
    assert dispatch.outstanding == [0, 1]  # a worker has a part of it in hand
    dispatch.answered(0, run, SLOW_UNIT * 2)
    dispatch.requeued([0])
    assert dispatch.hand_out() == [(0, Run(0))]


def test_what_is_left_of_a_unit_that_is_dropped_is_not_handed_out() -> None:
    dispatch = shared(2, 64)
    dispatch.submitted(0, None, 64)
    dispatch.submitted(1, None, 64)
    dispatch.retires(1)
    ((_, run),) = dispatch.hand_out()
    assert dispatch.dropped(2) == [1]  # nobody had begun it; of the other a worker has a part
    assert dispatch.died(0) == [run]
    assert dispatch.outstanding == []


def test_whoever_begins_units_ahead_holds_several_also_slow_ones() -> None:
    dispatch = Dispatch(2, at_once=3)
    dispatch.joined(0)
    dispatch.joined(1)
    for unit in range(8):
        dispatch.submitted(unit, None)
    assert units(dispatch.hand_out()) == [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (1, 5)]
    dispatch.answered(0, Run(0), SLOW_UNIT * 2)
    assert units(dispatch.hand_out()) == [(0, 6)]
    assert dispatch.is_slow


def test_who_has_nothing_begins_if_it_is_admitted_and_nobody_else_once_one_is_not() -> None:
    dispatch = started(4)
    for unit in range(6):
        dispatch.submitted(unit, None)
    asked = []

    def admits(worker: int, unit: int) -> bool:
        asked.append((worker, unit))
        return unit < 2

    assert units(dispatch.hand_out(admits)) == [(0, 0), (1, 1)]
    assert asked == [(0, 0), (1, 1), (2, 2)]
    assert units(dispatch.hand_out()) == [(2, 2), (3, 3)]


def test_who_is_not_admitted_holds_up_nobody_who_works() -> None:
    dispatch = started(2)
    for unit in range(4):
        dispatch.submitted(unit, None)
    assert units(dispatch.hand_out(lambda worker, unit: unit < 1)) == [(0, 0)]
    dispatch.answered(0, Run(0), SLOW_UNIT / 2)
    # It is idle and admitted, and may have a second one: the first that waits is asked for, once
    assert units(dispatch.hand_out(lambda worker, unit: unit < 2)) == [(0, 1), (0, 2)]


def test_of_those_who_could_begin_the_earliest_unit_is_asked_for_first() -> None:
    dispatch = started(3)
    for unit, worker in enumerate((2, 0, 1)):
        dispatch.submitted(unit, worker)
    assert units(dispatch.hand_out(lambda worker, unit: unit < 2)) == [(2, 0), (0, 1)]


def test_a_unit_that_is_refused_is_over() -> None:
    dispatch = started(2)
    for unit, worker in enumerate((None, 1, None)):
        dispatch.submitted(unit, worker)
    dispatch.refused(0)
    dispatch.refused(1)
    assert units(dispatch.hand_out()) == [(0, 2)]
    assert dispatch.outstanding == [2]


def test_who_is_handed_no_more_is_busy_until_it_has_answered() -> None:
    dispatch = started(2)
    dispatch.submitted(0, 1)
    assert dispatch.busy == []
    dispatch.hand_out()
    dispatch.retires(1)
    assert (dispatch.alive, dispatch.busy) == ([0], [1])
    dispatch.answered(1, Run(0), SLOW_UNIT)
    assert dispatch.busy == []
