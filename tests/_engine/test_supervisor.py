"""The supervisor, without processes: what it commands about what it is told."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from stoker._core.machine.memory import Available
from stoker._core.machine.reserve import kept_free
from stoker._engine import messages
from stoker._engine.activity import IDLE, Activity, Position, sample
from stoker._engine.backend import UnitReport
from stoker._engine.commands import (
    AllStarted,
    CheckLocks,
    Command,
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
    Trim,
)
from stoker._engine.process.deadlines import FLUSH, HELD_BACK, LOCKED_AFTER, OPENED, PATIENCE, REAP
from stoker._engine.supervision import rules
from stoker._engine.supervision.rules import Rules
from stoker._engine.supervision.split_policy import SplitPolicy
from stoker._engine.supervisor import Supervisor
from tests._engine.supervision.arena import Memory

C = TypeVar("C")
PLENTY = 1 << 40


class Machine:
    """A supervisor of workers that are played, and what it has commanded since it was last asked."""

    def __init__(
        self,
        workers: int = 1,
        capacity: int = 100,
        locks: bool = False,
        unpickles: bool = False,
        ahead: bool = False,
        **rules: Any,
    ) -> None:
        self.now = 1000.0
        self.bytes: dict[int, int] = {}
        self.left = PLENTY
        self.duties: set[int] = set()
        self.memory = Memory(capacity)
        self._supervisor = Supervisor(workers, Rules(**rules), self.memory, self, None, unpickles, ahead, locks)  # type: ignore[arg-type]
        self.commands: list[Command] = []
        for number in range(workers - rules.get("remote", 0)):
            self.tell(Started(number, 100 + number))
        self.tell(AllStarted(PLENTY))
        if not rules.get("remote"):
            self.commands.clear()

    def own_bytes(self, worker: int) -> int:
        return self.bytes.get(worker, 0)

    def has_duties(self, worker: int) -> bool:
        return worker in self.duties

    def available(self) -> Available:
        return Available(self.left, PLENTY, "the test")

    def tell(self, *events: Event) -> list[Command]:
        made = self._supervisor.handle(events, self.now)
        self.commands += made
        return made

    def of(self, kind: type[C]) -> list[C]:
        """Those of this kind, of all messages for the trainer too."""
        told = [command.message for command in self.commands if isinstance(command, Tell)]
        told += [command.incident for command in self.commands if isinstance(command, Notify)]  # type: ignore[misc]
        return [found for found in (*self.commands, *told) if isinstance(found, kind)]

    def sent(self, worker: int) -> list[Any]:
        return [command.message for command in self.commands if isinstance(command, Send) and command.worker == worker]

    def submit(self, units: Iterable[int], worker: int | None = None, rows: int = 0) -> None:
        self.tell(*(messages.Submit(unit, worker, b"work", [], rows) for unit in units))

    def done(self, worker: int, unit: int, samples: int = 1, **said: Any) -> list[Command]:
        told = tuple(UnitReport(samples=samples, **said))
        return self.tell(Heard(worker, messages.UnitDone(unit, "empty", b"", 0.001, told, 0.001)))

    def later(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.tell(Tick())


def test_unit_goes_to_a_worker_and_its_answer_to_the_trainer() -> None:
    machine = Machine()
    machine.submit([0])
    assert machine.sent(0) == [messages.Unit(0, b"work", [], (), None)]
    machine.done(0, 0)
    assert machine.of(messages.Delivery) == [(0, "empty", b"", None, 0, tuple(UnitReport(samples=1)), 0.001)]


def test_first_answer_of_a_worker_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its samples may import modules, and open files."""
    spent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(SplitPolicy, "spent", lambda cut, *told: spent.append(told))
    machine = Machine()
    machine.submit(range(3))
    for unit in range(3):
        machine.tell(Heard(0, messages.SlotWanted(unit, 1, unit, 0)))
        said = tuple(UnitReport(samples=8))
        machine.tell(Heard(0, messages.UnitDone(unit, "batch", (1, 1, b""), 0.5, said, float(unit))))
    assert spent == [(False, 8, 0.5, 1.0), (False, 8, 0.5, 2.0)]


