"""Units that several workers make: none is lost or doubled, and no memory is used again while a worker writes it.

Workers and the trainer are played; `Dispatch`, `SlotAllocator` and `SplitUnits` are asked in the order in which the
zygote asks them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker._engine.backend import UnitReport
from stoker._engine.process.split_units import SplitUnits
from stoker._engine.supervision.dispatch import SLOW_UNIT, Assignment, Dispatch
from stoker._engine.supervision.slot_allocator import SlotAllocator
from stoker._engine.supervision.split_policy import PATIENCE, SplitPolicy
from stoker._engine.transport.arena import Slot
from stoker._engine.transport.rows import Layout
from stoker.events import FaultRecord
from tests._engine.supervision.arena import Memory

ROWS = 32
SIZE = 100
ALIKE, OTHERWISE = Layout((), b"alike"), Layout((), b"otherwise")


def shared(workers: int) -> tuple[SplitPolicy, Dispatch, SlotAllocator, SplitUnits]:
    """Units whose rows take a second each, and workers to share them."""
    cut = SplitPolicy(workers, 1.0)
    dispatch = Dispatch(workers, cut)
    for worker in range(workers):
        dispatch.joined(worker)
    lending = SlotAllocator(Memory(4 * SIZE), dispatch)  # type: ignore[arg-type]
    return cut, dispatch, lending, SplitUnits(cut, dispatch, lending)


def test_refused_split_unit_leaves_nothing() -> None:
    """Some of its rows are made, and for the rest there is no memory any more."""
    _, dispatch, lending, sharing = shared(2)
    dispatch.submitted(0, None, ROWS)
    handed_out = dispatch.hand_out()
    for _, run in handed_out:
        sharing.handed_out(run)
    assert lending.share(0, SIZE, worker=0) is not None
    for worker, run in handed_out:
        sharing.answered(run, "rows", (tuple(ALIKE), {}, b"form"), UnitReport())
        dispatch.answered(worker, run, SLOW_UNIT * 2)
    assert dispatch.outstanding == [0] and not sharing.is_over(0)
    dispatch.refused(0)
    sharing.refused(0)
    assert dispatch.outstanding == [] and lending.shared(0) is None
    assert sharing.dropped(1) == []
    sharing.refused(1)  # no worker has begun a part of it


@pytest.mark.parametrize("how", ["dropped", "a death"])
def test_dropped_or_lost_units_do_not_discourage_sharing(how: str) -> None:
    cut, dispatch, _, sharing = shared(2)
    for unit in range(PATIENCE + 3):
        dispatch.submitted(unit, None, ROWS)
        (one, first), (_, second) = dispatch.hand_out()
        for run in (first, second):
            sharing.handed_out(run)
        if how == "dropped":
            dispatch.dropped(unit + 1)
            assert sharing.dropped(unit + 1) == []
            sharing.answered(first, "rows", (tuple(ALIKE), {}, b"form"), UnitReport())
        else:
            sharing.lost(first)
        sharing.answered(second, "rows", (tuple(ALIKE), {}, b"form"), UnitReport())
        assert sharing.is_over(unit) and sharing.result(unit) is None
        for worker, run in ((one, first), (1 - one, second)):
            dispatch.answered(worker, run, SLOW_UNIT * 2)
        dispatch.withdrawn(unit)
        dispatch.done(unit)
    assert cut.share(ROWS, ROWS) < ROWS


@pytest.mark.parametrize(("kind", "is_known"), [("short", True), ("misfit", False)])
def test_row_layout_is_kept_when_only_memory_was_short(kind: Any, is_known: bool) -> None:
    """Who knows it asks for memory before it has made the rows."""
    _, dispatch, lending, sharing = shared(2)
    for unit, answers in enumerate((["rows", "rows"], [kind, "rows"], [])):
        dispatch.submitted(unit, None, 2)
        handed = list(dispatch.hand_out())
        parts = [sharing.handed_out(run) for _, run in handed]
        for (worker, run), answer in zip(handed, answers, strict=False):
            assert lending.share(unit, SIZE, worker)
            sharing.answered(
                run, answer, (tuple(ALIKE), {}, b"form") if answer == "rows" else (False, b"samples"), UnitReport()
            )
            dispatch.answered(worker, run, SLOW_UNIT * 2)
        if answers:
            assert (sharing.result(unit) is not None) == (kind not in answers)
            dispatch.done(unit)
    assert [known is not None for *_, known in parts] == [is_known] * 2


def test_parts_that_do_not_fit_together_are_joined() -> None:
    """Rows stay in their slot until the worker that joins them has answered; what was not begun is withdrawn."""
    cut, dispatch, lending, sharing = shared(3)
    dispatch.submitted(0, None, ROWS)
    handed_out = dispatch.hand_out()
    for _, run in handed_out:
        sharing.handed_out(run)
    fault = FaultRecord(kind="skip", outcome="skipped", place=3, position=3, exception="", traceback="", worker=1)
    answers = {
        handed_out[0][1]: ("rows", (tuple(ALIKE), {1: b"texts"}, b"form"), UnitReport(samples=1)),
        handed_out[1][1]: ("misfit", (False, b"samples"), UnitReport(faults=[fault], samples=1)),
        handed_out[2][1]: ("misfit", (False, None), UnitReport(samples=1)),  # they cannot be pickled
    }
    assert lending.share(0, SIZE, worker=0) is not None
    for worker, run in handed_out:
        sharing.answered(run, *answers[run])  # type: ignore[arg-type]
        dispatch.answered(worker, run, SLOW_UNIT * 2)
    assert sharing.is_over(0) and sharing.result(0) is None
    (_, one), (_, two), _ = handed_out
    assert sharing.to_join(0) == [
        (one.first, one.last, ROWS, tuple(ALIKE), {1: b"texts"}, b"form"),
        (two.first, two.last, ROWS, None, {}, b"samples"),
    ]
    assert lending.shared(0) is not None
    dispatch.requeued([0])
    assert [run for _, run in dispatch.hand_out()] == [Assignment(0)]
    assert sharing.joined(0, UnitReport(samples=ROWS - 1)) == UnitReport(faults=[fault], samples=ROWS - 1)
    assert not sharing.is_joined(0) and sharing.to_join(0) == ()
    assert cut.share(ROWS, ROWS) < ROWS


def test_rows_of_another_layout_do_not_get_the_slot() -> None:
    _, dispatch, _, sharing = shared(2)
    dispatch.submitted(0, None, 2)
    for _, run in dispatch.hand_out():
        assert sharing.handed_out(run)[3] is None
    assert sharing.agrees(0, tuple(ALIKE)) and sharing.agrees(0, tuple(ALIKE))  # type: ignore[arg-type]
    assert not sharing.agrees(0, tuple(OTHERWISE))  # type: ignore[arg-type]


class Shares(RuleBasedStateMachine):
    """A zygote, its workers and its trainer, one step at a time."""

    @initialize(workers=st.integers(2, 4), capacity=st.integers(1, 4))
    def begin(self, workers: int, capacity: int) -> None:
        self.memory = Memory(capacity * SIZE)
        self.cut = SplitPolicy(workers)
        self.cut.learned(1, 1.0)
        self.dispatch = Dispatch(workers, self.cut)
        self.lending = SlotAllocator(self.memory, self.dispatch)  # type: ignore[arg-type]
        self.sharing = SplitUnits(self.cut, self.dispatch, self.lending)
        self.workers = range(workers)
        self.alive = set(self.workers)
        self.held: dict[int, list[Assignment]] = {worker: [] for worker in self.workers}
        self.writes: dict[int, Slot] = {}  # worker → the shared slot that it writes
        self.waits: set[int] = set()  # workers, for memory, with a whole unit
        self.whole: dict[int, Slot] = {}  # unit → its slot, where one worker makes it
        self.raised: dict[int, list[int]] = {}  # unit → first rows of parts that raised
        self.rows: dict[int, set[int]] = {}  # unit → rows that were written since it was last begun
        self.made: dict[int, set[int]] = {}  # unit → rows whose samples have come
        self.joined: dict[int, Any] = {}  # unit → the parts that one worker joins
        self.next = self.delivered = self.dropped_below = 0
        self.answers: dict[int, Slot | None] = {}
        for worker in self.workers:
            self.dispatch.joined(worker)

    # The trainer

    @precondition(lambda self: self.next - self.delivered < 6)
    @rule(may_share=st.sampled_from([True, True, False]))
    def submit(self, may_share: bool) -> None:
        self.dispatch.submitted(self.next, None, ROWS if may_share else 0)
        self.next += 1
        self.hand_out()

    @precondition(lambda self: self.delivered in self.answers)
    @rule()
    def deliver(self) -> None:
        slot = self.answers.pop(self.delivered)
        self.delivered += 1
        if slot is not None:
            self.lending.put_back([slot.number])
        self.grant()

    @precondition(lambda self: self.next - self.delivered > 4)
    @rule()
    def drop(self) -> None:
        self.dropped_below = self.delivered = self.next
        for slot in self.answers.values():
            if slot is not None:
                self.lending.put_back([slot.number])
        self.answers.clear()
        self.forget()
        self.grant()

    def forget(self) -> None:
        for unit in (*self.dispatch.dropped(self.dropped_below), *self.sharing.dropped(self.dropped_below)):
            self.dispatch.done(unit)
            self.sharing.refused(unit)

    # The zygote

    def hand_out(self) -> None:
        for worker, run in self.dispatch.hand_out():
            assert worker in self.alive
            self.held[worker].append(run)
            if run.is_part:
                first, last, count, _ = self.sharing.handed_out(run)
                assert 0 <= first < last <= count == ROWS
                begun = self.rows.setdefault(run.unit, set())
                assert not begun & set(range(first, last)), "no row is made twice"
                begun.update(range(first, last))
                if (offered := self.lending.offer_to_share(run.unit)) is not None:
                    self.writes[worker] = offered
            else:
                self.joined[run.unit] = self.sharing.to_join(run.unit)
                made = [row for first, last, *_ in self.joined[run.unit] for row in range(first, last)]
                assert sorted(made) == sorted(self.made.get(run.unit, set())), "all that were made, once"
                offered = self.lending.offer_to_share(run.unit) if made else None
                slot = offered if made else next(iter(self.lending.offer(run.unit)), None)
                if slot is not None:
                    self.whole[run.unit] = slot
                assert slot is not None or all(part[3] is None for part in self.joined[run.unit])

    def grant(self) -> None:
        starving = self.lending.is_asked and self.delivered not in self.answers
        hungry = min(self.dispatch.outstanding, default=0) if starving else None
        for worker, reply in self.lending.grant(hungry):
            self.waits.discard(worker)
            if isinstance(reply, Slot):
                self.whole[self.held[worker][0].unit] = reply

    def conclude(self, unit: int) -> None:
        if not self.sharing.is_over(unit):
            return
        assert not any(run.unit == unit for held in self.held.values() for run in held), "somebody still writes it"
        result = self.sharing.result(unit)
        begun = self.rows.pop(unit)
        if result is not None:
            self.made.pop(unit, None)
            kind, value, said = result
            assert said.samples == ROWS
            self.dispatch.done(unit)
            if kind == "batch":
                assert begun == set(range(ROWS)) and unit not in self.raised
                self.answered(unit, self.lending.answered(unit, "batch", (value[0], SIZE)))
            else:
                assert value == min(self.raised.pop(unit)), "of the first, in order of the rows"
                self.answered(unit, None)
        elif unit < self.dropped_below:
            self.dispatch.done(unit)
            self.sharing.refused(unit)
        else:
            self.dispatch.requeued([unit])

    def answered(self, unit: int, slot: Slot | None) -> None:
        if unit < self.dropped_below:
            self.lending.put_back([] if slot is None else [slot.number])
        else:
            assert unit not in self.answers and unit >= self.delivered
            self.answers[unit] = slot

    # The workers

    @property
    def busy(self) -> list[int]:
        return [worker for worker in self.workers if self.held[worker] and worker not in self.waits]

    @precondition(lambda self: self.busy)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["rows", "rows", "rows", "rows", "otherwise", "misfit", "error"]),
        seconds=st.sampled_from([SLOW_UNIT * 2, SLOW_UNIT / 2]),
    )
    def work(self, data: st.DataObject, outcome: str, seconds: float) -> None:
        self.one_step(data.draw(st.sampled_from(self.busy)), outcome, seconds)

    def one_step(self, worker: int, outcome: str = "rows", seconds: float = SLOW_UNIT * 2) -> None:
        run = self.held[worker][0]
        if run.is_part:
            self.one_part(worker, run, outcome, seconds)
        elif run.unit not in self.whole:
            self.lending.asked(worker, run.unit, SIZE)
            self.waits.add(worker)
        else:
            slot = self.whole.pop(run.unit)
            self.held[worker].pop(0)
            self.dispatch.answered(worker, run, seconds)
            self.sharing.joined(run.unit, UnitReport())
            self.made.pop(run.unit, None)
            self.answered(run.unit, self.lending.answered(run.unit, "batch", (slot.number, SIZE)))
        self.grant()
        self.hand_out()

    def one_part(self, worker: int, run: Assignment, outcome: str, seconds: float) -> None:
        if worker not in self.writes and outcome in ("rows", "otherwise"):
            slot = self.lending.share(run.unit, SIZE, -1)
            if slot is not None:
                self.writes[worker] = slot
                return
            outcome = "misfit"
        self.writes.pop(worker, None)
        self.held[worker].pop(0)
        self.dispatch.answered(worker, run, seconds)
        if outcome == "misfit":
            self.sharing.answered(run, "misfit", (False, b"samples"), UnitReport())
            self.made.setdefault(run.unit, set()).update(range(run.first, run.last))
        elif outcome == "error":
            self.raised.setdefault(run.unit, []).append(run.first)
            self.sharing.answered(run, "error", run.first, UnitReport())
        else:
            layout = ALIKE if outcome == "rows" else OTHERWISE
            value = tuple(layout), {}, b"form"
            self.made.setdefault(run.unit, set()).update(range(run.first, run.last))
            self.sharing.answered(run, "rows", value, UnitReport([], None, [], run.last - run.first))
        self.conclude(run.unit)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers if self.held[worker]]))
        runs = self.dispatch.died(worker)
        assert runs == self.held[worker]
        lost = [run.unit for run in runs if not run.is_part]
        self.lending.lost(worker, lost)
        self.alive.discard(worker)
        self.held[worker] = []
        self.writes.pop(worker, None)
        for unit in lost:
            self.whole.pop(unit, None)
            self.sharing.refused(unit)
            self.made.pop(unit, None)
        self.waits.discard(worker)
        self.dispatch.requeued(lost)
        for run in runs:
            if run.is_part:
                self.sharing.lost(run)
                self.conclude(run.unit)
        self.forget()
        self.grant()
        self.hand_out()

    @precondition(lambda self: len(self.alive) < len(self.workers))
    @rule()
    def replace(self) -> None:
        for worker in set(self.workers) - self.alive:
            self.dispatch.joined(worker)
            self.alive.add(worker)
        self.hand_out()

    # What always holds

    @invariant()
    def what_is_written_is_nobody_elses(self) -> None:
        for worker, slot in self.writes.items():
            assert self.memory.taken[slot.number] == slot
            assert slot not in self.answers.values() and slot not in self.whole.values()
            unit = self.held[worker][0].unit
            others = [self.held[other][0].unit for other, written in self.writes.items() if written == slot]
            assert set(others) == {unit}

    @invariant()
    def nothing_is_lost(self) -> None:
        wanted = set(range(self.delivered, self.next))
        assert wanted == set(self.answers) | {unit for unit in self.dispatch.outstanding if unit >= self.dropped_below}

    def teardown(self) -> None:
        """Everything comes to an end, and no memory is taken."""
        if not hasattr(self, "memory"):
            return
        self.replace()
        for _ in range(10_000):
            if self.busy:
                self.one_step(self.busy[0])
            elif self.delivered in self.answers:
                self.deliver()
            else:
                break
            self.grant()
        assert self.delivered == self.next and self.dispatch.outstanding == [] and not self.memory.taken


class TestShares(Shares.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@pytest.mark.long
class TestSharesAtLength(Shares.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=1500, stateful_step_count=70, deadline=None)
