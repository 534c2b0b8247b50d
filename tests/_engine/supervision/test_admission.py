"""How many workers begin where memory is short. What it does to processes is in `tests/faults/test_memory.py`."""

from __future__ import annotations

from typing import Any

import pytest

from stoker._core.machine.memory import Available
from stoker._core.machine.reserve import kept_free
from stoker._engine.supervision.admission import LOOK_AGAIN, PATIENCE, UNKNOWN, Admission
from stoker._engine.supervision.dispatch import Assignment, Dispatch
from stoker._engine.supervision.slot_allocator import MUCH, WorkerMemory

MIB = 1 << 20
LIMIT = 100 * UNKNOWN
BORN = 7 * MIB


class Slots:
    """What the lender of slots knows: each unit in hand has still to be given one of this size."""

    def __init__(self, dispatch: Dispatch, headroom: WorkerMemory) -> None:
        self.size = 0
        self.asking: set[int] = set()
        self.given_back = 0
        self._dispatch = dispatch
        self._headroom = headroom

    def waits(self, worker: int) -> bool:
        return worker in self.asking

    def spoken_for(self) -> int:
        workers = self._dispatch.alive
        return sum(self._headroom.to_come(other) for other in workers if self._dispatch.assignments(other))

    def to_be_given(self, unit: int) -> int:
        return self.size * (1 + sum(bool(self._dispatch.assignments(other)) for other in self._dispatch.alive))

    def give_back(self) -> None:
        self.given_back += 1


class Line:
    """Workers, each of which has one unit at a time, and as much memory left as is said."""

    def __init__(self, workers: int, left: int, known: int | None = None) -> None:
        self.left = left
        self.looks = 0
        self.now = 0.0
        self.dispatch = Dispatch(workers)
        self.own = dict.fromkeys(range(workers), BORN)
        self.headroom = WorkerMemory(self.own.__getitem__, known)
        for worker in range(workers):
            self.headroom.born(worker)
            self.dispatch.joined(worker)
        self.slots = Slots(self.dispatch, self.headroom)
        lending: Any = self.slots
        self.admission = Admission(self.dispatch, lending, self.headroom, self._look, lambda: self.now)

    def _look(self) -> Available:
        self.looks += 1
        return Available(self.left + kept_free(LIMIT), LIMIT, "memory cgroup /here (v2)")

    def submit(self, *units: int, worker: int | None = None) -> None:
        for unit in units:
            self.dispatch.submitted(unit, worker)

    def begin(self) -> list[tuple[int, int]]:
        """(worker, unit) pairs."""
        return [(worker, run.unit) for worker, run in self.dispatch.hand_out(self.admission.gate())]

    def end(self, worker: int, took: int) -> None:
        (run,) = self.dispatch.assignments(worker)
        self.headroom.showed(worker, BORN + took)
        self.dispatch.answered(worker, run, 1.0)


def test_one_unit_begins_while_its_memory_is_unknown() -> None:
    line = Line(4, left=2 * UNKNOWN - 1)
    line.submit(*range(8))
    assert line.begin() == [(0, 0)]
    line.headroom.showed(0, BORN + 100 * MIB)  # it asks for a slot
    assert line.begin() == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("begin", [1, 2, 3])
def test_admission_limits_units_by_their_possible_memory(begin: int) -> None:
    line = Line(4, left=begin * UNKNOWN)
    line.submit(*range(8))
    assert len(line.begin()) == begin
    assert line.admission.refused is None  # not known yet whether they have to wait


@pytest.mark.parametrize(("grown", "begin"), [(MUCH - 1, [(1, 1), (2, 2)]), (MUCH, [])])
def test_slow_first_unit_that_took_little_lets_others_begin(grown: int, begin: list[tuple[int, int]]) -> None:
    line = Line(3, left=UNKNOWN)
    line.submit(*range(6))
    line.now = 5.0
    assert line.begin() == [(0, 0)]
    assert line.admission.looks_at == 5 + PATIENCE
    line.own[0] += grown
    line.now += PATIENCE / 2
    assert line.begin() == []
    assert line.admission.looks_at == 5 + PATIENCE
    line.now = 5 + PATIENCE
    assert line.begin() == begin
    assert line.admission.looks_at is None


