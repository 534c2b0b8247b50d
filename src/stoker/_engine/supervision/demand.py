"""How many workers on other machines a run needs: a pure policy, facts in, decisions out."""

from __future__ import annotations

import math
from collections.abc import Collection

LOOK = 0.25
"""Seconds between two looks at the workers."""

FULL, FEW = 2.0, 0.25
"""Seconds, at least, in which fewer workers than this are idle on average before more are asked for."""

LATE = 10.0
"""Seconds after which the average counts in any case."""

LONG = 30.0
"""Seconds in which workers are idle before they are released. To have one again takes some seconds."""

SPARE = 1
"""Idle workers that are kept: without them, a moment that needs one more would ask for it again."""


class Demand:
    """Asks for workers on other machines while the trainer consumes all that is made, and releases those that idle.

    Batches that the trainer does not take fill the units that may be under way: then workers are idle. While all are
    busy, as many again as there are are asked for, once those asked for before have come. A slow trainer submits half
    of the units at once, and all workers are busy for a moment. So what counts is the average over a window: until all
    units are made that were under way when it began, and others are, and then the same for these.

    Args:
        most: workers on other machines that there may be.

    Attributes:
        looks_at: time of the next look.
        looks_until: time until which there are looks without units too: others only would see busy workers alone.
    """

    def __init__(self, most: int) -> None:
        self.looks_at = self.looks_until = 0.0
        self._most = most
        self._begin(0.0)
        self._rest(0.0)

    def _begin(self, now: float, undone: Collection[int] = ()) -> None:
        self._since, self._looks, self._idle = now, 0, 0
        self._newest, self._rounds = max(undone, default=-1), 0

    def _rest(self, now: float) -> None:
        self._idle_since, self._least_idle = now, math.inf

    def look(self, idle: int, there: int, asked: int, now: float, undone: Collection[int] = ()) -> int:
        """Returns the number of workers to ask for; below 0, to release.

        Args:
            idle: workers without a unit, of this machine too.
            there: workers on other machines.
            asked: workers that were asked for, and are not there.
            now: seconds since some moment.
            undone: numbers of the units that are under way and not made; later ones are greater.
        """
        if now - self.looks_at > FULL:  # nobody has looked meanwhile
            self._begin(now, undone)
            self._rest(now)
        self.looks_at = now + LOOK
        if undone:
            self.looks_until = now + FULL
        self._looks += 1
        self._idle += idle
        more, average = 0, self._idle / self._looks
        if undone and min(undone) > self._newest:
            self._newest, self._rounds = max(undone), self._rounds + 1
        if now - self._since >= (FULL if self._rounds > 1 else LATE):
            if average < FEW and not asked:
                more = min(max(1, there), self._most - there)
            self._least_idle = min(self._least_idle, average)
            if int(average) <= SPARE:
                self._rest(now)
            self._begin(now, undone)
        if now - self._idle_since >= LONG:
            more -= max(0, min(int(self._least_idle) - SPARE, there))
            self._rest(now)
        return more
