"""Workers on other machines come while the trainer takes all that is made, and go when they idle."""

from __future__ import annotations

from stoker._engine import messages
from stoker._engine.activity import IDLE
from stoker._engine.commands import Dismiss, Exited, Spawn, Started, StartFailed
from stoker._engine.supervision.demand import FULL, LATE, LONG, LOOK, Demand
from tests._engine.test_supervisor import Machine

ELSEWHERE = "pid 7 on host b"


def looked(demand: Demand, seconds: float, idle: int, there: int, begin: float = 1000.0, asked: int = 0) -> list[int]:
    """Returns what is decided within some seconds in which nothing changes."""
    found = [
        demand.look(idle, there, asked, begin + LOOK * place, (place,)) for place in range(int(seconds / LOOK) + 1)
    ]
    return [number for number in found if number]


def test_busy_workers_ask_for_as_many_again() -> None:
    assert looked(Demand(60), FULL, 0, 0) == [1]
    assert looked(Demand(60), FULL, 0, 8) == [8]
    assert looked(Demand(60), FULL, 0, 40) == [20]
    assert looked(Demand(60), FULL, 0, 60) == []


def test_nothing_is_asked_for_while_some_come_or_idle() -> None:
    assert looked(Demand(60), 5 * FULL, 0, 1, asked=1) == []
    assert looked(Demand(60), 5 * FULL, 1, 1) == []


def test_idle_workers_are_released_but_for_a_spare_one() -> None:
    assert looked(Demand(60), LONG, 5, 8) == [-4]
    assert looked(Demand(60), LONG, 12, 8) == [-8]
    assert looked(Demand(60), LONG, 1, 8) == []


def test_time_in_which_nobody_looked_does_not_count() -> None:
    demand = Demand(60)
    looked(demand, LONG - 1, 5, 8)
    assert looked(demand, 2, 5, 8, begin=1000.0 + LONG + 100) == []


def until(made: Machine, seconds: float) -> None:
    for _ in range(int(seconds / LOOK) + 1):
        made.later(LOOK)


def bursts(demand: Demand, seconds: float, busy: int, pause: int) -> list[int]:
    """Returns what is decided while 8 workers make units in `busy` looks of each `busy + pause`, submitted at once."""
    found = []
    for place in range(int(seconds / LOOK)):
        burst, at = divmod(place, busy + pause)
        undone = range(8 * (burst * busy + at), 8 * (burst + 1) * busy)
        found.append(demand.look(0 if undone else 8, 4, 0, 1000.0 + LOOK * place, undone))
    return [number for number in found if number]


def test_bursts_of_a_slow_trainer_ask_for_nothing() -> None:
    assert bursts(Demand(60), LONG + 4, 2, 8) == [-4]
    assert bursts(Demand(60), LONG - 1, 10, 4) == []  # 2.5 s of work for all
    assert bursts(Demand(60), LONG - 1, 10, 0)[:1] == [4]


def test_worker_comes_on_demand_and_goes_when_it_idles() -> None:
    made = Machine(4, remote=3, on_demand=True)
    made.submit(range(30))
    assert not made.of(Spawn)
    until(made, LATE)
    assert made.of(Spawn) == [Spawn(1)]
    until(made, 2 * LATE)
    assert made.of(Spawn) == [Spawn(1)]  # it comes first
    made.tell(Started(1, ELSEWHERE))
    assert made.sent(1)
    until(made, LATE)
    assert made.of(Spawn) == [Spawn(1), Spawn(2)]
    made.tell(Started(2, ELSEWHERE))
    made.tell(messages.Drop(30))
    for number in (0, 1, 2):
        for unit in [sent.unit for sent in made.sent(number) if isinstance(sent, messages.Unit)]:
            made.done(number, unit)
    made.commands.clear()
    until(made, 2 * LONG + 2 * LATE)
    assert made.of(Dismiss) == [Dismiss(2), Dismiss(1)]
    made.tell(Exited(2, 0, IDLE), Exited(1, 0, IDLE))
    until(made, LONG)
    assert not made.of(Spawn) and made.of(messages.WorkerPids)[-1].machines == {}


def test_worker_for_which_there_is_no_room_is_tried_again() -> None:
    made = Machine(3, remote=2, on_demand=True)
    made.submit(range(30))
    until(made, LATE)
    made.tell(StartFailed(1, OSError("no room")))
    made.commands.clear()
    until(made, 4 * LATE)
    assert {*made.of(Spawn)} == {Spawn(1)}


def test_looks_go_on_where_no_unit_is_left() -> None:
    made = Machine(2, remote=1, on_demand=True)
    for unit in range(40):  # a burst of 0.5 s each second
        made.submit([unit])
        until(made, 0.25)
        made.done(0, unit)
        until(made, 0.25)
    assert not made.of(Spawn)
