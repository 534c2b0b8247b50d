"""What the supervisor knows of workers on other machines: whose memory they take, and what their ends prove."""

from __future__ import annotations

from stoker._engine import messages
from stoker._engine.activity import IDLE, Activity, Position, sample
from stoker._engine.backend import UnitReport
from stoker._engine.commands import (
    Dismiss,
    Drains,
    Exited,
    Heard,
    Inspect,
    Inspected,
    Kill,
    Spawn,
    Started,
    StartFailed,
)
from stoker._engine.process.deadlines import FLUSH, HELD_BACK, PATIENCE, REAP
from tests._engine.test_supervisor import Machine

ELSEWHERE = "pid 7 on host b"


def machine(local: int = 1, remote: int = 1, **rules: object) -> Machine:
    """Returns a supervisor whose remote workers have started."""
    made = Machine(local + remote, remote=remote, **rules)
    for number in range(local, local + remote):
        assert Spawn(number) in made.commands
        made.tell(Started(number, ELSEWHERE))
    made.commands.clear()
    return made


def test_local_worker_gets_the_next_unit_first() -> None:
    made = machine()
    made.submit([0])
    assert made.sent(0) and not made.sent(1)
    made.submit([1])
    assert made.sent(1)


def test_remote_worker_has_its_next_unit_while_it_makes_one() -> None:
    made = machine()
    made.submit([0])
    made.tell(Heard(0, messages.UnitDone(0, "empty", b"", 1.0, tuple(UnitReport(samples=1)), 1.0)))  # units are slow
    made.commands.clear()
    made.submit(range(1, 6))
    assert [unit.unit for unit in made.sent(0)] == [1] and [unit.unit for unit in made.sent(1)] == [2, 3]
    made.tell(Exited(1, None, sample(0), is_lost=True))
    made.commands.clear()
    made.done(0, 1)
    assert made.sent(0)[0].unit == 2  # both are made again, before later ones


def test_worker_that_leaves_has_time_to_exit() -> None:
    made = machine()
    made.tell(Heard(1, messages.Leaves()))
    made.later(4 * REAP)  # a clean interpreter on a busy host; a kill would hide its exit code
    assert not made.of(Kill)
    made.later(FLUSH)
    assert made.of(Kill) == [Kill(1)]


def test_units_wait_for_no_worker_that_is_not_there() -> None:
    made = Machine(2, remote=1)
    made.commands.clear()
    made.submit([0, 1])
    assert made.sent(0) and not made.sent(1)
    made.tell(StartFailed(1, OSError("Ray has no room")))
    (held_back,) = made.of(messages.HeldBack)
    assert held_back == (1, "Ray has no room", True)
    made.commands.clear()
    made.later(HELD_BACK)
    assert Spawn(1) in made.commands
    made.tell(Started(1, ELSEWHERE))
    assert [unit.unit for unit in made.sent(1)] == [1]


def test_pids_are_those_of_this_machine() -> None:
    made = machine(local=2)
    made.tell(Exited(2, -9, IDLE))
    made.later(0.0)
    made.tell(Started(2, ELSEWHERE))
    assert made.of(messages.WorkerPids)[-1] == ([100, 101], {2: "b"})


def test_lost_machine_counts_from_the_third_of_a_unit_on() -> None:
    made = machine(local=0, max_restarts=1)
    made.submit([0])
    for _ in range(2):
        made.tell(Exited(0, None, sample(3), is_lost=True))
        assert not made.of(messages.DeathsCounted)[-1].times
        made.later(0.0)
        made.tell(Started(0, ELSEWHERE))
        assert made.sent(0)[-1].unit == 0
    replaced = made.of(messages.Replaced)
    assert [story.end.is_lost for story in replaced] == [True, True] and not any(story.end.blamed for story in replaced)
    made.tell(Exited(0, None, sample(3), is_lost=True))
    assert len(made.of(messages.DeathsCounted)[-1].times) == 1


