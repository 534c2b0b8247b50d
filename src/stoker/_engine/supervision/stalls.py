"""Finds units that take too long: a pure policy, facts in, decisions out. No clock, process or I/O."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT = 60.0
"""Seconds that a unit may take without a report: a batch of large images from a slow file server takes less."""

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
