"""How do the supervisors of several ranks divide the workers of a pool?

A simulation with a played clock: the supervisor of each rank (`stoker._engine.supervisor`) and the turns of each
process of the pool (`stoker._engine.machines.pool.turns`) are the real ones; workers, trainers and network are played.
A message takes 0.2 ms, a unit 20 ms in the median (a log-normal time), and each worker of each rank has at most two
units ahead. 8 ranks run for 20 s of the played clock.

Rivals: one pool of all workers, and an eighth of them for each rank alone. Cases: ranks that take all that they can
get; ranks of which half pause, as in a validation; ranks whose units cost up to twice as much as those of others, and
all wait for the slowest at each step, as in distributed training; a rank that ends after 10 s.

`batches/s` are those of all ranks; with steps in common, those of one rank. `least / most` compares the ranks that take
all they can. `us of a supervisor, a unit` is real processor time: each rank has its own supervisor, in its own process,
so the units/s of a job grow with its ranks.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import method
from method import Case, Figures, Goal

RANKS = 8
MESSAGE = 0.2e-3
MEDIAN, SPREAD = 0.02, 0.3
RATE, FAIR, BUSY, COST = "batches/s", "least / most", "share of the workers' time in use", "us of a supervisor, a unit"

CASES: dict[str, dict[str, Any]] = {
    "all ranks take what they can": {},
    "half of the ranks pause": {"paused": 4},
    "steps in common, costs differ by rank": {"in_step": True, "dearer": 1.0},
    "one rank ends": {"ends": 1},
}


def cases(options: argparse.Namespace) -> list[Case]:
    workers, seconds = (16, 2.0) if options.quick else (64, 20.0)
    goals = {
        "all ranks take what they can": [_goal(0.95), Goal(FAIR, at_least=0.95, headline=False)],
        "half of the ranks pause": [_goal(1.8)],
        "steps in common, costs differ by rank": [_goal(1.2)],
        "one rank ends": [_goal(1.03)],
    }
    return [
        Case(
            f"{name}, {workers} workers",
            {rival: {"workers": workers, "seconds": seconds, "alone": alone, **how} for rival, alone in RIVALS.items()},
            goals[name],
        )
        for name, how in CASES.items()
    ]


def _goal(at_least: float) -> Goal:
    return Goal(RATE, "8 alone", at_least=at_least, headline=False)


RIVALS = {"one pool": False, "8 alone": True}


class Clock:
    """A played clock, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), call))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] < until:
            self.now, _, call = heapq.heappop(self._due)
            call()


class Facts:
    def own_bytes(self, worker: int) -> int:
        return 0

    def has_duties(self, worker: int) -> bool:
        return False

    def available(self) -> Any:
        from stoker._core.machine.memory import Available

        return Available(1 << 50, 1 << 50, "the benchmark")


class Process:
    """A process of the pool: the workers of the ranks make their units by turns."""

    def __init__(self, clock: Clock) -> None:
        from stoker._engine.machines.pool.turns import Turns

        self._clock, self._turns = clock, Turns()
        self._waiting: dict[int, tuple[float, Callable[[], None]]] = {}
        self.used = 0.0

    def make(self, rank: int, seconds: float, done: Callable[[], None]) -> None:
        self._waiting[rank] = seconds, done
        self._turns.wants(rank)
        self._hand_out()

    def _hand_out(self) -> None:
        for rank in self._turns.next(self._clock.now):
            self._clock.after(self._waiting[rank][0], functools.partial(self._end, rank, *self._waiting.pop(rank)))

    def _end(self, rank: int, seconds: float, done: Callable[[], None]) -> None:
        self.used += seconds
        self._turns.done(rank, self._clock.now)
        done()
        self._hand_out()


