"""How many units can one supervisor hand out, with two workers and with ten thousand?

The state machine of `stoker._engine.supervisor` alone: workers, trainer and clock are played, and no byte moves. A unit
is submitted, handed to a worker, answered and delivered; two units for each worker are under way. Rates are those of
processor time, so that other programs on the machine hardly matter. Each unit moves the played clock on by 20 us: so
the looks at stalled workers are as frequent as they are at 50,000 units/s.

Cases: answers that carry their batch, of units that take 50 ms (a worker holds one) and 1 ms (a worker holds two);
batches in slots of the arena, which the supervisor offers (1 ms) or workers ask for (50 ms), and which the trainer
gives back one batch later; streams, whose units are bound to their worker; a trainer that asks for one unit at a time
while all workers wait; and workers of which one dies, and is replaced, after every hundredth answer.

The goal is half of the rate with two workers. Beside it stand the memory of the state machine for each worker, and the
processor time until all workers have begun, with the first units in their hands.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections import deque
from typing import Any

import method
from method import Case, Figures, Goal

NUMBERS = (1_000, 10_000)
RATE, BIRTH, MEMORY = "units/s", "CPU-us to begin, a worker", "bytes of state, a worker"
STEP = 20e-6  # seconds of the clock for each unit
SIZE = 4096  # bytes of a batch in a slot
OWN = 10 << 20  # bytes of a worker

CASES: dict[str, dict[str, Any]] = {
    "answers with their batch, 50 ms": {"seconds": 0.05},
    "answers with their batch, 1 ms": {"seconds": 0.001},
    "slots that are offered, 1 ms": {"seconds": 0.001, "slots": True},
    "slots that are asked for, 50 ms": {"seconds": 0.05, "slots": True},
    "streams, 1 ms": {"seconds": 0.001, "bound": True},
    "one unit at a time": {"seconds": 0.05, "ahead": 1},
    "a death at every hundredth unit": {"seconds": 0.001, "deaths": 100},
}


def cases(options: argparse.Namespace) -> list[Case]:
    units = 2_000 if options.quick else 20_000
    numbers = NUMBERS[:1] if options.quick else NUMBERS
    return [
        Case(
            f"{name}, {workers:,} workers",
            {f"{number:,} workers": {"workers": number, "units": units, **how} for number in (workers, 2)},
            [Goal(RATE, "2 workers", at_least=0.5, headline=False)],
        )
        for name, how in CASES.items()
        for workers in numbers
    ]


class Facts:
    """Every worker has the same memory, and there is enough for all."""

    def own_bytes(self, worker: int) -> int:
        return OWN

    def has_duties(self, worker: int) -> bool:
        return False

    def available(self) -> Any:
        from stoker._core.machine.memory import Available

        return Available(1 << 50, 1 << 50, "the benchmark")


class Played:
    """The workers, the trainer and the backend of a supervisor."""

    def __init__(self, workers: int, seconds: float, slots: bool, bound: bool, ahead: int, deaths: int) -> None:
        from stoker._engine import commands, messages
        from stoker._engine.activity import IDLE
        from stoker._engine.backend import UnitReport
        from stoker._engine.supervision.rules import Rules
        from stoker._engine.supervisor import Supervisor
        from stoker._engine.transport.arena import Arena
        from stoker._engine.transport.segments import ArenaFiles

        self._c, self._m, self._idle = commands, messages, IDLE
        self._said = messages.plain(UnitReport(samples=64))
        facts: Any = Facts()
        arena = Arena(ArenaFiles.create())
        self._supervisor = Supervisor(workers, Rules(max_restarts=1 << 30), arena, facts)
        self._workers, self._seconds, self._slots, self._bound, self._deaths = workers, seconds, slots, bound, deaths
        self.now, self._timer, self._next, self.answered = 0.0, float("inf"), 0, 0
        self._units: deque[tuple[int, int, Any]] = deque()  # in hand, in the order in which they went out
        self._lives = [0] * workers  # how often each worker has died
        self._kept: list[int] = []  # slots of the batch that the trainer has
        for number in range(workers):
            self._handle(commands.Started(number, 1000 + number))
        self._handle(commands.AllStarted(1 << 50))
        for _ in range(ahead or 2 * workers):
            self._submit()

    def _handle(self, *events: Any) -> None:
        c, m = self._c, self._m
        for command in self._supervisor.handle(events, self.now):
            match command:
                case c.Send(worker, m.Unit() as unit):
                    self._units.append((worker, self._lives[worker], unit))
                case c.Send(worker, m.SlotGiven(_, slot)):
                    self._answer(worker, self._asking, slot[0])
                case c.Tell(m.Delivery(_, _, _, (number, *_))):
                    kept, self._kept = self._kept, [number]
                    if kept:
                        self._handle(m.Freed(kept))
                case c.Spawn(worker):
                    self._handle(c.Started(worker, 1000 + worker))
                case c.SetTimer(at):
                    self._timer = at

    def _submit(self) -> None:
        self._handle(self._m.Submit(self._next, self._next % self._workers if self._bound else None, b"", [], 0))
        self._next += 1

    def step(self) -> None:
        """The worker whose unit went out first answers it, and the trainer submits another."""
        self.now += STEP
        if self.now >= self._timer:
            self._timer = float("inf")
            self._handle(self._c.Tick())
        worker, life, unit = self._units.popleft()
        while life != self._lives[worker]:
            worker, life, unit = self._units.popleft()
        if self._deaths and not (self.answered + 1) % self._deaths:
            self.answered += 1
            self._lives[worker] += 1
            self._handle(self._c.Exited(worker, -9, self._idle))  # others make its units
            return
        if self._slots and not unit.slots:
            self._asking = unit.unit
            self._handle(self._c.Heard(worker, self._m.SlotWanted(unit.unit, SIZE, 1, OWN)))
        else:
            self._answer(worker, unit.unit, unit.slots[0][0] if unit.slots else None)
        self._submit()

    def _answer(self, worker: int, unit: int, slot: int | None) -> None:
        self.answered += 1
        value = (slot, SIZE if slot is not None else 0, b"", (), {})
        self._handle(
            self._c.Heard(worker, self._m.UnitDone(unit, "batch", value, self._seconds, self._said, self._seconds))
        )


def measure(
    workers: int,
    units: int,
    seconds: float,
    slots: bool = False,
    bound: bool = False,
    ahead: int = 0,
    deaths: int = 0,
) -> Figures:
    how = (workers, seconds, slots, bound, ahead, deaths)
    Played(2, *how[1:])  # what is imported and compiled at first use
    tracemalloc.start()
    began = tracemalloc.get_traced_memory()[0]
    kept = Played(*how)
    state = tracemalloc.get_traced_memory()[0] - began
    tracemalloc.stop()
    del kept
    began_at = time.process_time()
    played = Played(*how)
    birth = time.process_time() - began_at
    for _ in range(min(units, 4 * workers)):  # the slots are there, and each worker has answered
        played.step()
    answered, began_at = played.answered, time.process_time()
    for _ in range(units):
        played.step()
    used = time.process_time() - began_at
    return {
        RATE: (played.answered - answered) / used,
        BIRTH: birth / workers * 1e6,
        MEMORY: state / workers,
    }


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=7), cases, measure)