def test_units_that_come_together_go_to_all_workers() -> None:
    machine = Machine(workers=2)
    machine.submit([0, 1])
    assert [message.unit for worker in range(2) for message in machine.sent(worker)] == [0, 1]


def submit_run(machine: Machine, first: int, count: int) -> None:
    machine.tell(messages.Submit(first, None, [b"work %d" % unit for unit in range(first, first + count)], [], 0))
    machine.commands.clear()


def run_done(worker: int, unit: int, made: int) -> list[Heard]:
    """It answers each of these units."""
    said = tuple(UnitReport(samples=8))
    value = (None, 0, b"", b"", {})
    answers = [messages.UnitDone(each, "batch", value, 0.001, said, 0.001) for each in range(unit, unit + made)]  # type: ignore[arg-type]
    return [Heard(worker, answer) for answer in answers]


def test_run_goes_to_one_worker_and_comes_back_batch_by_batch() -> None:
    machine = Machine(workers=2)
    machine.tell(messages.Submit(0, None, [b"a", b"b"], [], 0))
    assert machine.sent(0) == [messages.Unit(0, [b"a", b"b"], [], (), None)] and not machine.sent(1)
    for unit in range(2):
        machine.tell(*run_done(0, unit, 1))
        (*_, delivery) = machine.of(messages.Delivery)
        assert delivery[:2] == (unit, "batch") and delivery.seconds == 0.001
    assert not list(machine._supervisor.outstanding)


def test_worker_keeps_the_rest_of_a_run_before_later_units() -> None:
    """Another would get units out of order, and one that waits for memory may wait for that rest."""
    machine = Machine(workers=2)
    submit_run(machine, 0, 2)
    machine.tell(*run_done(0, 0, 2))  # a quick one: from now on each worker holds two
    for first, count in ((2, 4), (6, 2), (8, 2)):
        submit_run(machine, first, count)
    held = machine._supervisor._dispatch.assignments
    assert [run.unit for run in held(0)] == [2, 8] and [run.unit for run in held(1)] == [6]
    machine.tell(*run_done(0, 2, 2))
    assert [run.unit for run in held(0)] == [4, 8]
    machine.tell(Heard(0, messages.SlotWanted(4, 1, 7, 0)))
    assert [message.question for message in machine.sent(0) if isinstance(message, messages.SlotGiven)] == [7]
    machine.tell(*run_done(0, 4, 2), *run_done(0, 8, 2), *run_done(1, 6, 2))
    assert [delivery.unit for delivery in machine.of(messages.Delivery)] == [2, 3, 4, 5, 8, 9, 6, 7]
    assert not list(machine._supervisor.outstanding)


def test_rest_of_a_run_of_a_dead_worker_is_made_again() -> None:
    """Its mark may still name the unit that it has answered last."""
    machine = Machine()
    submit_run(machine, 5, 4)
    machine.tell(*run_done(0, 5, 2), Exited(0, -signal.SIGKILL, sample(3), "stack", in_hand=6))
    (replaced,) = machine.of(messages.Replaced)
    assert replaced.end.unit == 7
    machine.commands.clear()
    machine.tell(Started(0, 200))
    machine.done(0, 7)
    machine.done(0, 8)
    assert [(message.unit, message.work) for message in machine.sent(0)] == [(7, b"work 7"), (8, b"work 8")]


def test_slots_of_a_run_come_back() -> None:
    """Each with its batch, and those of a dead worker's units with its death."""
    machine = Machine(capacity=4)
    machine.submit([0])
    machine.tell(Heard(0, messages.SlotWanted(0, 1, 7, 0)))
    (given,) = [message.given for message in machine.sent(0) if isinstance(message, messages.SlotGiven)]
    said, value = tuple(UnitReport()), (given[0], 1, b"", b"", {})
    machine.tell(Heard(0, messages.UnitDone(0, "batch", value, 0.001, said, 0.001)))  # type: ignore[arg-type]
    submit_run(machine, 1, 4)
    machine.tell(messages.Freed([given[0]]))
    slots = machine._supervisor._slots._slots
    assert list(slots) == [1, 2, 3] and machine.memory.left == 1
    value = (slots[1], *value[1:])
    machine.tell(Heard(0, messages.UnitDone(1, "batch", value, 0.001, said, 0.001)))  # type: ignore[arg-type]
    assert machine.of(messages.Delivery)[-1].slot[0] == value[0] and list(slots) == [2, 3]
    machine.tell(Exited(0, -signal.SIGKILL, sample(0), in_hand=2))
    assert not slots and machine.memory.left == 3