class Rank:
    """A rank: its supervisor, its part of each worker, and its trainer, which takes batches in order."""

    def __init__(self, number: int, clock: Clock, pool: list[Process], dear: float, taken: Callable[[], None]) -> None:
        from stoker._engine import commands, messages
        from stoker._engine.backend import UnitReport
        from stoker._engine.supervision.rules import Rules
        from stoker._engine.supervisor import Supervisor
        from stoker._engine.transport.arena import Arena
        from stoker._engine.transport.segments import ArenaFiles

        self._c, self._m = commands, messages
        self._said = messages.plain(UnitReport(samples=64))
        self._number, self._clock, self._pool, self._dear, self._taken = number, clock, pool, dear, taken
        self._random = random.Random(number)
        facts: Any = Facts()
        self.cpu = 0.0
        rules = Rules(remote=len(pool))
        self._supervisor = Supervisor(len(pool), rules, Arena(ArenaFiles.create()), facts, unpickles=True)
        self._held: list[deque[int]] = [deque() for _ in pool]  # units at each worker
        self._ready: set[int] = set()
        self._next = self.delivered = 0
        self.is_paused = False

    def start(self) -> None:
        for number in range(len(self._pool)):
            self._handle(self._c.Started(number, "elsewhere"))
        self._handle(self._c.AllStarted(1 << 50))
        for _ in range(2 * len(self._pool)):
            self.submit()

    def submit(self) -> None:
        self._handle(self._m.Submit(self._next, None, b"", [], 0))
        self._next += 1

    def take(self) -> bool:
        """Takes the next batch, if it is there."""
        if self.delivered not in self._ready or self.is_paused:
            return False
        self._ready.discard(self.delivered)
        self.delivered += 1
        self.submit()
        return True

    def _handle(self, event: Any) -> None:
        began = time.process_time()
        commands = self._supervisor.handle([event], self._clock.now)
        self.cpu += time.process_time() - began
        for command in commands:
            match command:
                case self._c.Send(worker, self._m.Unit() as unit):
                    self._clock.after(MESSAGE, lambda worker=worker, unit=unit.unit: self._arrives(worker, unit))
                case self._c.Tell(self._m.Delivery(unit)):
                    self._ready.add(unit)
                    self._clock.after(0.0, self._taken)

    def _arrives(self, worker: int, unit: int) -> None:
        self._held[worker].append(unit)
        if len(self._held[worker]) == 1:
            self._make(worker)

    def _make(self, worker: int) -> None:
        seconds = self._dear * MEDIAN * self._random.lognormvariate(0.0, SPREAD)
        self._pool[worker].make(self._number, seconds, lambda: self._made(worker, seconds))

    def _made(self, worker: int, seconds: float) -> None:
        unit = self._held[worker].popleft()
        value = (None, 0, b"", (), {})
        done = self._m.UnitDone(unit, "batch", value, seconds, self._said, seconds)
        self._clock.after(MESSAGE, lambda: self._handle(self._c.Heard(worker, done)))
        if self._held[worker]:
            self._make(worker)


def measure(
    workers: int,
    seconds: float,
    alone: bool,
    paused: int = 0,
    in_step: bool = False,
    dearer: float = 0.0,
    ends: int = 0,
) -> Figures:
    clock = Clock()
    pool = [Process(clock) for _ in range(workers)]
    ranks: list[Rank] = []

    def take() -> None:
        if in_step:
            while all(rank.delivered in rank._ready for rank in ranks):
                for rank in ranks:
                    rank.take()
            return
        for rank in ranks:
            while rank.take():
                pass

    each = workers // RANKS
    for number in range(RANKS):
        own = pool[number * each : (number + 1) * each] if alone else pool
        ranks.append(Rank(number, clock, own, 1.0 + dearer * number / (RANKS - 1), take))
    for rank in ranks:
        rank.start()
    for rank in ranks[:paused]:
        rank.is_paused = True
    for rank in ranks[:ends]:
        clock.after(seconds / 2, lambda rank=rank: setattr(rank, "is_paused", True))
    clock.run(seconds)
    whole = [rank.delivered for rank in ranks[max(paused, ends) :]]
    batches = whole[0] if in_step else sum(rank.delivered for rank in ranks)
    return {
        RATE: batches / seconds,
        FAIR: min(whole) / max(whole),
        BUSY: sum(process.used for process in pool) / workers / seconds,
        COST: 1e6 * sum(rank.cpu for rank in ranks) / sum(rank._next for rank in ranks),
    }


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