def test_death_on_a_machine_that_lives_counts() -> None:
    made = machine(max_restarts=0)
    made.submit([0, 1])
    made.tell(Exited(1, -9, sample(0)))
    (last,) = made.of(messages.LastDeath)
    assert last.end.pid == ELSEWHERE


def test_wait_for_a_turn_in_a_pool_is_no_stall() -> None:
    made = machine(local=0, stall_warning=10.0, stall_action="restart")
    made.submit([0])
    asked = 0
    for _ in range(35):
        made.later(1.0)
        for inspect in [command for command in made.commands if isinstance(command, Inspect)][asked:]:
            asked += 1
            made.tell(Inspected(0, inspect.unit, inspect.seconds, Position(Activity.TURN), "stack"))
    assert asked == 3 and not made.of(messages.Stalled) and Kill(0) not in made.commands
    made.later(9.0)
    last = [command for command in made.commands if isinstance(command, Inspect)][-1]
    made.tell(Inspected(0, last.unit, last.seconds, sample(1), "stack"))
    assert len(made.of(messages.Stalled)) == 1 and Kill(0) in made.commands


def test_remote_worker_begins_while_memory_here_is_short() -> None:
    made = machine(local=2, growth=64 << 20)
    made.left = 1 << 20
    made.submit([0, 1, 2])
    assert [unit.unit for unit in made.sent(2)] == [0, 1] and not made.sent(0) and not made.sent(1)
    made.done(2, 0)
    assert [sent.unit for sent in made.sent(2) if isinstance(sent, messages.Unit)] == [0, 1, 2]
    assert not [delivery for delivery in made.of(messages.Delivery) if delivery.kind == "error"]


def test_drained_worker_finishes_its_unit_and_gets_no_other() -> None:
    made = machine(local=0, remote=2)
    made.submit([0, 1])
    made.tell(Drains(0, "its machine is to be taken away"))
    assert made.of(messages.Retires) == [(0, ELSEWHERE, "its machine is to be taken away")]
    made.submit([2, 3, 4])
    made.commands.clear()
    made.done(0, 0)
    assert Dismiss(0) in made.commands and not made.sent(0)
    made.tell(Exited(0, 0, IDLE))
    made.later(0.0)
    assert Spawn(0) in made.commands and not made.of(messages.Replaced)


def test_idle_drained_worker_leaves_at_once() -> None:
    made = machine(local=0, remote=2)
    made.tell(Drains(1, "why"), Drains(1, "why"))
    assert made.of(Dismiss) == [Dismiss(1)]


def test_drained_worker_with_a_stream_that_cannot_move_stays() -> None:
    made = machine(local=0)
    made.submit([0], worker=0)
    made.done(0, 0, stream_state=b"state", movable=False)
    made.tell(Drains(0, "why"))
    assert not made.of(Dismiss)
    made.submit([1], worker=0)
    made.commands.clear()
    made.done(0, 1, stream_state=b"state", movable=False)
    assert made.of(messages.Stays) == [(0, ELSEWHERE, "why")]


def test_remote_worker_is_trusted_to_have_unpickled() -> None:
    made = Machine(2, unpickles=True, remote=1)
    made.tell(Started(1, ELSEWHERE))
    made.submit([0])
    assert made.sent(1)
    made.tell(Heard(0, messages.Unpickled(1.0, 0, 0)))
    made.submit([1])
    assert made.sent(0)


def test_failed_start_ends_no_run_while_others_are_on_their_way() -> None:
    made, lost = Machine(2, remote=2), OSError("its host is lost")
    made.tell(StartFailed(0, lost))
    made.later(HELD_BACK)
    made.later(PATIENCE + 1)
    made.tell(StartFailed(0, lost))
    assert not made.of(messages.Broken)
    made.later(HELD_BACK)
    made.tell(StartFailed(1, lost), StartFailed(0, lost))
    assert made.of(messages.Broken)
