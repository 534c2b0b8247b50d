"""The supervisor under random interleavings, without processes: no unit is lost, doubled or left waiting.

Workers, the trainer, the memory, the clock and the backend are played. The backend does what the supervisor commands,
as one that forks (a process is there at once, and heard at once) or as one that spawns (a process takes a while to be
ready, and is heard only when the trainer listens). Beside it runs a model of plain sets and lists.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker._core.machine.memory import Available
from stoker._core.machine.reserve import kept_free
from stoker._engine import messages
from stoker._engine.activity import IDLE, Activity, Position, sample
from stoker._engine.backend import UnitReport
from stoker._engine.commands import (
    AllStarted,
    Away,
    Dismiss,
    Event,
    Exited,
    Heard,
    Inspect,
    Inspected,
    Kill,
    Notify,
    Send,
    SetTimer,
    Spawn,
    Started,
    StartFailed,
    Stop,
    Tell,
    Tick,
)
from stoker._engine.supervision.dispatch import SLOW_UNIT
from stoker._engine.supervision.restarts import KILLS, OWN_KILLS, PERIOD
from stoker._engine.supervision.rules import STALLS, Rules
from stoker._engine.supervision.slot_allocator import MUCH
from stoker._engine.supervisor import Supervisor
from stoker._engine.transport.rows import Layout
from tests._engine.supervision.arena import Memory
from tests._engine.supervision.every_worker import by_all

LIMIT = 1 << 30
AFTER = 10.0
ROWS = 32
OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, None)
CODES = st.sampled_from([*OUTSIDE, -signal.SIGSEGV, 0])
POSITIONS = st.sampled_from([IDLE, Position(Activity.START), sample(0), sample(1)])
LAYOUT = tuple(Layout((), b"alike"))


class Played:
    """One worker process: what it was sent, and what it does about it."""

    def __init__(self, ready: bool) -> None:
        self.is_ready = ready
        self.is_dismissed = self.is_killed = False
        self.units: list[messages.Unit] = []  # what it works on first
        self.slots: dict[int, Any] = {}  # unit → slot that it may write
        self.asked = 0
        self.waits = False
        self.refused = False  # there is no memory for its unit
        self.inspected: Inspected | None = None  # for which it was killed


class Interleavings(RuleBasedStateMachine):
    """A supervisor, its backend, its workers and its trainer, one step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.sound = True
        # The trainer's
        self.next = 0
        self.size: dict[int, int] = {}
        self.bound: dict[int, int] = {}
        self.due: list[int] = []  # in the order in which they are delivered
        self.answers: dict[int, tuple[Memory, int] | None] = {}  # arrived, not delivered
        self.unanswered: set[int] = set()
        self.dropped_below = 0

    @initialize(
        workers=st.integers(1, 3),
        most=st.sampled_from([0, 2, 5, 50]),
        capacity=st.integers(1, 4),
        alike=st.booleans(),
        bound=st.booleans(),
        room=st.sampled_from([None, None, 0, 1, 2]),
        spawns=st.booleans(),
        shares=st.booleans(),
        retires=st.sampled_from([None, None, 3]),
    )
    def begin(
        self,
        workers: int,
        most: int,
        capacity: int,
        alike: bool,
        bound: bool,
        room: int | None = None,
        spawns: bool = False,
        shares: bool = False,
        retires: int | None = None,
    ) -> None:
        self.room = room  # number of workers whose samples fit; None: samples take no memory
        self.retires = retires  # number of samples until a worker retires
        self.workers, self.at_first, self.spawns = workers, workers, spawns
        self.most, self.capacity, self.alike, self.are_bound = most, capacity, alike, bound
        self.shares = shares and not bound and room is None
        self.bear()

    def bear(self) -> None:
        """A supervisor and workers, who know nothing of those before them."""
        self.memory = Memory(self.capacity)
        rules = Rules(
            max_restarts=self.most,
            stall_warning=AFTER,
            stall_action="restart",
            max_samples_per_worker=self.retires,
            growth=0 if self.room is None else MUCH,
            row_seconds=1.0 if self.shares else None,
        )
        self.supervisor = self.supervised(rules)
        self.there: dict[int, Played] = {}
        self.to_start: set[int] = set()
        self.ever_ready = not self.spawns
        self.inbox: list[Event] = []  # what a spawning backend has not read
        self.to_inspect: list[Inspect] = []
        self.timer: float | None = None
        self.hungry_for: int | None = None
        self.starved_for: int | None = None
        self.deaths: list[tuple[float, int | None]] = []
        self.kills: dict[int, list[tuple[int, bool]]] = {}
        self.blamed: set[tuple[int, int]] = set()
        self.on_trial: dict[int, float] = {}
        self.ended: dict[int, list[int]] = {}
        for worker in range(self.workers):
            self.start(worker)
        self.handle(AllStarted(LIMIT))

    def supervised(self, rules: Rules) -> Supervisor:
        return Supervisor(self.workers, rules, self.memory, self, unpickles=self.spawns)  # type: ignore[arg-type]

    # Facts

    def own_bytes(self, worker: int) -> int:
        return 0

    def has_duties(self, worker: int) -> bool:
        return False

    def available(self) -> Available:
        """What there is for samples, but for those of workers that wait for a slot; and a little for slots."""
        assert self.room is not None
        waiting = sum(worker.waits for worker in self.there.values())
        return Available(max(0, MUCH * (self.room - waiting) + MUCH - 1) + kept_free(LIMIT), LIMIT, "the test")

    # The backend

    def handle(self, *events: Event) -> list[Any]:
        supervisor = self.supervisor
        commands = supervisor.handle(events, self.now)
        for command in commands:
            if self.supervisor is supervisor:
                self.carry_out(command)
        return commands

    def say(self, *events: Event) -> None:
        """A worker says something: a spawning backend hears it later."""
        if self.spawns:
            self.inbox += events
        else:
            self.handle(*events)

    @precondition(lambda self: self.inbox)
    @rule()
    def listen(self) -> None:
        heard, self.inbox = self.inbox, []
        self.handle(*heard)

    def carry_out(self, command: Any) -> None:
        match command:
            case Send():
                self.receive(command.worker, command.message)
            case Tell(messages.Delivery()):
                self.take(command.message)
            case Tell(messages.Starved()):
                self.starved_for = command.message.unit
            case Tell(messages.Fed()):
                self.starved_for = None
            case SetTimer():
                self.timer = command.at
            case Spawn():
                assert command.worker not in self.there and command.worker not in self.to_start
                self.to_start.add(command.worker)
            case Dismiss():
                self.there[command.worker].is_dismissed = True
                assert not self.there[command.worker].units
            case Kill():
                if command.worker in self.there:
                    self.there[command.worker].is_killed = True
            case Inspect():
                self.to_inspect.append(command)
            case Stop():
                others = self.there.values()
                is_stuck = any(not worker.is_ready for worker in others)  # it unpickles for too long
                assert is_stuck or all(worker.waits for worker in others), "others could go on"
                self.the_supervisor_dies()

    def start(self, worker: int) -> None:
        self.there[worker] = Played(ready=not self.spawns)
        self.handle(Started(worker, 100 + worker))

    @precondition(lambda self: self.to_start)
    @rule(data=st.data(), fails=st.sampled_from([False, False, True]))
    def a_process_is_started(self, data: st.DataObject, fails: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.to_start)))
        self.to_start.remove(worker)
        if fails and any(other.is_ready for other in self.there.values()):
            self.handle(StartFailed(worker, BlockingIOError(11, "no process")))
        else:
            self.start(worker)

    @precondition(lambda self: any(not worker.is_ready for worker in self.there.values()))
    @rule(data=st.data())
    def a_worker_gets_ready(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([number for number, worker in self.there.items() if not worker.is_ready]))
        self.gets_ready(number)

    def gets_ready(self, number: int) -> None:
        self.there[number].is_ready = self.ever_ready = True
        self.say(Heard(number, messages.Unpickled(1.0, 0, 0)))

    @precondition(lambda self: self.to_inspect)
    @rule(position=POSITIONS)
    def a_worker_is_inspected(self, position: Position) -> None:
        number, unit, seconds = self.to_inspect.pop(0)
        heard, self.inbox = self.inbox, []
        inspected = Inspected(number, unit, seconds, position, "then")
        commands = self.handle(inspected, *heard)
        if Kill(number) in commands:
            self.there[number].inspected = inspected

    # The trainer

    @rule(
        units=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=4),
        in_run=st.booleans(),
    )
    def submit(self, units: list[tuple[int, int]], in_run: bool = False) -> None:
        new = []
        for worker, size in units:
            unit, self.next = self.next, self.next + 1
            self.size[unit] = 1 if self.alike else size
            if self.are_bound:
                self.bound[unit] = worker % self.at_first  # others may never be there
            self.due.append(unit)
            self.unanswered.add(unit)
            new.append(unit)
        if in_run and not (self.are_bound or self.shares):
            self.handle(messages.Submit(new[0], None, [b""] * len(new), [], 0))
        else:
            self.hand_over(new)

    def hand_over(self, units: list[int]) -> None:
        rows = ROWS if self.shares else 0
        self.handle(*(messages.Submit(unit, self.bound.get(unit), b"", [], rows) for unit in units))

    def take(self, message: messages.Delivery) -> None:
        unit, kind, value, slot = message[:4]
        if kind == "dropped":
            assert unit < self.dropped_below and unit not in self.unanswered
            return
        self.unanswered.remove(unit)  # or it were answered twice
        self.answers[unit] = None if slot is None else (self.memory, slot[0])
        assert kind != "batch" or value[0] == (slot and slot[0])
        for counts in (self.kills, self.ended):
            counts.pop(unit, None)
        self.blamed = {at for at in self.blamed if at[0] != unit}
        if unit in self.on_trial:
            self.deaths.append((self.on_trial.pop(unit), unit))  # it was chance

    @precondition(lambda self: self.due and self.due[0] in self.answers)
    @rule()
    def deliver(self) -> None:
        self.let_go(self.due.pop(0))

    def let_go(self, unit: int) -> None:
        """Returns a batch's slot. A batch of an earlier supervisor lies in that one's memory."""
        place = self.answers.pop(unit)
        if place is not None and place[0] is self.memory:
            self.handle(messages.Freed([place[1]]))

    @precondition(lambda self: self.unanswered and self.starved_for is not None)
    @rule()
    def trainer_waits(self) -> None:
        """It has nothing to deliver, and says for which unit it waits."""
        if self.due[0] not in self.answers:
            self.hungry_for = min(self.unanswered)
            self.handle(messages.NeedsMemory([], self.hungry_for))

    @precondition(lambda self: len(self.due) > 6)  # else there would seldom be enough for anything to happen
    @rule(back=st.integers(0, 5), supervisor=st.booleans())
    def much_is_in_vain(self, back: int, supervisor: bool) -> None:
        if supervisor:
            self.the_supervisor_dies()
        else:
            self.drop(back)

    def drop(self, back: int) -> None:
        before = self.next - back
        if any(unit < before < unit + length for unit, length in self.runs()):
            before = self.next  # the trainer drops no part of a run
        self.dropped_below = max(self.dropped_below, before)
        below = {unit for unit in self.due if unit < self.dropped_below}
        self.due = [unit for unit in self.due if unit not in below]
        self.unanswered -= below
        for unit in below & set(self.answers):
            self.let_go(unit)
        self.handle(messages.Drop(self.dropped_below))

    def runs(self) -> list[tuple[int, int]]:
        """The units of the supervisor, with the length of those that begin a run."""
        work = self.supervisor._work
        return [(unit, len(works)) for unit, works in work.items() if isinstance(works, list)]

    def the_supervisor_dies(self) -> None:
        """And its workers. What has no answer is submitted again."""
        self.bear()
        self.hand_over(sorted(self.unanswered))

    @precondition(lambda self: self.workers < 5)
    @rule()
    def there_are_to_be_more(self) -> None:
        self.workers += 1
        self.handle(messages.Grow(self.workers))

    # The workers

    def receive(self, number: int, message: messages.ToWorker) -> None:
        worker = self.there[number]
        assert not worker.is_dismissed or not isinstance(message, messages.Unit)
        match message:
            case messages.Unit(unit, work, slots, _, part, _):
                assert worker.is_ready and self.bound.get(unit, number) == number
                assert [held.unit for held in worker.units] < [unit], "a worker has an earlier unit behind a later one"
                if self.room is not None and not worker.units:
                    before = [other for other in self.there.values() if other.units]
                    alone = unit == min(self.supervisor.outstanding) and all(other.waits for other in before)
                    assert alone or len(before) < self.room
                worker.units.append(message)
                worker.slots.update(zip(itertools.count(unit), slots))
                assert len(slots) <= (len(work) if isinstance(work, list) else 1)
                assert len(worker.units) <= 2 and (part is None or len(worker.units) == 1)
            case messages.Drop(before):
                assert before == self.dropped_below
            case messages.SlotGiven(question, given):
                assert question == worker.asked and worker.waits
                worker.waits = False
                unit, part = worker.units[0].unit, worker.units[0].part
                if isinstance(given, str):
                    assert self.memory.left < self.size[unit]
                    is_dropped = unit < self.dropped_below
                    assert is_dropped or (unit == self.hungry_for and not self.alike), "one by one all could be made"
                    worker.refused = True
                elif given is None:
                    assert part is not None
                    worker.refused = True
                else:
                    assert given[2] >= self.size[unit]
                    worker.slots[unit] = given

    @property
    def busy(self) -> list[int]:
        return [number for number, worker in self.there.items() if worker.units and not worker.waits]

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), slow=st.booleans())
    def work(self, data: st.DataObject, slow: bool) -> None:
        fails = data.draw(st.sampled_from([False, False, True]))
        self.one_step(data.draw(st.sampled_from(self.busy)), fails, SLOW_UNIT * (2 if slow else 0.5))

    def one_step(self, number: int, fails: bool = False, seconds: float = SLOW_UNIT / 2) -> None:
        """It answers, or asks for the memory that it needs."""
        worker = self.there[number]
        unit, work, _, _, part, _ = worker.units[0]
        slot = worker.slots.get(unit)
        if isinstance(work, list) and unit < self.dropped_below:
            self.answer(number, "empty", b"", seconds)
        elif worker.refused or fails:
            kind, value = ("short", (False, b"samples")) if part is not None and worker.refused else ("error", b"")
            self.answer(number, kind, value, seconds)
        elif slot is None or slot[2] < self.size[unit]:
            worker.asked += 1
            worker.waits = True
            question = messages.SlotWanted if part is None else messages.RowsWanted
            own = 0 if self.room is None else MUCH
            if part is None:
                worker.slots.pop(unit, None)
            self.say(Heard(number, question(unit, self.size[unit], worker.asked, own)))
        elif part is None:
            self.answer(number, "batch", (slot[0], self.size[unit]), seconds)
        else:
            self.answer(number, "rows", (LAYOUT, {}, b"form"), seconds)

    def answer(self, number: int, kind: Any, value: Any, seconds: float) -> None:
        worker = self.there[number]
        unit = worker.units.pop(0)
        worker.refused = False
        worker.slots.pop(unit.unit, None)
        if isinstance(unit.work, list) and (rest := unit.work[1:]):  # of a run, which it makes next
            worker.units.insert(0, unit._replace(unit=unit.unit + 1, work=rest))
        samples = 1 if unit.part is None else unit.part[1] - unit.part[0]
        said = tuple(UnitReport(samples=samples))
        self.say(Heard(number, messages.UnitDone(unit.unit, kind, value, seconds, said, seconds)))

    @precondition(lambda self: any(worker.units for worker in self.there.values()))
    @rule(data=st.data(), position=POSITIONS, code=CODES)
    def die(self, data: st.DataObject, position: Position, code: int | None) -> None:
        number = data.draw(st.sampled_from(sorted(self.there)))
        if self.there[number].waits:
            position = Position(Activity.WRITE)  # it is there that one asks
        self.bury(number, position, code)

    @precondition(lambda self: any(worker.is_dismissed or worker.is_killed for worker in self.there.values()))
    @rule(position=POSITIONS)
    def leave(self, position: Position = IDLE) -> None:
        for number, worker in list(self.there.items()):
            if (worker.is_dismissed or worker.is_killed) and self.there.get(number) is worker:
                self.bury(number, position, -signal.SIGKILL if worker.is_killed else 0)

    def bury(self, number: int, position: Position, code: int | None) -> None:
        """All that it has said is heard first."""
        if self.inbox:
            self.listen()
        supervisor, worker = self.supervisor, self.there.pop(number)
        held = [unit.unit for unit in worker.units]
        unit = held[0] if held else None
        in_hand = -1
        if held and worker.inspected is None and isinstance(work := worker.units[0].work, list):
            unit = in_hand = held[0] + len(work) // 2
        self.sound = False  # until this is over
        commands = supervisor.handle([Exited(number, code, position, in_hand=in_hand)], self.now)
        last = [
            command for command in commands if isinstance(command, Tell) and type(command.message) is messages.LastDeath
        ]
        told = [command.incident for command in commands if isinstance(command, Notify)]
        replaced = [incident for incident in told if isinstance(incident, messages.Replaced)]
        if worker.is_dismissed and not held:
            assert not last and not replaced
        elif last:
            assert not replaced
            if self.most and self.ever_ready:
                self.judge(unit, position, code, worker.inspected, ends=True, blamed=False)
            self.sound = True
            self.the_supervisor_dies()  # the run ends; the next one has the same to do
            return
        else:
            (incident,) = replaced
            self.judge(unit, position, code, worker.inspected, ends=False, blamed=incident.end.blamed)
        self.sound = True
        for command in commands:
            if self.supervisor is supervisor:
                self.carry_out(command)

    def judge(
        self, unit: int | None, position: Position, code: int | None, stall: Inspected | None, ends: bool, blamed: bool
    ) -> None:
        """The model of who is to blame agrees."""
        place = None if position == IDLE else position.mark
        if stall is not None and stall.unit == unit and unit is not None:
            places = self.ended.setdefault(unit, [])
            if place is not None:
                places.append(place)
            proven = (
                place is not None and places.count(place) >= STALLS and (place >= 0 or places.count(place) == STALLS)
            )
            if proven:
                assert blamed
                self.forgive(unit)
                return
            place = None
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
        assert blamed == guilty
        assert ends == (not (guilty or on_trial) and len(self.deaths) > self.most)

    def forgive(self, unit: int) -> None:
        self.deaths = [death for death in self.deaths if death[1] != unit]
        self.kills.pop(unit, None)
        self.on_trial.pop(unit, None)

    # Time

    @rule(seconds=st.sampled_from([1.0, AFTER, 0.6 * PERIOD]), away=st.booleans())
    def time_goes_by(self, seconds: float, away: bool) -> None:
        self.now += seconds
        if away:
            self.handle(Away(seconds))
        self.ring()

    def ring(self) -> None:
        if self.timer is not None and self.timer <= self.now:
            self.timer = None
            self.handle(Tick())

    # What always holds

    @invariant()
    def no_unit_is_lost(self) -> None:
        if not hasattr(self, "supervisor"):
            return
        outstanding = set(self.supervisor.outstanding)
        outstanding.update(unit + place for unit, length in self.runs() for place in range(length))
        assert self.unanswered <= outstanding
        assert outstanding - self.unanswered <= set(range(self.dropped_below))
        assert set(self.due) == self.unanswered | set(self.answers)
        held = {unit.unit for worker in self.there.values() for unit in worker.units}
        assert held <= outstanding

    @invariant()
    def memory_is_neither_lost_nor_lent_twice(self) -> None:
        if not hasattr(self, "supervisor") or self.inbox or self.shares:
            return
        lent = [slot[0] for worker in self.there.values() for slot in worker.slots.values() if slot is not None]
        arrived = [place[1] for place in self.answers.values() if place and place[0] is self.memory]
        assert sorted(self.memory.taken) == sorted(lent + arrived)

    @invariant()
    def a_timer_is_set_where_something_will_be_due(self) -> None:
        if not hasattr(self, "supervisor"):
            return
        if self.supervisor.outstanding or any(worker.is_dismissed for worker in self.there.values()):
            assert self.timer is not None

    def teardown(self) -> None:
        """If nothing more happens to the workers, all is done and delivered."""
        if not self.sound or not hasattr(self, "supervisor"):
            return
        for _ in range(10 + 6 * len(self.due)):
            if not self.due:
                break
            if self.inbox:
                self.listen()
            self.to_inspect.clear()
            self.leave()
            for number in sorted(self.to_start):
                self.to_start.remove(number)
                self.start(number)
            for number, worker in list(self.there.items()):
                if not worker.is_ready:
                    self.gets_ready(number)
            for number in list(self.there):
                if number in self.busy:
                    self.one_step(number)
            if self.inbox:
                self.listen()
            while self.due and self.due[0] in self.answers:
                self.deliver()
            if self.unanswered and self.starved_for is not None:
                self.trainer_waits()
            if self.timer is not None and (self.to_start or not self.busy):
                self.now = max(self.now, self.timer)
                self.ring()
        waiting = [number for number, worker in self.there.items() if worker.waits]
        assert not self.due, f"units {self.due} are never delivered; workers {waiting} wait for memory"
        if self.shares:
            arrived = [place[1] for place in self.answers.values() if place and place[0] is self.memory]
            assert sorted(self.memory.taken) == sorted(arrived) or any(worker.units for worker in self.there.values())


