"""The pure core of supervision under random interleavings, without processes: no unit is lost, doubled or left waiting.

Workers, the trainer, the memory and the clock are played; `Dispatch`, `Restarts`, `Stalls`, `Lending` and `Admission`
are asked in the order in which the zygote asks them. Beside them runs a model of plain sets and lists, which knows
nothing of how they do it.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker._engine.process.admission import Admission
from stoker._engine.process.headroom import MUCH, Headroom
from stoker._engine.process.lending import Lending
from stoker._machine.memory import Available
from stoker._machine.reserve import kept_free
from stoker._supervision.dispatch import SLOW_UNIT, Dispatch, Run
from stoker._supervision.restarts import KILLS, OWN_KILLS, PERIOD, Restarts, Verdict
from stoker._supervision.stalls import STALLS, Stalls
from stoker._transport.arena import Slot
from tests._supervision.arena import Memory

LIMIT = 1 << 30
AFTER = 10.0
OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, None)
CODES = st.sampled_from([*OUTSIDE, -signal.SIGSEGV, 0])


class Interleavings(RuleBasedStateMachine):
    """A zygote, its workers and its trainer, one step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sound = True
        # The trainer's
        self.next = 0
        self.size: dict[int, int] = {}
        self.bound: dict[int, int] = {}
        self.due: list[int] = []  # in the order in which they are delivered
        self.answers: dict[int, tuple[Memory, Slot] | None] = {}  # arrived, not delivered
        self.unanswered: set[int] = set()
        self.dropped_below = 0

    @initialize(
        workers=st.integers(1, 3),
        most=st.sampled_from([0, 2, 5, 50]),
        capacity=st.integers(1, 4),
        alike=st.booleans(),
        bound=st.booleans(),
        room=st.sampled_from([None, None, 0, 1, 2]),
    )
    def begin(self, workers: int, most: int, capacity: int, alike: bool, bound: bool, room: int | None = None) -> None:
        self.room = room  # for the samples of so many workers; None where they take none worth it
        self.workers = range(workers)
        self.most, self.capacity, self.alike, self.are_bound = most, capacity, alike, bound
        self.bear()

    def bear(self) -> None:
        """A zygote and workers, who know nothing of those before them."""
        self.dispatch = Dispatch(len(self.workers))
        self.memory = Memory(self.capacity)
        headroom = Headroom(lambda worker: 0, 0 if self.room is None else MUCH)
        self.lending = Lending(self.memory, self.dispatch, headroom=headroom)  # type: ignore[arg-type]
        self.admission = Admission(self.dispatch, self.lending, headroom, self.available, lambda: self.now)
        self.headroom = headroom
        for worker in self.workers:
            headroom.born(worker)
        self.restarts = Restarts(self.most)
        self.stalls = Stalls(AFTER)
        # The model
        self.waiting: set[int] = set()
        self.held: dict[int, list[int]] = {worker: [] for worker in self.workers}
        self.alive = set(self.workers)
        self.retiring: set[int] = set()
        self.slots: dict[int, Slot | None] = {}  # of units that are held
        self.asks: set[int] = set()  # units whose workers wait for memory
        self.refused: set[int] = set()
        self.hungry_for: int | None = None
        self.since: dict[int, tuple[int, float]] = {}
        self.told: set[int] = set()
        self.deaths: list[tuple[float, int | None]] = []
        self.kills: dict[int, list[tuple[int, bool]]] = {}
        self.blamed: set[tuple[int, int]] = set()
        self.on_trial: dict[int, float] = {}
        self.ended: dict[int, list[int]] = {}
        for worker in self.workers:
            self.dispatch.joined(worker)

    def available(self) -> Available:
        """What there is for samples, but for those of workers that wait for a slot; and a little for slots."""
        assert self.room is not None
        left = MUCH * (self.room - len(self.asks)) + MUCH - 1
        return Available(max(0, left) + kept_free(LIMIT), LIMIT, "the test")

    @property
    def starved_for(self) -> int | None:
        starved = self.admission.starved
        return self.lending.starved_for if self.lending.is_asked else starved and starved.unit

    # The trainer

    @rule(units=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=4))
    def submit(self, units: list[tuple[int, int]]) -> None:
        for worker, size in units:
            unit, self.next = self.next, self.next + 1
            self.size[unit] = 1 if self.alike else size
            if self.are_bound:
                self.bound[unit] = worker % len(self.workers)
            self.due.append(unit)
            self.unanswered.add(unit)
            self.submitted(unit)
        self.hand_out()

    def submitted(self, unit: int) -> None:
        self.dispatch.submitted(unit, self.bound.get(unit))
        self.waiting.add(unit)

    @precondition(lambda self: self.due and self.due[0] in self.answers)
    @rule()
    def deliver(self) -> None:
        self.let_go(self.due.pop(0))

    def let_go(self, unit: int) -> None:
        """The batch is nobody's any more. One of a zygote before this lies in that one's memory."""
        place = self.answers.pop(unit)
        if place is not None and place[0] is self.memory:
            self.lending.put_back([place[1].number])
            self.grant()

    @precondition(lambda self: self.unanswered and self.starved_for is not None)
    @rule()
    def trainer_waits(self) -> None:
        """It has nothing to deliver, and says for which unit it waits."""
        if self.due[0] not in self.answers:
            self.hungry_for = min(self.unanswered)
            self.grant(self.hungry_for)
            self.hand_out()

    @precondition(lambda self: len(self.due) > 6)  # else there would seldom be enough for anything to happen
    @rule(back=st.integers(0, 5), zygote=st.booleans())
    def much_is_in_vain(self, back: int, zygote: bool) -> None:
        if zygote:
            self.the_zygote_dies()
        else:
            self.drop(back)

    def drop(self, back: int) -> None:
        self.dropped_below = max(self.dropped_below, self.next - back)
        below = {unit for unit in self.due if unit < self.dropped_below}
        self.due = [unit for unit in self.due if unit not in below]
        self.unanswered -= below
        for unit in below & set(self.answers):
            self.let_go(unit)
        self.forget_dropped()
        self.grant()

    def forget_dropped(self) -> None:
        gone = {unit for unit in self.waiting if unit < self.dropped_below}
        assert set(self.dispatch.dropped(self.dropped_below)) == gone
        self.waiting -= gone

    def the_zygote_dies(self) -> None:
        """And its workers. What has no answer is submitted again."""
        self.bear()
        for unit in sorted(self.unanswered):
            self.submitted(unit)
        self.hand_out()

    # The zygote

    def hand_out(self) -> None:
        """Behind whatever happens."""
        before = {worker for worker in self.workers if self.held[worker]}
        for worker, (unit, *_) in self.dispatch.hand_out(self.admission.gate()):
            if self.room is not None and worker not in before:
                alone = unit == min(self.dispatch.outstanding) and before <= self.waiting_for_memory
                assert alone or len(before) < self.room
                before.add(worker)
            assert worker in self.alive - self.retiring
            assert self.bound.get(unit, worker) == worker
            alike = [other for other in self.waiting if self.bound.get(other) == self.bound.get(unit)]
            assert unit == min(alike)
            self.waiting.remove(unit)
            self.held[worker].append(unit)
            self.slots[unit] = self.lending.offer(unit)
            if self.held[worker] == [unit]:
                self.works_on(worker)
        if self.admission.starved is not None:
            unit = self.admission.starved.unit
            assert self.room == 0 and not any(self.held.values())
            if unit <= (self.hungry_for if self.hungry_for is not None else -1):
                self.dispatch.refused(unit)
                self.waiting.remove(unit)
                self.unanswered.remove(unit)
                self.answers[unit] = None
                self.hand_out()

    @property
    def waiting_for_memory(self) -> set[int]:
        return {worker for worker in self.workers if self.held[worker] and self.held[worker][0] in self.asks}

    def works_on(self, worker: int) -> None:
        held = self.held[worker]
        unit = held[0] if held and held[0] not in self.asks else None
        self.stalls.works_on(worker, unit, self.now)
        if unit is None:
            self.since.pop(worker, None)
        else:
            self.since[worker] = unit, self.now

    def grant(self, hungry_for: int | None = None) -> None:
        if not self.lending.is_asked and hungry_for is None:
            return
        for worker, reply in self.lending.grant(hungry_for):
            unit = self.held[worker][0]
            self.asks.remove(unit)
            if isinstance(reply, Slot):
                assert reply.capacity >= self.size[unit]
                self.slots[unit] = reply
            else:
                assert self.memory.left < self.size[unit]
                dropped = unit < self.dropped_below
                assert dropped or (unit == self.hungry_for and not self.alike), "all could have been done one by one"
                self.refused.add(unit)
            self.works_on(worker)

    # The workers

    @property
    def busy(self) -> list[int]:
        return [worker for worker in self.workers if self.held[worker] and self.held[worker][0] not in self.asks]

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), slow=st.booleans())
    def work(self, data: st.DataObject, slow: bool) -> None:
        fails = data.draw(st.sampled_from([False, False, True]))
        self.one_step(data.draw(st.sampled_from(self.busy)), fails, SLOW_UNIT * (2 if slow else 0.5))

    def one_step(self, worker: int, fails: bool = False, seconds: float = SLOW_UNIT / 2) -> None:
        """It answers, or asks for the memory that it needs."""
        unit = self.held[worker][0]
        slot = self.slots[unit]
        if fails or unit in self.refused:
            self.answer(worker, unit, "error", b"", seconds)
        elif slot is None or slot.capacity < self.size[unit]:
            self.lending.asked(worker, unit, self.size[unit], own=0 if self.room is None else MUCH)
            self.slots[unit] = None
            self.asks.add(unit)
            self.works_on(worker)
            self.grant()
        else:
            self.answer(worker, unit, "batch", (slot.number, self.size[unit]), seconds)
        self.hand_out()

    def answer(self, worker: int, unit: int, kind: str, value: object, seconds: float) -> None:
        self.dispatch.answered(worker, Run(unit), seconds)
        self.restarts.answered(unit)
        self.stalls.answered(unit)
        self.held[worker].remove(unit)
        self.works_on(worker)
        slot, lent = self.lending.answered(unit, kind, value), self.slots.pop(unit)
        assert slot == (lent if kind == "batch" else None)
        for known in (self.told, self.refused):
            known.discard(unit)
        for counts in (self.kills, self.ended):
            counts.pop(unit, None)
        self.blamed = {at for at in self.blamed if at[0] != unit}
        if unit in self.on_trial:
            self.deaths.append((self.on_trial.pop(unit), unit))  # it was chance
        if unit < self.dropped_below:
            self.lending.put_back([] if slot is None else [slot.number])
        else:
            self.unanswered.remove(unit)  # or it were answered twice
            self.answers[unit] = None if slot is None else (self.memory, slot)
        self.grant()

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), place=st.integers(-2, 1), code=CODES)
    def die(self, data: st.DataObject, place: int, code: int | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.alive)))
        held = self.held[worker]
        unit = held[0] if held else None
        if unit in self.asks:
            place = -5  # it is there that one asks
        self.bury(worker, lambda: self.judge(unit, None if place == -1 else place, code))

    def bury(self, worker: int, judge: object = None) -> None:
        self.sound = False  # until this is over
        lost = [run.unit for run in self.dispatch.died(worker)]
        assert lost == self.held[worker]
        self.lending.lost(worker, lost)
        self.alive.remove(worker)
        self.retiring.discard(worker)
        self.held[worker] = []
        self.works_on(worker)
        for unit in lost:
            self.slots.pop(unit)
            self.asks.discard(unit)
            self.refused.discard(unit)
        verdict = judge() if callable(judge) else Verdict(0.0)
        self.sound = True
        if verdict.pause is None:  # the run ends; the next one has the same to do
            self.the_zygote_dies()
            return
        self.dispatch.requeued(lost)
        self.waiting |= set(lost)
        self.forget_dropped()
        self.grant()
        self.hand_out()  # the others go on, before anybody takes its place

    def judge(self, unit: int | None, place: int | None, code: int | None) -> Verdict:
        verdict = self.restarts.died(unit, place, code, self.now)
        if not self.most:
            assert verdict == Verdict(None)
            return verdict
        guilty = on_trial = False
        if unit is not None and place is not None:
            kills = self.kills.setdefault(unit, [])
            kills.append((place, code not in OUTSIDE))
            here = [own for other, own in kills if other == place]
            again = place < 0 and (unit, place) in self.blamed
            guilty = not again and (len(here) >= KILLS or sum(here) >= OWN_KILLS)
            on_trial = kills == [(place, True)] and place >= 0  # a sample, and the first time
            if guilty:
                self.blamed.add((unit, place))
                self.forgive(unit)
            elif on_trial:
                self.on_trial[unit] = self.now
            elif unit in self.on_trial:
                self.deaths.append((self.on_trial.pop(unit), unit))
        if not (guilty or on_trial):
            self.deaths.append((self.now, unit))
        self.deaths = [death for death in self.deaths if self.now - death[0] <= PERIOD]
        assert verdict.blamed == guilty
        assert (verdict.pause is None) == (not (guilty or on_trial) and len(self.deaths) > self.most)
        return verdict

    def forgive(self, unit: int) -> None:
        self.deaths = [death for death in self.deaths if death[1] != unit]
        self.kills.pop(unit, None)
        self.on_trial.pop(unit, None)

    @precondition(lambda self: self.alive - self.retiring)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.alive - self.retiring)))
        self.dispatch.retires(worker)
        self.retiring.add(worker)

    @precondition(lambda self: any(not self.held[worker] for worker in self.retiring))
    @rule()
    def leave(self) -> None:
        for worker in [worker for worker in self.retiring if not self.held[worker]]:
            self.bury(worker)

    @precondition(lambda self: len(self.workers) < 5)
    @rule()
    def there_are_to_be_more(self) -> None:
        self.workers = range(len(self.workers) + 1)
        self.dispatch.grow(len(self.workers))
        self.headroom.born(self.workers[-1])
        self.held[self.workers[-1]] = []
        self.hand_out()

    @precondition(lambda self: len(self.alive) < len(self.workers))
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        self.join(data.draw(st.sampled_from(sorted(set(self.workers) - self.alive))))

    def join(self, worker: int) -> None:
        self.dispatch.joined(worker)
        self.alive.add(worker)
        self.hand_out()

    # Time

    @rule(
        seconds=st.sampled_from([1.0, AFTER, 0.6 * PERIOD]),
        frozen=st.booleans(),
        restart=st.booleans(),
        place=st.integers(-2, 1),
    )
    def time_goes_by(self, seconds: float, frozen: bool, restart: bool, place: int) -> None:
        self.now += seconds
        if frozen:
            self.stalls.forgive(seconds)
            self.since = {worker: (unit, since + seconds) for worker, (unit, since) in self.since.items()}
        late = {
            worker: unit
            for worker, (unit, since) in self.since.items()
            if self.now - since >= AFTER and unit not in self.told
        }
        found = self.stalls.due(self.now)
        assert {stall.worker: stall.unit for stall in found} == late
        self.told |= set(late.values())
        if restart:
            zygote = self.dispatch
            for worker, unit in late.items():
                if self.dispatch is not zygote:  # that was too much, and this is another
                    break
                self.bury(worker, lambda unit=unit: self.stalled(unit, None if place == -1 else place))

    def stalled(self, unit: int, place: int | None) -> Verdict:
        """Its worker was killed for it."""
        self.told.discard(unit)
        places = self.ended.setdefault(unit, [])
        if place is not None:
            places.append(place)
        proven = place is not None and places.count(place) >= STALLS and (place >= 0 or places.count(place) == STALLS)
        assert self.stalls.ended(unit, place) == proven
        if not proven:
            return self.judge(unit, None, -signal.SIGKILL)
        self.restarts.forgive(unit)
        self.forgive(unit)
        return Verdict(0.0, blamed=True)

    # What always holds

    @invariant()
    def every_unit_is_in_one_place(self) -> None:
        held = [unit for units in self.held.values() for unit in units]
        assert self.dispatch.outstanding == sorted([*self.waiting, *held])
        assert self.unanswered <= {*self.waiting, *held}
        assert {*self.waiting, *held} - self.unanswered <= set(range(self.dropped_below))
        assert set(self.due) == self.unanswered | set(self.answers)

    @invariant()
    def nobody_holds_more_than_two(self) -> None:
        for worker in self.workers:
            assert [run.unit for run in self.dispatch.held(worker)] == self.held[worker]
            assert len(self.held[worker]) <= 2

    @invariant()
    def memory_is_neither_lost_nor_lent_twice(self) -> None:
        lent = [slot.number for slot in self.slots.values() if slot is not None]
        arrived = [place[1].number for place in self.answers.values() if place and place[0] is self.memory]
        assert sorted(self.memory.taken) == sorted(lent + arrived)

    @invariant()
    def the_next_look_is_in_time(self) -> None:
        look = self.stalls.next_look(self.now)
        times = [since + AFTER for unit, since in self.since.values() if unit not in self.told]
        assert look == (max(0.0, min(times) - self.now) if times else None)

    def teardown(self) -> None:
        """If nothing more happens to the workers, all is done and delivered."""
        if not self.sound:
            return
        for _ in range(10 + 4 * len(self.due)):
            if not self.due:
                return
            self.leave()
            for worker in set(self.workers) - self.alive:
                self.join(worker)
            for worker in self.workers:
                if worker in self.busy:
                    self.one_step(worker)
            while self.due and self.due[0] in self.answers:
                self.deliver()
            if self.unanswered and self.starved_for is not None:
                self.trainer_waits()
        raise AssertionError(f"units {self.due} are never delivered; {self.asks} wait for memory")


def begun(units: list[tuple[int, int]], workers: int, capacity: int) -> Interleavings:
    machine = Interleavings()
    machine.begin(workers=workers, most=5, capacity=capacity, alike=False, bound=False)
    machine.submit(units)
    return machine


def test_a_dropped_unit_that_is_too_large_keeps_nobody_waiting() -> None:
    machine = begun([(0, 3), (0, 1)], workers=1, capacity=2)
    machine.drop(back=1)
    machine.teardown()
    assert machine.answers == {} and not machine.due


def test_what_a_dropped_unit_holds_is_waited_for() -> None:
    machine = begun([(0, 2), (0, 2)], workers=2, capacity=2)
    machine.drop(back=1)
    machine.one_step(0)
    machine.one_step(1)  # waits
    machine.trainer_waits()
    assert machine.refused == set()
    machine.one_step(0)
    machine.one_step(1)
    assert machine.answers[1] is not None


class TestInterleavings(Interleavings.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.long
@pytest.mark.timeout(900)
class TestManyInterleavings(Interleavings.TestCase):  # type: ignore[misc]
    """100,000 steps, other ones each time."""

    settings = settings(max_examples=1000, stateful_step_count=100, derandomize=False)
