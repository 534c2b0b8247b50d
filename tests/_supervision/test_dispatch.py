"""The pure core of supervision: every interleaving keeps the same promises."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stoker._supervision.dispatch import SLOW_UNIT, Dispatch

WORKERS = 3


def started(workers: int = WORKERS) -> Dispatch:
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


def test_dropping_keeps_what_was_begun() -> None:
    dispatch = started(1)
    for unit in range(4):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    assert dispatch.dropped(3) == [1, 2]
    assert dispatch.outstanding == [0, 3]


class Interleavings(RuleBasedStateMachine):
    """Units are never lost, doubled or given to a dead worker, whatever happens in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatch = started()
        self.next = 0
        self.waiting: set[int] = set()
        self.bound: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.alive = set(range(WORKERS))

    @rule(worker=st.none() | st.integers(0, WORKERS - 1))
    def submit(self, worker: int | None) -> None:
        self.dispatch.submitted(self.next, worker)
        self.waiting.add(self.next)
        if worker is not None:
            self.bound[self.next] = worker
        self.next += 1

    @rule()
    def hand_out(self) -> None:
        for worker, unit in self.dispatch.hand_out():
            assert unit in self.waiting and worker in self.alive
            assert self.bound.get(unit, worker) == worker
            free_before = [u for u in self.waiting if u not in self.bound and u < unit]
            assert unit in self.bound or not free_before
            self.waiting.discard(unit)
            self.held[unit] = worker

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seconds=st.sampled_from([SLOW_UNIT / 2, SLOW_UNIT * 2]))
    def answer(self, data: st.DataObject, seconds: float) -> None:
        unit = data.draw(st.sampled_from(sorted(self.held)))
        self.dispatch.answered(self.held.pop(unit), unit, seconds)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.alive)))
        lost = self.dispatch.died(worker)
        assert set(lost) == {unit for unit, holder in self.held.items() if holder == worker}
        self.held = {unit: holder for unit, holder in self.held.items() if holder != worker}
        self.alive.discard(worker)
        if data.draw(st.booleans()):
            self.dispatch.requeued(lost)
            self.waiting |= set(lost)

    @precondition(lambda self: len(self.alive) < WORKERS)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(set(range(WORKERS)) - self.alive)))
        self.dispatch.joined(worker)
        self.alive.add(worker)

    @rule(back=st.integers(0, 5))
    def drop(self, back: int) -> None:
        before = max(0, self.next - back)
        gone = self.dispatch.dropped(before)
        assert set(gone) == {unit for unit in self.waiting if unit < before}
        self.waiting -= set(gone)

    @invariant()
    def every_unit_is_somewhere(self) -> None:
        assert self.dispatch.outstanding == sorted(self.waiting | set(self.held))

    @invariant()
    def nobody_holds_more_than_two(self) -> None:
        assert all(len(self.dispatch.held(worker)) <= 2 for worker in range(WORKERS))


TestInterleavings = Interleavings.TestCase
