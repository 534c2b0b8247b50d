"""Which worker does which unit: a pure state machine, facts in, decisions out. No clock, process or I/O.

States and functions are drawn in `docs/design/04-accounting.md`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stoker._supervision.cut import Cut

SLOW_UNIT = 0.005
"""Seconds a unit takes from which on a worker is handed one at a time: a second one would wait behind it for nothing,
while below it the round trip for the next unit would show."""


class Run(NamedTuple):
    """A unit, or a run of its rows: those from `first` to before `last`. A whole unit has 0 for both."""

    unit: int
    first: int = 0
    last: int = 0

    @property
    def is_part(self) -> bool:
        """Whether it is less than the unit."""
        return self.last > 0


class Dispatch:
    """Units that are waiting, and those that each worker holds.

    A unit is bound to a worker or free to go to any; free units go out in order of their numbers, and where its rows
    may be shared, an earlier unit's before those of a later one.

    Args:
        workers: how many.
        cut: says how many rows of a unit go to one worker; None where only whole units do.
        at_once: units that a worker holds at the least: it begins the next ones before it has ended the first.
    """

    def __init__(self, workers: int, cut: Cut | None = None, at_once: int = 1) -> None:
        self._held: list[list[Run]] = [[] for _ in range(workers)]
        self._bound: list[deque[Run]] = [deque() for _ in range(workers)]
        self._free: deque[Run] = deque()  # the first may be the rest of a unit of which others have a part
        self._worker_of: dict[int, int | None] = {}  # unit → the worker that it is bound to, until it is answered
        self._rows: dict[int, int] = {}  # unit → how many rows it has, if they may be shared
        self._cut = cut
        self._alive = [False] * workers
        self._depth = 1
        self._at_once = at_once

    def grow(self, workers: int) -> None:
        """There are to be so many workers; each is handed units when it has joined."""
        for _ in range(len(self._held), workers):
            self._held.append([])
            self._bound.append(deque())
            self._alive.append(False)

    def joined(self, worker: int) -> None:
        """The worker can be handed units from now on."""
        self._alive[worker] = True

    def retires(self, worker: int) -> None:
        """The worker is handed no more units; what it holds it answers."""
        self._alive[worker] = False

    def submitted(self, unit: int, worker: int | None, rows: int = 0) -> None:
        """The trainer wants the unit done, by `worker` if it is bound to one; of so many rows, if it may be shared."""
        self._worker_of[unit] = worker
        if rows and self._cut is not None:
            self._rows[unit] = rows
        (self._free if worker is None else self._bound[worker]).append(Run(unit))

    def hand_out(self, admits: Callable[[int, int], bool] | None = None) -> list[tuple[int, Run]]:
        """(worker, run) pairs to hand out now; they count as handed out. Least busy workers first.

        Args:
            admits: whether a worker that has nothing in hand may begin a unit. It is asked for the earliest first, and
                no more once it has refused one: then nobody else begins.
        """
        out, is_full = [], False
        order: Iterable[int] = range(len(self._held))
        if admits is not None:
            order = sorted(order, key=self._waits_for)
        for depth in range(1, max(self._depth, self._at_once) + 1):
            for worker in order:
                held = self._held[worker]
                waiting = self._bound[worker] or self._free
                # A worker is never given an earlier unit behind a later one, which may wait for it to have memory first
                if self._alive[worker] and waiting and len(held) < depth and held[:1] < [waiting[0]]:
                    # Who has a part has nothing else: if its unit has to be made again, he is free to do it
                    if held and (held[0].is_part or self._is_to_be_shared(waiting[0])):
                        continue
                    if not held and admits is not None and (is_full or not admits(worker, waiting[0].unit)):
                        is_full = True
                        continue
                    run = self._taken(waiting)
                    held.append(run)
                    out.append((worker, run))
        return out

    def _waits_for(self, worker: int) -> float:
        """The earliest unit that this worker could begin."""
        waiting = self._bound[worker] or self._free
        return waiting[0].unit if waiting else math.inf

    def _is_to_be_shared(self, run: Run) -> bool:
        """Whether what waits there would be handed out in parts, or others have a part of it."""
        rows = self._rows.get(run.unit, 0)
        return run.is_part or (self._cut is not None and rows > 0 and self._cut.share(rows, rows) < rows)

    def _taken(self, waiting: deque[Run]) -> Run:
        """The first that waits, or as much of it as one worker is to have."""
        run = waiting.popleft()
        rows = self._rows.get(run.unit, 0)
        if self._cut is None or not rows:
            return run
        first, last = run.first, run.last or rows
        share = self._cut.share(rows, last - first)
        if share == rows:
            del self._rows[run.unit]
            return run
        if share < last - first:
            waiting.appendleft(Run(run.unit, first + share, last))
        return Run(run.unit, first, first + share)

    def answered(self, worker: int, run: Run, seconds: float) -> None:
        """The worker has answered, after working on it for so long."""
        self._held[worker].remove(run)
        self._depth = 1 if seconds > SLOW_UNIT else 2
        if not run.is_part:
            self.done(run.unit)

    def done(self, unit: int) -> None:
        """The unit is answered as a whole."""
        self._worker_of.pop(unit, None)
        self._rows.pop(unit, None)

    def died(self, worker: int) -> list[Run]:
        """The worker is gone; returns what it held, what it worked on first."""
        self._alive[worker] = False
        lost, self._held[worker] = self._held[worker], []
        return lost

    def rows(self, unit: int) -> int:
        """How many rows a unit has that may be shared."""
        return self._rows[unit]

    def withdrawn(self, unit: int) -> None:
        """What nobody has begun of a unit is not to be: it will be done again as a whole."""
        self._free = deque(run for run in self._free if run.unit != unit)

    def refused(self, unit: int) -> None:
        """Nobody is to do the unit, which nobody has begun."""
        for queue in (self._free, *self._bound):
            for run in [run for run in queue if run.unit == unit]:
                queue.remove(run)
        self.done(unit)

    def requeued(self, lost: list[int]) -> None:
        """These units are to be done again, each by one worker, before all later units."""
        for unit in sorted(lost, reverse=True):
            self._rows.pop(unit, None)
            worker = self._worker_of[unit]
            queue = self._free if worker is None else self._bound[worker]
            place = next((place for place, other in enumerate(queue) if other.unit > unit), len(queue))
            queue.insert(place, Run(unit))

    def dropped(self, before: int) -> list[int]:
        """Units below `before` are not wanted any more; returns those that nobody had begun."""
        gone = [run.unit for queue in (self._free, *self._bound) for run in queue if run.unit < before and not run.last]
        self._free = deque(run for run in self._free if run.unit >= before)
        self._bound = [deque(run for run in queue if run.unit >= before) for queue in self._bound]
        for unit in gone:
            self.done(unit)
        return gone

    @property
    def is_slow(self) -> bool:
        """Whether the latest unit took so long that what is done for each of them does not show."""
        return self._depth == 1

    @property
    def alive(self) -> list[int]:
        """The workers that are handed units."""
        return [worker for worker, alive in enumerate(self._alive) if alive]

    @property
    def busy(self) -> list[int]:
        """The workers that hold something, also those that are handed no more."""
        return [worker for worker, held in enumerate(self._held) if held]

    def held(self, worker: int) -> list[Run]:
        """What the worker holds, what it works on first."""
        return self._held[worker]

    @property
    def outstanding(self) -> list[int]:
        """All units of which something is not answered, in ascending order."""
        queues = (self._free, *self._bound, *self._held)
        return sorted({run.unit for queue in queues for run in queue})
