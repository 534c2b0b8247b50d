"""Which worker does which unit. What random interleavings keep is in `test_interleavings.py`."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker._engine.supervision.dispatch import SLOW_UNIT, Assignment, Dispatch
from stoker._engine.supervision.split_policy import AT_FIRST, LARGE, WORTH, SplitPolicy
from tests._engine.supervision.every_worker import DispatchByAll


def started(workers: int) -> Dispatch:
    dispatch = Dispatch(workers)
    for worker in range(workers):
        dispatch.joined(worker)
    return dispatch


def units(handed_out: list[tuple[int, Assignment]]) -> list[tuple[int, int]]:
    """(worker, unit) pairs, of whole units."""
    assert not any(run.is_part for _, run in handed_out)
    return [(worker, run.unit) for worker, run in handed_out]


def test_free_units_go_in_order_to_free_workers() -> None:
    dispatch = started(2)
    for unit in range(4):
        dispatch.submitted(unit, None)
    assert units(dispatch.hand_out()) == [(0, 0), (1, 1)]
    dispatch.answered(1, Assignment(1), SLOW_UNIT * 2)
    assert units(dispatch.hand_out()) == [(1, 2)]


def test_a_worker_of_cheap_units_holds_two() -> None:
    dispatch = started(1)
    for unit in range(4):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    dispatch.answered(0, Assignment(0), SLOW_UNIT / 2)
    assert units(dispatch.hand_out()) == [(0, 1), (0, 2)]


def test_late_workers_get_units_once_they_have_joined() -> None:
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
    assert dispatch.died(2) == [Assignment(1)]


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
    assert dispatch.died(0) == [Assignment(0)]
    assert dispatch.outstanding == [1, 2]
    assert dispatch.hand_out() == []


def test_units_of_a_dead_worker_come_before_later_units() -> None:
    dispatch = started(2)
    for unit in range(5):
        dispatch.submitted(unit, 1 if unit == 1 else None)
    assert units(dispatch.hand_out()) == [(0, 0), (1, 1)]
    dispatch.requeued([run.unit for run in dispatch.died(0) + dispatch.died(1)])
    dispatch.joined(0)
    assert units(dispatch.hand_out()) == [(0, 0)]
    dispatch.answered(0, Assignment(0), SLOW_UNIT * 2)
    assert units(dispatch.hand_out()) == [(0, 2)]  # the first one is bound to the other
    dispatch.joined(1)
    assert units(dispatch.hand_out()) == [(1, 1)]


def test_earlier_unit_never_waits_for_a_later_one() -> None:
    """Which may itself wait for the earlier one to have its memory."""
    dispatch = started(2)
    for unit in range(3):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    dispatch.answered(1, Assignment(1), SLOW_UNIT / 2)  # from now on each may hold two
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


def test_retiring_worker_answers_its_units_and_gets_no_more() -> None:
    dispatch = started(2)
    for unit in range(4):
        dispatch.submitted(unit, None)
    assert units(dispatch.hand_out()) == [(0, 0), (1, 1)]
    dispatch.retires(0)
    assert dispatch.assignments(0) == [Assignment(0)]
    dispatch.answered(0, Assignment(0), SLOW_UNIT * 2)
    assert dispatch.hand_out() == [] and dispatch.assignments(0) == []
    assert dispatch.died(0) == []
    dispatch.joined(0)
    assert units(dispatch.hand_out()) == [(0, 2)]


def test_units_of_a_retiring_worker_wait_for_its_successor() -> None:
    dispatch = started(2)
    dispatch.retires(1)
    dispatch.submitted(0, 1)
    assert dispatch.hand_out() == [] and dispatch.outstanding == [0]
    dispatch.joined(1)
    assert units(dispatch.hand_out()) == [(1, 0)]


def test_worker_that_dies_while_retiring_loses_its_units() -> None:
    dispatch = started(1)
    dispatch.submitted(0, None)
    dispatch.hand_out()
    dispatch.retires(0)
    dispatch.requeued([run.unit for run in dispatch.died(0)])
    dispatch.joined(0)
    assert units(dispatch.hand_out()) == [(0, 0)]


def shared(workers: int, rows: int) -> Dispatch:
    """A dispatch whose rows are slow enough for units to be split."""
    cut = SplitPolicy(workers)
    cut.learned(1, 2 * WORTH / rows)
    dispatch = Dispatch(workers, cut)
    for worker in range(workers):
        dispatch.joined(worker)
    return dispatch


def test_slow_unit_is_shared_before_the_next_one_begins() -> None:
    dispatch = shared(2, 8)
    dispatch.submitted(0, None, 8)
    dispatch.submitted(1, None, 8)
    assert dispatch.hand_out() == [(0, Assignment(0, 0, 4)), (1, Assignment(0, 4, 8))]
    dispatch.answered(1, Assignment(0, 4, 8), WORTH)
    assert dispatch.hand_out() == [(1, Assignment(1, 0, 4))]
    assert dispatch.outstanding == [0, 1]
    dispatch.answered(0, Assignment(0, 0, 4), WORTH)
    dispatch.done(0)
    assert dispatch.outstanding == [1]


def test_worker_with_a_part_has_no_other_unit() -> None:
    """If its unit has to be made again, a worker must be free that does not wait for memory of a later one."""
    dispatch = shared(2, 8)
    for unit in range(3):
        dispatch.submitted(unit, None, 8 if unit else 0)
    assert dispatch.hand_out() == [(0, Assignment(0)), (1, Assignment(1, 0, 4))]
    dispatch.answered(0, Assignment(0), SLOW_UNIT / 2)  # from now on each may hold two
    assert dispatch.hand_out() == [(0, Assignment(1, 4, 8))]
    assert dispatch.assignments(1) == [Assignment(1, 0, 4)]
    dispatch.answered(0, Assignment(1, 4, 8), SLOW_UNIT / 2)
    assert dispatch.hand_out() == [(0, Assignment(2, 0, 4))]


def test_units_that_may_not_be_shared_are_whole() -> None:
    dispatch = shared(2, 8)
    dispatch.submitted(0, None)
    assert dispatch.hand_out() == [(0, Assignment(0))]


def test_units_are_not_split_without_a_split_policy() -> None:
    dispatch = started(2)
    dispatch.submitted(0, None, 64)
    assert dispatch.hand_out() == [(0, Assignment(0))]


def test_rest_of_a_unit_with_cheap_rows_goes_out_at_once() -> None:
    cut = SplitPolicy(2)
    dispatch = Dispatch(2, cut)
    dispatch.joined(0)
    dispatch.submitted(0, None, LARGE)
    dispatch.submitted(1, None, LARGE)
    assert dispatch.hand_out() == [(0, Assignment(0, 0, AT_FIRST))]
    dispatch.answered(0, Assignment(0, 0, AT_FIRST), SLOW_UNIT * 2)
    cut.learned(AT_FIRST, 1e-6)
    assert dispatch.hand_out() == [(0, Assignment(0, AT_FIRST, LARGE))]
    dispatch.joined(1)
    assert dispatch.hand_out() == [(1, Assignment(1))]


def test_withdrawn_unit_comes_back_whole_in_its_place() -> None:
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
    assert dispatch.hand_out() == [(0, Assignment(0))]


def test_rest_of_a_dropped_unit_is_not_handed_out() -> None:
    dispatch = shared(2, 64)
    dispatch.submitted(0, None, 64)
    dispatch.submitted(1, None, 64)
    dispatch.retires(1)
    ((_, run),) = dispatch.hand_out()
    assert dispatch.dropped(2) == [1]  # no worker had begun it; a worker has a part of the other
    assert dispatch.died(0) == [run]
    assert dispatch.outstanding == []


def test_worker_that_begins_ahead_holds_slow_units() -> None:
    dispatch = Dispatch(2, at_once=3)
    dispatch.joined(0)
    dispatch.joined(1)
    for unit in range(8):
        dispatch.submitted(unit, None)
    assert units(dispatch.hand_out()) == [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (1, 5)]
    dispatch.answered(0, Assignment(0), SLOW_UNIT * 2)
    assert units(dispatch.hand_out()) == [(0, 6)]
    assert dispatch.is_slow


def test_first_refused_admission_stops_all_idle_workers() -> None:
    """An idle worker begins a unit if the unit is admitted; after one refusal no other does."""
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


def test_unadmitted_worker_delays_no_busy_worker() -> None:
    dispatch = started(2)
    for unit in range(4):
        dispatch.submitted(unit, None)
    assert units(dispatch.hand_out(lambda worker, unit: unit < 1)) == [(0, 0)]
    dispatch.answered(0, Assignment(0), SLOW_UNIT / 2)
    # It is idle and admitted, and may have a second one: the first that waits is asked for, once
    assert units(dispatch.hand_out(lambda worker, unit: unit < 2)) == [(0, 1), (0, 2)]


def test_admission_is_asked_for_the_earliest_unit_first() -> None:
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


def test_retiring_worker_is_busy_until_it_has_answered() -> None:
    dispatch = started(2)
    dispatch.submitted(0, 1)
    assert dispatch.busy == set()
    dispatch.hand_out()
    dispatch.retires(1)
    assert (dispatch.alive, dispatch.busy) == ({0}, {1})
    dispatch.answered(1, Assignment(0), SLOW_UNIT)
    assert dispatch.busy == set()


@settings(max_examples=max(100, settings().max_examples))
@given(data=st.data(), workers=st.integers(1, 9), at_once=st.integers(1, 3), shares=st.booleans())
def test_decisions_are_those_of_a_look_at_all_workers(
    data: st.DataObject, workers: int, at_once: int, shares: bool
) -> None:
    """Free and bound units, whole and shared ones, deaths, retirement, growth and refused memory, in any order."""
    draw = data.draw
    policies = [SplitPolicy(workers, 1.0 if shares else None) for _ in range(2)]
    both = [Dispatch(workers, policies[0], at_once), DispatchByAll(workers, policies[1], at_once)]
    ours = both[0]
    unit, alive = 0, set(range(workers))
    for dispatch in both:
        for worker in alive:
            dispatch.joined(worker)
    for _ in range(draw(st.integers(5, 40))):
        held = [(worker, run) for worker in sorted(ours.busy) for run in ours.assignments(worker)[:1]]
        action = draw(
            st.sampled_from(["submit", "submit", "answer", "answer", "die", "join", "retire", "grow", "drop"])
        )
        if action == "submit":
            for _ in range(draw(st.integers(1, workers))):
                worker = draw(st.none() | st.integers(0, workers - 1))
                rows = draw(st.sampled_from([0, 0, 3, LARGE])) if worker is None else 0
                for dispatch in both:
                    dispatch.submitted(unit, worker, rows)
                unit += 1
        elif action == "answer" and held:
            worker, run = draw(st.sampled_from(held))
            seconds = SLOW_UNIT * draw(st.sampled_from([0.5, 2]))
            for dispatch in both:
                dispatch.answered(worker, run, seconds)
        elif action == "die" and alive:
            worker = draw(st.sampled_from(sorted(alive)))
            alive.remove(worker)
            for dispatch in both:
                dispatch.requeued([run.unit for run in dispatch.died(worker) if not run.is_part])
        elif action == "join":
            alive.add(worker := draw(st.integers(0, workers - 1)))
            for dispatch in both:
                dispatch.joined(worker)
        elif action == "retire" and alive:
            worker = draw(st.sampled_from(sorted(alive)))
            for dispatch in both:
                dispatch.retires(worker)
        elif action == "grow":
            workers += 1
            for dispatch in both:
                dispatch.grow(workers)
        elif action == "drop":
            before = draw(st.integers(0, unit))
            assert ours.dropped(before) == both[1].dropped(before)
        most = draw(st.none() | st.integers(0, unit))
        admits = None if most is None else (lambda worker, unit, most=most: unit < most)
        assert ours.hand_out(admits) == both[1].hand_out(admits)
        assert (ours.alive, ours.busy, ours.outstanding) == (both[1].alive, both[1].busy, both[1].outstanding)
