"""Assigns units to workers: a pure state machine, facts in, decisions out. No clock, process or I/O.

`docs/design/04-accounting.md` has a diagram of states and functions.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stoker._engine.supervision.split_policy import SplitPolicy

SLOW_UNIT = 0.005
"""Seconds. A worker holds one unit at a time if units take longer: a second one would wait behind the first for
nothing. Below this, a worker holds two, since the round trip for the next unit would show.
"""

ELSEWHERE = 2
"""Units that a worker on another machine holds at once, if no worker of this one is free: the way there and back takes
as long as a network needs.
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

    No call looks at all workers: there may be thousands. Sets of workers are numbers of as many bits: a thousand
    workers are 16 machine words, and their lowest bit is the worker with the lowest number.

    Args:
        workers: number of workers.
        split_policy: gives the number of a unit's rows for one worker; None if only whole units are handed out.
        at_once: least number of units that a worker holds: it begins the next ones before the first has ended.
        remote: number of workers on other machines, the last ones: `hand_out` asks nobody whether these may begin.

    Attributes:
        alive: the workers that are handed units.
        busy: the workers that hold a unit, also those that get no more.
        outstanding: all units that are not answered in full, in ascending order; of a run the first one.
        longest: number of units of the longest run so far.
    """

    def __init__(
        self, workers: int, split_policy: SplitPolicy | None = None, at_once: int = 1, remote: int = 0
    ) -> None:
        self._held: list[list[Assignment]] = [[] for _ in range(workers)]
        self._bound: list[deque[Assignment]] = [deque() for _ in range(workers)]
        self._free: deque[Assignment] = deque()  # the first may be the rest of a unit of which workers have a part
        self._worker_of: dict[int, int | None] = {}  # unit → the worker that it is bound to, until it is answered
        self._rows: dict[int, int] = {}  # unit → number of its rows, if they may be shared
        self._lengths: dict[int, int] = {}  # unit → number of units of the run that it begins
        self._split_policy = split_policy
        self._depth = 1
        self._at_once = at_once
        self.alive: set[int] = set()
        self.busy: set[int] = set()
        self.outstanding: list[int] = []
        self.longest = 1
        self._runs: dict[int, int] = {}  # unit → number of its runs that wait or are held
        # The workers that may take a run. For each number of runs that they hold there are two sets of them: those that
        # wait for a free unit, and those with a bound unit that waits for them
        self._open = [0] * (2 * max(2, at_once))
        self._open_at = [-1] * workers  # each worker's set; -1 for none
        self._later, self._later_than = 0, Assignment(-1)  # those that hold later units than this, the first free one
        self._is_full = False  # whether a worker was refused in this call
        self._elsewhere = (1 << workers) - (1 << workers - remote)  # the set of those on other machines

    def grow(self, workers: int) -> None:
        """Makes room for this number of workers; each is handed units once it has joined."""
        for _ in range(len(self._held), workers):
            self._held.append([])
            self._bound.append(deque())
            self._open_at.append(-1)

    def joined(self, worker: int) -> None:
        """Lets the worker receive units from now on."""
        self.alive.add(worker)
        self._list(worker)

    def retires(self, worker: int) -> None:
        """Stops handing units to the worker; it still answers those that it holds."""
        self.alive.discard(worker)
        self._list(worker)

    def submitted(self, unit: int, worker: int | None, rows: int = 0, run: int = 1) -> None:
        """Queues a unit, for `worker` if it is bound to one; with the number of its rows, if they may be shared, or of
        the units of the run that it begins.
        """
        self._worker_of[unit] = worker
        if run > 1:
            self._lengths[unit], self.longest = run, max(run, self.longest)
        if rows and self._split_policy is not None:
            self._rows[unit] = rows
        self._count(unit, 1)
        if worker is None:
            self._free.append(Assignment(unit))
        else:
            self._bound[worker].append(Assignment(unit))
            self._list(worker)

    def _count(self, unit: int, runs: int) -> None:
        """Adds to the runs of a unit that wait or are held."""
        if before := self._runs.get(unit, 0):
            if before + runs:
                self._runs[unit] = before + runs
            else:
                del self._runs[unit], self.outstanding[bisect_left(self.outstanding, unit)]
        else:
            self._runs[unit] = runs
            insort(self.outstanding, unit)

    def _list(self, worker: int) -> None:
        """Records whether the worker may take a run: after each change of what it holds, or of what waits for it."""
        held, before, at = self._held[worker], self._open_at[worker], -1
        if worker in self.alive and not (held and held[0].last):
            at = 2 * len(held) + bool(self._bound[worker])
            at = at if at < len(self._open) else -1
        if at != before:
            bit = 1 << worker
            if before >= 0:
                self._open[before] ^= bit
            if at >= 0:
                self._open[at] ^= bit
            self._open_at[worker] = at
        if self._later:
            self._later &= ~(1 << worker)

    def hand_out(self, admits: Callable[[int, int], bool] | None = None) -> list[tuple[int, Assignment]]:
        """Returns the (worker, run) pairs to hand out now, and records them as held. Least busy workers come first, of
        those the one with the lowest number.

        Args:
            admits: whether an idle worker of this machine may begin a unit. It is called for the earliest unit first;
                after one refusal, no other of them begins.
        """
        out: list[tuple[int, Assignment]] = []
        has_bound = any(self._open[1::2])
        if not has_bound and not self._free:
            return out
        self._is_full = False
        order = None
        if has_bound and admits is not None:
            order = sorted((worker for worker, at in enumerate(self._open_at) if at >= 0), key=self._waits_for)
        for depth in range(1, max(self._here, ELSEWHERE if self._elsewhere else 1) + 1):
            for worker in self._candidates(depth) if order is None else order:
                run = self._next(worker, depth, admits)
                if run is not None:
                    out.append((worker, run))
        return out

    def _candidates(self, depth: int) -> Iterator[int]:
        """Yields the workers that hold fewer than `depth` runs and may take the next, by number. What each takes
        decides who comes next.
        """
        after = 0
        while found := self._able(depth) >> after:
            after += (found & -found).bit_length()
            yield after - 1

    def _able(self, depth: int) -> int:
        """Returns the set of workers that hold fewer than `depth` runs and may take the next."""
        is_free = bool(self._free)
        found = self._open[1] | self._open[0] if is_free else self._open[1]
        if self._is_full:
            found &= self._elsewhere
        if depth > 1:
            is_free = is_free and not self._is_to_be_shared(self._free[0])
            if is_free and self._later_than != self._free[0]:
                self._later = 0
            for held in range(1, depth):
                found |= self._open[2 * held + 1]
                if is_free:
                    found |= self._open[2 * held] & ~self._later
            if depth > self._here:
                found &= self._elsewhere
        return found

    @property
    def _here(self) -> int:
        """Returns the number of units that a worker of this machine holds at once."""
        return max(self._depth, self._at_once)

    def _next(self, worker: int, depth: int, admits: Callable[[int, int], bool] | None) -> Assignment | None:
        """Returns the run that the worker takes if it holds fewer than `depth`; None if none."""
        assignments = self._held[worker]
        waiting = self._bound[worker] or self._free
        if not waiting or len(assignments) >= depth:
            return None
        if assignments:
            if depth > self._here and not self._elsewhere >> worker & 1:
                return None
            # A worker with a part holds nothing else: it stays free to make its whole unit again
            if assignments[0].is_part or self._is_to_be_shared(waiting[0]):
                return None
            # A worker never gets an earlier unit behind a later one, which may wait for the earlier one to have
            # memory first
            if assignments[0] >= waiting[0]:
                if waiting is self._free:
                    self._later = (self._later if self._later_than == waiting[0] else 0) | 1 << worker
                    self._later_than = waiting[0]
                return None
        elif (
            admits is not None
            and not self._elsewhere >> worker & 1
            and (self._is_full or not admits(worker, waiting[0].unit))
        ):
            self._is_full = True
            return None
        run = self._taken(waiting)
        assignments.append(run)
        self.busy.add(worker)
        self._list(worker)
        return run

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
            self._count(run.unit, 1)
        return Assignment(run.unit, first, first + share)

    def answered(self, worker: int, run: Assignment, seconds: float, made: int = 1, left: int = 0) -> None:
        """Records that the worker has answered, after `seconds` of work on it. Of several units there are those behind
        the ones that are `made` still `left`: it makes these before the others that it holds.
        """
        self._depth = 1 if seconds > SLOW_UNIT else 2
        held = self._held[worker]
        if left:
            rest = run.unit + made
            held[held.index(run)] = Assignment(rest)
            self._worker_of[rest], self._lengths[rest] = None, left
            self._count(rest, 1)
            self._count(run.unit, -1)
        else:
            held.remove(run)
            self._released(worker, run)
        if not run.is_part:
            self.done(run.unit)

    def _released(self, worker: int, *runs: Assignment) -> None:
        """Records that the worker no longer holds these runs."""
        for run in runs:
            self._count(run.unit, -1)
        if not self._held[worker]:
            self.busy.discard(worker)
        self._list(worker)

    def done(self, unit: int) -> None:
        """Forgets a unit that is answered as a whole."""
        self._worker_of.pop(unit, None)
        self._rows.pop(unit, None)
        self._lengths.pop(unit, None)

    def died(self, worker: int) -> list[Assignment]:
        """Returns the runs that a worker held when it died, the one in work first."""
        self.alive.discard(worker)
        lost, self._held[worker] = self._held[worker], []
        self._released(worker, *lost)
        return lost

    def count(self, before: float = math.inf) -> int:
        """Returns the number of units that are not answered, before this one: each unit of a run counts."""
        runs = sum(min(length, before - first) - 1 for first, length in self._lengths.items() if first < before)
        return bisect_left(self.outstanding, before) + int(runs)

    def rows(self, unit: int) -> int:
        """Returns the number of rows of a unit that may be shared."""
        return self._rows[unit]

    def withdrawn(self, unit: int) -> None:
        """Withdraws the part of a unit that no worker has begun: it will be made again as a whole."""
        self._free = self._without(self._free, lambda run: run.unit == unit)

    def _without(self, queue: deque[Assignment], is_gone: Callable[[Assignment], bool]) -> deque[Assignment]:
        """Returns the queue without these runs, which wait no longer."""
        for run in filter(is_gone, queue):
            self._count(run.unit, -1)
        return deque(run for run in queue if not is_gone(run))

    def _withdraw(self, is_gone: Callable[[Assignment], bool]) -> None:
        """Withdraws these runs, which no worker has begun."""
        self._free = self._without(self._free, is_gone)
        for worker, queue in enumerate(self._bound):
            if queue:
                self._bound[worker] = self._without(queue, is_gone)
                self._list(worker)

    def refused(self, unit: int) -> None:
        """Withdraws a unit that no worker has begun."""
        self._withdraw(lambda run: run.unit == unit)
        self.done(unit)

    def requeued(self, lost: list[int]) -> None:
        """Queues these units again, each as a whole, before all later units: also those that were part of a run."""
        for unit in sorted(lost, reverse=True):
            self._rows.pop(unit, None)
            self._lengths.pop(unit, None)
            worker = self._worker_of.setdefault(unit, None)
            queue = self._free if worker is None else self._bound[worker]
            place = next((place for place, other in enumerate(queue) if other.unit > unit), len(queue))
            queue.insert(place, Assignment(unit))
            self._count(unit, 1)
            if worker is not None:
                self._list(worker)

    def dropped(self, before: int) -> list[int]:
        """Drops the units below `before`; returns those that no worker had begun."""
        if not self.outstanding or self.outstanding[0] >= before:
            return []
        gone = [run.unit for queue in (self._free, *self._bound) for run in queue if run.unit < before and not run.last]
        self._withdraw(lambda run: run.unit < before)
        for unit in gone:
            self.done(unit)
        return gone

    @property
    def is_slow(self) -> bool:
        """Whether the latest unit was so slow that overhead for each unit does not show."""
        return self._depth == 1

    def assignments(self, worker: int) -> list[Assignment]:
        """Returns the runs that the worker holds, the one in work first."""
        return self._held[worker]