def test_run_of_a_dead_worker_is_made_again_one_by_one() -> None:
    machine = Machine()
    submit_run(machine, 5, 3)
    machine.tell(Exited(0, -signal.SIGKILL, sample(3), "stack", in_hand=6))
    (replaced,) = machine.of(messages.Replaced)
    assert replaced.end == messages.WorkerExit(0, 100, -signal.SIGKILL, 6, sample(3), "stack")
    machine.commands.clear()
    machine.tell(Started(0, 200))
    for unit in range(5, 8):
        machine.done(0, unit)
    assert [(message.unit, message.work) for message in machine.sent(0)] == [
        (unit, b"work %d" % unit) for unit in range(5, 8)
    ]


def test_stall_within_a_run_names_its_unit() -> None:
    machine = Machine(stall_warning=1.0, stall_action="restart")
    submit_run(machine, 5, 3)
    machine.tell(Inspected(0, 5, 2.0, sample(1), "stack", in_hand=7))
    (stalled,) = machine.of(messages.Stalled)
    assert stalled.unit == 7 and machine.of(Kill) == [Kill(0)]
    machine.commands.clear()
    machine.tell(Exited(0, -signal.SIGKILL, sample(1), "stack", in_hand=7))
    (replaced,) = machine.of(messages.Replaced)
    assert replaced.end.unit == 7 and replaced.end.stalled


def test_memory_is_left_for_all_units_of_an_earlier_run() -> None:
    """Each needs one."""
    machine = Machine(workers=2, capacity=3)
    submit_run(machine, 0, 3)
    machine.submit([3])
    machine.tell(Heard(1, messages.SlotWanted(3, 1, 7, 0)))
    assert not [message for message in machine.sent(1) if isinstance(message, messages.SlotGiven)]
    machine.tell(*run_done(0, 0, 3))
    assert [message.question for message in machine.sent(1) if isinstance(message, messages.SlotGiven)] == [7]


def test_dropped_run_leaves_nothing() -> None:
    machine = Machine()
    submit_run(machine, 0, 4)
    machine.tell(messages.Drop(4))
    assert machine.sent(0) == [messages.Drop(4)]
    machine.tell(*run_done(0, 0, 4))
    assert [delivery.kind for delivery in machine.of(messages.Delivery)] == ["dropped"] * 4
    assert not list(machine._supervisor.outstanding)


def test_memory_kept_for_a_dropped_unit_goes_to_the_next() -> None:
    """There is memory for one batch. The unit before it lost its worker, and is not wanted any more."""
    machine = Machine(workers=2, capacity=1)
    machine.submit([0, 1])
    machine.tell(Exited(0, -signal.SIGKILL, sample(0)))
    machine.tell(Heard(1, messages.SlotWanted(1, 1, 7, 0)))
    given = [message for message in machine.sent(1) if isinstance(message, messages.SlotGiven)]
    assert not given
    machine.tell(messages.Drop(1))
    assert [message.question for message in machine.sent(1) if isinstance(message, messages.SlotGiven)] == [7]


def test_first_unit_after_a_pause_sets_the_timer_for_stalls() -> None:
    """The timer may be set for what else is due: a unit must not wait for that until it is watched."""
    machine = Machine(stall_warning=10.0)
    machine.later(rules.IDLE)
    machine.commands.clear()
    machine.submit([0])
    (timer,) = machine.of(SetTimer)
    assert timer.at <= machine.now + 1.0
    machine.commands.clear()
    machine.submit([1])
    assert not machine.of(SetTimer)


