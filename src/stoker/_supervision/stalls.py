"""Which units take too long: a pure policy, facts in, decisions out. No clock, process or I/O."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT = 60.0
"""Seconds that a unit may take without a word: a batch of large images from a slow file server takes less."""

LOOKS = 10
LONGEST = 1.0
"""How often workers are looked at: so many times in the time after which a unit stalls, and at least so often, in
seconds. To be told of each unit would cost as much as all else that is done for a small one."""

STALLS = 2
"""Stalls of one unit at one place that prove the place guilty, where stalled workers are restarted."""


class Stall(NamedTuple):
    """A unit that takes too long: the worker that has it, and for how many seconds."""

    worker: int
    unit: int
    seconds: float


class Stalls:
    """Knows since when each worker works on what.

    Args:
        after: seconds from which on a unit stalls; None or 0 for never.

    Attributes:
        tick: seconds between two looks at all workers; None where there is nothing to look for.
    """

    def __init__(self, after: float | None) -> None:
        self._after = after or None
        self.tick = min(LONGEST, after / LOOKS) if after else None
        self._since: dict[int, tuple[int, float]] = {}  # worker → (unit, since when)
        self._told: set[int] = set()  # units
        self._places: dict[int, list[int]] = {}  # unit → where it stalled and was ended

    def works_on(self, worker: int, unit: int | None, now: float) -> None:
        """Seen at a look: the worker works on this unit; on none, or waits for somebody else: None."""
        if self._after is None:
            return
        if unit is None:
            self._since.pop(worker, None)
        elif self._since.get(worker, (None, 0.0))[0] != unit:
            self._since[worker] = unit, now

    def answered(self, unit: int) -> None:
        """The unit is done after all."""
        self._told.discard(unit)
        self._places.pop(unit, None)

    def due(self, now: float) -> list[Stall]:
        """Units that take too long, each once as long as nobody begins it anew."""
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
        """Seconds until one may be late; None while there is nothing to watch."""
        if self._after is None:
            return None
        waits = [since + self._after - now for unit, since in self._since.values() if unit not in self._told]
        return max(0.0, min(waits)) if waits else None

    def forgive(self, seconds: float) -> None:
        """Everybody was frozen for so long, the watcher as well."""
        self._since = {worker: (unit, since + seconds) for worker, (unit, since) in self._since.items()}

    def ended(self, unit: int, place: int | None) -> bool:
        """The worker was ended because it stalled there; returns whether the place is proven guilty.

        A sample's, from 0, may be guilty again (another took its place), any other only once, and None never.
        """
        self._told.discard(unit)
        if place is None:
            return False
        places = self._places.setdefault(unit, [])
        places.append(place)
        return places.count(place) >= STALLS and (place >= 0 or places.count(place) == STALLS)