def test_admission_limits_units_by_available_memory() -> None:
    line = Line(4, left=110 * MIB)
    line.submit(*range(8))
    assert line.begin() == [(0, 0)]
    line.end(0, took=20 * MIB)
    line.slots.size = 15 * MIB
    assert line.begin() == [(0, 1), (1, 2), (2, 3)]  # each with its slot
    refused = line.admission.refused
    assert refused is not None and refused.bytes - kept_free(LIMIT) == 110 * MIB
    line.left += 30 * MIB - 1
    assert line.begin() == []
    line.left += 1
    assert line.begin() == [(3, 4)]
    for worker in (0, 1):
        line.end(worker, took=20 * MIB)
        line.own[worker + 2] = BORN + 20 * MIB  # the others have it by now
    line.left = 20 * MIB + 3 * 15 * MIB
    assert line.begin() == [(0, 5)]


def test_small_units_are_begun_without_a_look() -> None:
    line = Line(4, left=0)
    line.submit(*range(8))
    assert line.begin() == [(0, 0)]
    line.end(0, took=1 * MIB)
    looks = line.looks
    assert line.begin() == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert line.looks == looks


def test_ample_memory_is_not_checked_for_a_while() -> None:
    line = Line(2, left=4 * UNKNOWN, known=100 * MIB)
    line.submit(*range(4))
    assert line.begin() == [(0, 0), (1, 1)]
    assert line.looks
    line.end(0, took=100 * MIB)
    line.left, looks = 0, line.looks
    assert line.begin() == [(0, 2)]
    assert line.looks == looks
    line.end(0, took=100 * MIB)
    line.now += LOOK_AGAIN
    assert line.begin() == []


def test_unit_larger_than_all_memory_is_refused_early() -> None:
    line = Line(2, left=100 * MIB, known=100 * MIB + 1)
    line.submit(0, 1)
    assert line.begin() == []
    starved = line.admission.starved
    assert starved is not None and (starved.unit, starved.worker, line.slots.given_back) == (0, 0, 1)
    told = str(starved.why)
    assert "cannot reserve 100.0 MiB" in told and "1,124.0 MiB are available of 102,400.0 MiB" in told
    assert "1,024.0 MiB of it are kept free" in told and "limited by memory cgroup /here (v2)" in told
    line.left += 1
    assert line.begin() == [(0, 0)]
    assert line.admission.starved is None


def test_idle_memory_is_returned_before_a_unit_is_refused() -> None:
    line = Line(1, left=0, known=100 * MIB)
    line.submit(0)
    line.slots.give_back = lambda: setattr(line, "left", 100 * MIB)  # type: ignore[method-assign]
    assert line.begin() == [(0, 0)]


def test_earliest_unit_begins_where_all_others_wait_for_it() -> None:
    """A worker has died that had it, and those that have later ones wait until it has its memory."""
    line = Line(3, left=300 * MIB, known=100 * MIB)
    line.submit(0, 1, 2)
    assert line.begin() == [(0, 0), (1, 1), (2, 2)]
    line.left = 0
    assert line.dispatch.died(0) == [Assignment(0)]
    line.dispatch.requeued([0])
    line.dispatch.joined(0)
    line.slots.asking = {1}
    assert line.begin() == []  # one still works
    line.slots.asking = {1, 2}
    assert line.begin() == [(0, 0)]


def test_earliest_bound_unit_begins_first() -> None:
    line = Line(3, left=0, known=100 * MIB)
    for unit, worker in ((0, 2), (1, 0), (2, 1)):
        line.submit(unit, worker=worker)
    line.left = 100 * MIB
    assert line.begin() == [(2, 0)]
    line.end(2, took=100 * MIB)
    assert line.begin() == [(0, 1)]