@pytest.mark.parametrize(("left", "rests"), [(kept_free(PLENTY) + (3 << 29), True), (PLENTY, False)])
def test_worker_without_work_trims_where_memory_is_short(left: int, rests: bool) -> None:
    machine = Machine(workers=2, growth=1 << 30)
    machine.left = left
    machine.submit([0, 1])
    machine.done(0, 0)
    assert any(isinstance(message, messages.TrimMemory) for message in machine.sent(0)) == rests


def test_death_is_reported_and_its_unit_done_again() -> None:
    machine = Machine()
    machine.submit([0])
    machine.commands.clear()
    machine.tell(Exited(0, -signal.SIGKILL, sample(3), "stack"))
    (replaced,) = machine.of(messages.Replaced)
    assert replaced.end == messages.WorkerExit(0, 100, -signal.SIGKILL, 0, sample(3), "stack")
    assert machine.of(Spawn) == [Spawn(0)]
    machine.tell(Started(0, 200))
    assert [message.unit for message in machine.sent(0)] == [0]
    assert machine.of(messages.WorkerPids) == [([200], {})]


def test_deaths_beyond_the_limit_end_the_run() -> None:
    machine = Machine(max_restarts=0)
    machine.submit([0])
    machine.tell(Exited(0, 3, sample(0)))
    (last,) = machine.of(messages.LastDeath)
    assert last.end.unit == 0 and not machine.of(Spawn)


@pytest.mark.parametrize(("code", "ends"), [(1, True), (-signal.SIGSEGV, True), (-signal.SIGKILL, False)])
def test_worker_that_ends_while_it_unpickles_ends_the_run(code: int, ends: bool) -> None:
    """Others would end as well, unless it was killed from outside."""
    machine = Machine(unpickles=True, ahead=True)
    machine.submit([0])
    assert [message.unit for message in machine.sent(0)] == [0]
    machine.tell(Exited(0, code, Position(Activity.UNPICKLING)))
    assert bool(machine.of(messages.LastDeath)) == ends and bool(machine.of(Spawn)) != ends
    assert all(end.unit is None for end, *_ in machine.of(messages.LastDeath) + machine.of(messages.Replaced))


def test_unpickling_worker_gets_units_once_it_has_begun() -> None:
    machine = Machine(unpickles=True)
    machine.submit([0])
    assert not machine.sent(0)
    machine.tell(Heard(0, messages.Unpickled(1.5, 100, 0)))
    assert [message.unit for message in machine.sent(0)] == [0]
    assert machine.of(messages.Unpickled) == [(1.5, 100, 0)]


def test_later_worker_is_handed_nothing_while_it_unpickles() -> None:
    machine = Machine(workers=2, unpickles=True, ahead=True)
    machine.tell(Heard(0, messages.Unpickled(1.5, 100, 0)))
    machine.tell(Exited(1, -signal.SIGKILL, Position(Activity.UNPICKLING)), Started(1, 7))
    machine.submit([0, 1, 2])
    assert not machine.sent(1)


def test_worker_that_unpickles_for_too_long_ends_the_run() -> None:
    machine = Machine(unpickles=True)
    machine.later(OPENED)
    (inspect,) = machine.of(Inspect)
    assert inspect == (0, None, OPENED)
    machine.tell(Inspected(*inspect, Position(Activity.UNPICKLING), "its stack"))
    assert machine.of(messages.Broken) and machine.of(Stop)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("knows", [True, False])
def test_worker_that_is_stopped_while_it_unpickles_is_replaced(ahead: bool, knows: bool) -> None:
    """Once another worker has shown how long it takes, after twice that time; otherwise after ten times the warning."""
    machine = Machine(workers=2, unpickles=True, ahead=ahead, stall_warning=10.0, stall_action="restart")
    machine.submit([0, 1])
    if knows:
        machine.tell(Heard(0, messages.Unpickled(20.0, 100, 0)))
    waited, late = 0, list[Inspect]()
    while not late:
        machine.later(1.0)
        waited += 1
        late = [inspect for inspect in machine.of(Inspect) if inspect.unit is not None and inspect.unit < 0]
    assert waited == pytest.approx(50 if knows else 100, abs=1)
    for inspect in late:
        machine.tell(Inspected(*inspect, Position(Activity.UNPICKLING), "its stack"))
    assert Kill(1) in machine.of(Kill) and (Kill(0) in machine.of(Kill)) != knows
    machine.tell(Exited(1, -signal.SIGKILL, Position(Activity.UNPICKLING)))
    assert machine.of(messages.Replaced)[0].end.stalled
    assert Spawn(1) in machine.of(Spawn)
    machine.commands.clear()
    machine.tell(Started(1, 7))
    machine.later(9.0)
    assert 1 not in [inspect.worker for inspect in machine.of(Inspect)]  # the new one has its own time