class Compared(Interleavings):
    """A second supervisor, which looks at all workers every time, decides the same."""

    def supervised(self, rules: Rules) -> Supervisor:
        facts: Any = self
        arena: Any = Memory(self.capacity)
        both: Any = Both(super().supervised(rules), by_all(self.workers, rules, arena, facts, self.spawns))
        return both  # type: ignore[no-any-return]


class Both:
    """Two supervisors of which every event has the same consequences."""

    def __init__(self, ours: Supervisor, other: Supervisor) -> None:
        self._ours, self._other = ours, other

    def handle(self, events: Iterable[Event], now: float) -> list[Any]:
        events = list(events)
        commands = self._ours.handle(events, now)
        assert commands == self._other.handle(events, now)
        return commands

    @property
    def outstanding(self) -> Iterable[int]:
        return self._ours.outstanding

    @property
    def _work(self) -> Any:
        return self._ours._work


def begun(units: list[tuple[int, int]], workers: int, capacity: int) -> Interleavings:
    machine = Interleavings()
    machine.begin(workers=workers, most=5, capacity=capacity, alike=False, bound=False)
    machine.submit(units)
    return machine


def test_dropped_unit_that_is_too_large_keeps_no_other_waiting() -> None:
    machine = begun([(0, 3), (0, 1)], workers=1, capacity=2)
    machine.drop(back=1)
    machine.teardown()
    assert machine.answers == {} and not machine.due


def test_memory_of_a_dropped_unit_is_waited_for() -> None:
    machine = begun([(0, 2), (0, 2)], workers=2, capacity=2)
    machine.drop(back=1)
    machine.one_step(0)
    machine.one_step(1)  # waits
    machine.trainer_waits()
    assert not machine.there[1].refused
    machine.one_step(0)
    machine.one_step(1)
    assert machine.answers[1] is not None


class TestInterleavings(Interleavings.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=60, stateful_step_count=40)


class TestCompared(Compared.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.long
@pytest.mark.timeout(900)
class TestManyInterleavings(Interleavings.TestCase):  # type: ignore[misc]
    """100,000 steps, other ones each time."""

    settings = settings(max_examples=1000, stateful_step_count=100, derandomize=False)


@pytest.mark.long
@pytest.mark.timeout(900)
class TestManyCompared(Compared.TestCase):  # type: ignore[misc]
    """Likewise."""

    settings = settings(max_examples=1000, stateful_step_count=100, derandomize=False)
