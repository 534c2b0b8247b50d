"""Assigns units to workers: a pure state machine, facts in, decisions out. No clock, process or I/O.

`docs/design/04-accounting.md` has a diagram of states and functions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stoker._engine.supervision.split_policy import SplitPolicy

SLOW_UNIT = 0.005
"""Seconds. A worker holds one unit at a time if units take longer: a second one would wait behind the first for
nothing. Below this, a worker holds two, since the round trip for the next unit would show.
"""


class Assignment(NamedTuple):
    """A unit, or a run of its rows: those from `first` to before `last`. A whole unit has 0 for both."""

    unit: int
    first: int = 0
    last: int = 0

    @property
    def is_part(self) -> bool:
        """Whether it is less than the unit."""
        return self.last > 0


class Dispatch:
    """The units that wait, and the units that each worker holds.

    A unit is bound to a worker or free for any. Free units go out in order of their numbers; if rows are shared, the
    rows of an earlier unit go out before those of a later one.

    Args:
        workers: number of workers.
        split_policy: gives the number of a unit's rows for one worker; None if only whole units are handed out.
        at_once: least number of units that a worker holds: it begins the next ones before the first has ended.
    """

    def __init__(self, workers: int, split_policy: SplitPolicy | None = None, at_once: int = 1) -> None:
        self._held: list[list[Assignment]] = [[] for _ in range(workers)]
        self._bound: list[deque[Assignment]] = [deque() for _ in range(workers)]
        self._free: deque[Assignment] = deque()  # the first may be the rest of a unit of which workers have a part
        self._worker_of: dict[int, int | None] = {}  # unit → the worker that it is bound to, until it is answered
        self._rows: dict[int, int] = {}  # unit → number of its rows, if they may be shared
        self._runs: dict[int, int] = {}  # unit → number of units of the run that it begins
        self._split_policy = split_policy
        self._alive = [False] * workers
        self._depth = 1
        self._at_once = at_once

    def grow(self, workers: int) -> None:
        """Makes room for this number of workers; each is handed units once it has joined."""
        for _ in range(len(self._held), workers):
            self._held.append([])
            self._bound.append(deque())
            self._alive.append(False)

    def joined(self, worker: int) -> None:
        """Lets the worker receive units from now on."""
        self._alive[worker] = True

    def retires(self, worker: int) -> None:
        """Stops handing units to the worker; it still answers those that it holds."""
        self._alive[worker] = False

    def submitted(self, unit: int, worker: int | None, rows: int = 0, run: int = 1) -> None:
        """Queues a unit, for `worker` if it is bound to one; with the number of its rows, if they may be shared, or of
        the units of the run that it begins.
        """
        self._worker_of[unit] = worker
        if run > 1:
            self._runs[unit] = run
        if rows and self._split_policy is not None:
            self._rows[unit] = rows
        (self._free if worker is None else self._bound[worker]).append(Assignment(unit))

    def hand_out(self, admits: Callable[[int, int], bool] | None = None) -> list[tuple[int, Assignment]]:
        """Returns the (worker, run) pairs to hand out now, and records them as held. Least busy workers come first.

        Args:
            admits: whether an idle worker may begin a unit. It is called for the earliest unit first; after one
                refusal, no other worker begins.
        """
        out, is_full = [], False
        order: Iterable[int] = range(len(self._held))
        if admits is not None:
            order = sorted(order, key=self._waits_for)
        for depth in range(1, max(self._depth, self._at_once) + 1):
            for worker in order:
                assignments = self._held[worker]
                waiting = self._bound[worker] or self._free
                # A worker never gets an earlier unit behind a later one, which may wait for the earlier one to have
                # memory first
                if self._alive[worker] and waiting and len(assignments) < depth and assignments[:1] < [waiting[0]]:
                    # A worker with a part holds nothing else: it stays free to make its whole unit again
                    if assignments and (assignments[0].is_part or self._is_to_be_shared(waiting[0])):
                        continue
                    if not assignments and admits is not None and (is_full or not admits(worker, waiting[0].unit)):
                        is_full = True
                        continue
                    run = self._taken(waiting)
                    assignments.append(run)
                    out.append((worker, run))
        return out

    def _waits_for(self, worker: int) -> float:
        """Returns the earliest unit that this worker could begin."""
        waiting = self._bound[worker] or self._free
        return waiting[0].unit if waiting else math.inf

    def _is_to_be_shared(self, run: Assignment) -> bool:
        """Whether the run would be handed out in parts, or other workers have a part of its unit."""
        rows = self._rows.get(run.unit, 0)
        return run.is_part or (
            self._split_policy is not None and rows > 0 and self._split_policy.share(rows, rows) < rows
        )

    def _taken(self, waiting: deque[Assignment]) -> Assignment:
        """Returns the first waiting unit, or one worker's share of it."""
        run = waiting.popleft()
        rows = self._rows.get(run.unit, 0)
        if self._split_policy is None or not rows:
            return run
        first, last = run.first, run.last or rows
        share = self._split_policy.share(rows, last - first)
        if share == rows:
            del self._rows[run.unit]
            return run
        if share < last - first:
            waiting.appendleft(Assignment(run.unit, first + share, last))
        return Assignment(run.unit, first, first + share)

    def answered(self, worker: int, run: Assignment, seconds: float) -> None:
        """Records that the worker has answered, after `seconds` of work on it."""
        self._held[worker].remove(run)
        self._depth = 1 if seconds > SLOW_UNIT else 2
        if not run.is_part:
            self.done(run.unit)

    def done(self, unit: int) -> None:
        """Forgets a unit that is answered as a whole."""
        self._worker_of.pop(unit, None)
        self._rows.pop(unit, None)
        self._runs.pop(unit, None)

    def died(self, worker: int) -> list[Assignment]:
        """Returns the runs that a worker held when it died, the one in work first."""
        self._alive[worker] = False
        lost, self._held[worker] = self._held[worker], []
        return lost

    def units(self, unit: int) -> int:
        """Returns the number of units that this one stands for: those of its run."""
        return self._runs.get(unit, 1)

    def rows(self, unit: int) -> int:
        """Returns the number of rows of a unit that may be shared."""
        return self._rows[unit]

    def withdrawn(self, unit: int) -> None:
        """Withdraws the part of a unit that no worker has begun: it will be made again as a whole."""
        self._free = deque(run for run in self._free if run.unit != unit)

    def refused(self, unit: int) -> None:
        """Withdraws a unit that no worker has begun."""
        for queue in (self._free, *self._bound):
            for run in [run for run in queue if run.unit == unit]:
                queue.remove(run)
        self.done(unit)

    def requeued(self, lost: list[int]) -> None:
        """Queues these units again, each as a whole, before all later units: also those that were part of a run."""
        for unit in sorted(lost, reverse=True):
            self._rows.pop(unit, None)
            self._runs.pop(unit, None)
            worker = self._worker_of.setdefault(unit, None)
            queue = self._free if worker is None else self._bound[worker]
            place = next((place for place, other in enumerate(queue) if other.unit > unit), len(queue))
            queue.insert(place, Assignment(unit))

    def goes_on(self, worker: int, unit: int) -> None:
        """Records that the worker makes this unit of the run that it has answered, before the others that it holds."""
        self._worker_of[unit] = None
        self._held[worker].insert(0, Assignment(unit))

    def dropped(self, before: int) -> list[int]:
        """Drops the units below `before`; returns those that no worker had begun."""
        gone = [run.unit for queue in (self._free, *self._bound) for run in queue if run.unit < before and not run.last]
        self._free = deque(run for run in self._free if run.unit >= before)
        self._bound = [deque(run for run in queue if run.unit >= before) for queue in self._bound]
        for unit in gone:
            self.done(unit)
        return gone

    @property
    def is_slow(self) -> bool:
        """Whether the latest unit was so slow that overhead for each unit does not show."""
        return self._depth == 1

    @property
    def alive(self) -> list[int]:
        """The workers that are handed units."""
        return [worker for worker, alive in enumerate(self._alive) if alive]

    @property
    def busy(self) -> list[int]:
        """The workers that hold a unit, also those that get no more."""
        return [worker for worker, assignments in enumerate(self._held) if assignments]

    def assignments(self, worker: int) -> list[Assignment]:
        """Returns the runs that the worker holds, the one in work first."""
        return self._held[worker]

    @property
    def outstanding(self) -> list[int]:
        """All units that are not answered in full, in ascending order."""
        queues = (self._free, *self._bound, *self._held)
        return sorted({run.unit for queue in queues for run in queue})