def test_worker_that_unpickles_in_time_is_not_ended() -> None:
    machine = Machine(unpickles=True, stall_warning=1.0, stall_action="restart")
    machine.submit([0])
    for _ in range(120):
        machine.later(0.1)
    (inspect,) = machine.of(Inspect)
    machine.tell(
        Heard(0, messages.Unpickled(10.0, 100, 0)), Inspected(*inspect, Position(Activity.UNPICKLING), "its stack")
    )
    assert not machine.of(Kill)


def test_worker_with_duties_has_longer_to_leave() -> None:
    machine = Machine()
    machine.duties.add(0)
    machine.tell(Heard(0, messages.Leaves()))
    machine.later(REAP)
    assert not machine.of(Kill)
    machine.later(FLUSH)
    assert machine.of(Kill) == [Kill(0)]


def test_second_death_waits_before_the_worker_is_started() -> None:
    machine = Machine()
    for _ in range(2):
        machine.commands.clear()
        machine.tell(Exited(0, -signal.SIGKILL, IDLE))
        machine.tell(*(Started(0, 1) for _ in machine.of(Spawn)))
    assert not machine.of(Spawn)
    (timer,) = machine.of(SetTimer)[-1:]
    machine.later(timer.at - machine.now)
    assert machine.of(Spawn) == [Spawn(0)]


def test_start_that_fails_is_tried_again_until_patience_ends() -> None:
    machine = Machine()
    machine.tell(Exited(0, -signal.SIGKILL, IDLE))
    tries = 0
    while not machine.of(Stop):
        assert len(machine.of(Spawn)) == tries + 1
        tries += 1
        machine.tell(StartFailed(0, BlockingIOError(11, "no process")))
        machine.later(HELD_BACK)
    assert tries > PATIENCE / HELD_BACK
    assert len(machine.of(messages.HeldBack)) == 1 and machine.of(messages.Broken)


def test_start_that_fails_at_the_beginning_ends_the_run() -> None:
    machine = Machine(workers=2)
    machine.tell(StartFailed(1, BlockingIOError(11, "no process")))
    assert machine.of(messages.Broken) and machine.of(Stop)


def test_growth_starts_one_worker_at_a_time_and_stops_quietly() -> None:
    machine = Machine()
    machine.tell(messages.Grow(4))
    assert machine.of(Spawn) == [Spawn(1)]
    machine.tell(Started(1, 101))
    machine.later(0.0)
    assert machine.of(Spawn) == [Spawn(1), Spawn(2)]
    machine.tell(StartFailed(2, BlockingIOError(11, "no process")))
    machine.later(60.0)
    assert machine.of(Spawn) == [Spawn(1), Spawn(2)] and not machine.of(messages.HeldBack)


def test_worker_that_made_its_samples_is_dismissed_when_idle() -> None:
    machine = Machine(max_samples_per_worker=2)
    machine.submit([0, 1, 2])
    machine.done(0, 0)
    machine.done(0, 1)
    assert machine.of(messages.Retires) and not machine.of(Dismiss)
    machine.done(0, 2)
    assert machine.of(Dismiss) == [Dismiss(0)]
    machine.later(REAP)
    assert machine.of(Kill) == [Kill(0)]
    machine.tell(Exited(0, -signal.SIGKILL, IDLE))
    assert machine.of(Spawn) == [Spawn(0)] and not machine.of(messages.Replaced)


