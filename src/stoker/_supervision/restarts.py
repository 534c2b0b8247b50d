"""How many deaths are survived: a pure policy, facts in, decisions out. No clock, process or I/O."""

from __future__ import annotations

from collections import deque

PERIOD = 600.0
"""Seconds over which deaths are counted. Rarer ones cost a run of weeks nothing; a broken dataset makes its own in
seconds."""

DEFAULT = 5
"""Deaths in `PERIOD` that are survived: a few, so that the story is told while it is short."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds before the second death's replacement, which then double, up to this: what kills (a full memory, a file
server that is away) may pass. The first is replaced at once."""

KILLS = 3
"""A unit that so many workers died of is not tried again: two may be chance."""


class Restarts:
    """Counts deaths, and says what to do about each.

    Args:
        most: deaths in `PERIOD` that are survived; 0 for none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._deaths: deque[float] = deque()
        self._kills: dict[int, int] = {}

    def died(self, unit: int | None, now: float) -> float | None:
        """Somebody died at `now` (seconds, of a clock that never goes back), working on `unit`, or idle.

        Returns:
            How many seconds to wait before the replacement, or None if there is to be none.
        """
        while self._deaths and now - self._deaths[0] > PERIOD:
            self._deaths.popleft()
        self._deaths.append(now)
        if unit is not None:
            self._kills[unit] = self._kills.get(unit, 0) + 1
            if self._kills[unit] >= KILLS:
                return None
        count = len(self._deaths)
        if count > self._most:
            return None
        return 0.0 if count == 1 else min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (count - 2))

    def answered(self, unit: int) -> None:
        """The unit is done after all."""
        self._kills.pop(unit, None)

    @property
    def count(self) -> int:
        """Deaths that were counted in the last `PERIOD`."""
        return len(self._deaths)
