"""The limits of a loader's workers, and the pure policies for idle, growing and stalled workers: facts in, decisions
out.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from stoker._core.machine import memory
from stoker._engine.supervision import restarts

StallAction = Literal["warn", "restart", "raise"]

STALL_WARNING = 60.0
"""Seconds that a unit may take without a report: a batch of large images from a slow file server takes less."""


class Rules(NamedTuple):
    """Limits, as the user gives them.

    Attributes:
        max_restarts: deaths in ten minutes that are survived.
        stall_warning: seconds after which a unit is reported; None or 0 for never.
        stall_action: reaction to a stall.
        memory_budget: bytes that batches and the growth of the workers may take; None for all that is available.
        max_samples_per_worker: number of samples after which a worker is replaced; None for never.
        row_seconds: cost of a sample in the last epoch, in seconds; None if unknown.
        growth: bytes by which each worker grew for a unit, likewise.
        dearer: comparisons in a row in which parts of units cost more than whole units (`SplitPolicy`), likewise.
        mark_heap: whether a heap of many Python objects is marked immortal before workers are forked, if possible.
        units_at_once: least number of units that a worker holds; from 2 on it makes samples of several at once.
        deaths: times of earlier deaths that count, in seconds of a monotonic clock.
        remote: number of workers on other machines, the last ones by number. Their memory is not this machine's.
        on_demand: whether these are started as they are needed (`Demand`), and not all at once.
    """

    max_restarts: int = restarts.DEFAULT
    stall_warning: float | None = STALL_WARNING
    stall_action: StallAction = "warn"
    memory_budget: int | None = None
    max_samples_per_worker: int | None = None
    row_seconds: float | None = None
    growth: int | None = None
    dearer: int = 0
    mark_heap: bool = True
    units_at_once: int = 1
    deaths: tuple[float, ...] = ()
    remote: int = 0
    on_demand: bool = False


SHARE_OF_MEMORY = 0.5
"""Share of the memory that is free at the start which batches in the user's hands may take before they are copied."""


def held_bytes(rules: Rules) -> int:
    """Returns the bytes of the arena that batches in the user's hands may take before they are copied out of it."""
    budget = rules.memory_budget
    return int(memory.available().bytes * SHARE_OF_MEMORY) if budget is None else budget // 4


# Idle workers.


IDLE = 2.0
"""Seconds without work after which workers rest: they give back the memory that `malloc` has kept for their next
sample. To have it again costs each some milliseconds, which is no hundredth of that time."""


class IdlePolicy:
    """Notices that no worker works, nor has for a while.

    Attributes:
        looks_at: when it is to be looked next; None while all rest, or have not begun.
    """

    def __init__(self) -> None:
        self.looks_at: float | None = None
        self._answered = 0  # at the latest look

    def begins(self, is_busy: bool, answered: int, now: float) -> bool:
        """Whether all are to rest from now on. Asked at any time: they are looked at when it is time for that.

        Args:
            is_busy: whether there is work now.
            answered: units that were answered by now, so that work between two looks shows.
            now: seconds since some moment.
        """
        if self.looks_at is not None and now < self.looks_at:
            return False
        is_idle = not is_busy and answered == self._answered
        began = is_idle and self.looks_at is not None
        self._answered = answered
        self.looks_at = None if is_idle else now + IDLE
        return began


# Workers to replace before they do harm.


SHARE = 0.5
"""Share of the memory that is free at the start by which all workers together may grow, without `memory_budget`. A
worker that keeps all that it reads retires there, before the kernel kills it.
"""