def test_worker_whose_stream_cannot_move_stays() -> None:
    machine = Machine(max_samples_per_worker=1)
    machine.submit([0, 1])
    machine.done(0, 0, movable=False)
    machine.done(0, 1, movable=False)
    assert len(machine.of(messages.Stays)) == 1 and not machine.of(Dismiss)


def test_replacement_goes_on_with_the_stream() -> None:
    machine = Machine()
    machine.submit([0], worker=0)
    machine.done(0, 0, stream_state=b"here")
    machine.tell(Exited(0, -signal.SIGKILL, IDLE))
    machine.commands.clear()
    machine.tell(Started(0, 7))
    assert machine.sent(0) == [messages.Resume(b"here")]


@pytest.mark.parametrize(("answers", "action"), [(False, "warn"), (False, "restart"), (True, "restart")])
def test_stalled_worker_is_ended_unless_it_answers_meanwhile(answers: bool, action: Any) -> None:
    machine = Machine(stall_warning=10.0, stall_action=action)
    machine.submit([0])
    while not machine.of(Inspect):
        machine.later(1.0)
    (inspect,) = machine.of(Inspect)
    assert inspect[:2] == (0, 0) and inspect.seconds >= 10.0
    said = tuple(UnitReport())
    answer = [Heard(0, messages.UnitDone(0, "empty", b"", 10.0, said, 10.0))] if answers else []
    machine.tell(Inspected(*inspect, sample(2), "then"), *answer)
    assert machine.of(messages.Stalled) == [(0, 0, sample(2), inspect.seconds, "then")]
    assert machine.of(Kill) == ([Kill(0)] if action == "restart" and not answers else [])
    if machine.of(Kill):
        machine.tell(Exited(0, -signal.SIGKILL, sample(2)))
        assert machine.of(messages.Replaced)[0].end.stalled


def test_busy_workers_are_checked_for_locks_until_one_answers() -> None:
    machine = Machine(workers=2, locks=True)
    machine.submit([0, 1])
    machine.later(LOCKED_AFTER / 5)
    machine.later(LOCKED_AFTER / 5)
    assert machine.of(CheckLocks)[-1] == CheckLocks((0, 1))
    machine.done(0, 0)
    machine.commands.clear()
    machine.later(LOCKED_AFTER)
    assert not machine.of(CheckLocks)


def test_idle_workers_and_this_process_trim_their_memory() -> None:
    machine = Machine()
    machine.submit([0])
    machine.done(0, 0)
    for _ in range(4):
        machine.later(rules.IDLE)
    assert machine.of(Trim) and messages.TrimMemory() in machine.sent(0)


def test_message_of_a_worker_that_is_gone_is_passed_over() -> None:
    machine = Machine(workers=2)
    machine.tell(Exited(1, -signal.SIGKILL, IDLE))
    assert not machine.tell(Heard(1, messages.SlotWanted(0, 1, 1, 0)))


def test_unit_that_waits_for_memory_is_warned_of_then_refused() -> None:
    machine = Machine(capacity=1)
    machine.submit([0, 1])
    machine.tell(Heard(0, messages.SlotWanted(0, 1, 1, 0)))
    said = tuple(UnitReport(samples=1))
    machine.tell(Heard(0, messages.UnitDone(0, "batch", (1, 1, b""), 0.001, said, 0.001)))
    machine.tell(Heard(0, messages.SlotWanted(1, 1, 2, 0)))
    assert machine.of(messages.Starved) == [(1,)]
    machine.tell(messages.NeedsMemory([], 1))
    given = [message.given for message in machine.sent(0) if isinstance(message, messages.SlotGiven)]
    assert given[1] == "full"


def test_worker_growth_is_counted_from_its_unpickling() -> None:
    """It may have begun its unit when the supervisor hears that."""
    machine = Machine(unpickles=True, ahead=True)
    machine.submit([0])
    machine.bytes[0] = 900
    machine.tell(Heard(0, messages.Unpickled(1.5, 100, 100)), Heard(0, messages.SlotWanted(0, 1, 1, 900)))
    assert machine._supervisor._memory.growth == 800