class RecyclingPolicy:
    """Counts each worker's samples, and its growth.

    Args:
        most_samples: number of samples after which a worker retires; None for never.
        most_bytes: private memory that it may grow by since its birth; None for any.

    Attributes:
        counts: whether it needs a report on every unit; else only from time to time.
        most_bytes: may also be set once it is known.
    """

    def __init__(self, most_samples: int | None, most_bytes: int | None) -> None:
        self.counts = most_samples is not None
        self.most_bytes = most_bytes
        self._most_samples = most_samples
        self._samples: dict[int, int] = {}
        self._at_first: dict[int, int] = {}
        self._grown: dict[int, int] = {}

    def born(self, worker: int) -> None:
        """Resets the counts for a new worker of this number."""
        self._samples[worker] = 0
        self._at_first.pop(worker, None)
        self._grown.pop(worker, None)

    def count_samples(self, worker: int, samples: int) -> None:
        """Adds to the worker's samples."""
        self._samples[worker] += samples

    def has(self, worker: int, size: int) -> None:
        """Records the worker's private memory in bytes; the first value counts as that of its birth."""
        self._grown[worker] = size - self._at_first.setdefault(worker, size)

    def reason(self, worker: int) -> str | None:
        """Returns the reason for the worker to retire, in words, or None."""
        samples, grown = self._samples[worker], self._grown.get(worker, 0)
        if self._most_samples is not None and samples >= self._most_samples:
            return f"it has made {samples:,} samples (max_samples_per_worker={self._most_samples:,})"
        if self.most_bytes is not None and grown > self.most_bytes:
            return (
                f"its private memory has grown by {grown / 2**20:,.0f} MiB, and {self.most_bytes / 2**20:,.0f} are "
                "allowed for each worker: its equal part of half of memory_budget, or, where there is none, of half of "
                "what was free. The dataset keeps something of each sample: a cache without a bound, a list that grows?"
            )
        return None


# Units that take too long.


LOOKS = 10
LONGEST = 1.0
"""Number of looks at workers in the time after which a unit stalls, and the longest time between two looks, in seconds.
A message for each unit would cost as much as all other work on a small one.
"""

STALLS = 2
"""Stalls of one unit at one place that prove the place guilty, if stalled workers are restarted."""


class Stall(NamedTuple):
    """A unit that takes too long: the worker that has it, and for how many seconds."""

    worker: int
    unit: int
    seconds: float


class Stalls:
    """Knows the unit of each worker, and since when it has it.

    Args:
        after: seconds after which a unit stalls; None or 0 for never.

    Attributes:
        tick: seconds between two looks at all workers; None if stalls are not watched.
    """

    def __init__(self, after: float | None) -> None:
        self._after = after or None
        self.tick = min(LONGEST, after / LOOKS) if after else None
        self._since: dict[int, tuple[int, float]] = {}  # worker → (unit, since when)
        self._told: set[int] = set()  # units
        self._places: dict[int, list[int]] = {}  # unit → places at which it stalled and was ended

    def works_on(self, worker: int, unit: int | None, now: float) -> None:
        """Records the worker's unit at a look; None if it has none, or waits for another component."""
        if self._after is None:
            return
        if unit is None:
            self._since.pop(worker, None)
        elif self._since.get(worker, (None, 0.0))[0] != unit:
            self._since[worker] = unit, now

    def begins(self, worker: int, unit: int, now: float) -> None:
        """Records that a worker has not begun its unit by now."""
        self._told.discard(unit)
        self._since[worker] = unit, now

    def answered(self, unit: int) -> None:
        """Forgets a unit that is done."""
        self._told.discard(unit)
        self._places.pop(unit, None)

    def due(self, now: float) -> list[Stall]:
        """Returns the units that take too long, each once until a worker begins it again."""
        if self._after is None:
            return []
        late = [
            Stall(worker, unit, now - since)
            for worker, (unit, since) in self._since.items()
            if now - since >= self._after and unit not in self._told
        ]
        self._told.update(stall.unit for stall in late)
        return late

    def next_look(self, now: float) -> float | None:
        """Returns the seconds until a unit may be late; None if none is watched."""
        if self._after is None:
            return None
        waits = [since + self._after - now for unit, since in self._since.values() if unit not in self._told]
        return max(0.0, min(waits)) if waits else None

    def forgive(self, seconds: float) -> None:
        """Excludes a time in which all processes were frozen, this one included."""
        self._since = {worker: (unit, since + seconds) for worker, (unit, since) in self._since.items()}

    def ended(self, unit: int, place: int | None) -> bool:
        """Records that a worker was ended because it stalled there; returns whether the place is proven guilty.

        A sample's, from 0, may be guilty again (another took its place), any other only once, and None never.
        """
        self._told.discard(unit)
        if place is None:
            return False
        places = self._places.setdefault(unit, [])
        places.append(place)
        return places.count(place) >= STALLS and (place >= 0 or places.count(place) == STALLS)
