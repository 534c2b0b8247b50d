"""How many rows of a unit one worker is handed: a pure policy, facts in, decisions out. No clock, process or I/O.

See `docs/design/11-parts.md`.
"""

from __future__ import annotations

import math

WORTH = 0.05
"""Seconds that a unit has to take to be shared among workers. A worker that has done its part waits for the next, where
one that makes whole units has had the next with it: batches of 8 samples of 2 ms came at 0.66 of the rate that four
workers can give, and not shared at 0.86."""

SHORTEST = 0.02
"""Seconds of work in a part, at least: so that this wait is a small share of it."""

LONGEST = 0.1
"""Seconds of work in a part, at most: what is left of a unit goes to whoever is free first. Each part takes its worker
and the zygote half a millisecond."""

AT_FIRST = 4
"""Rows of a part while nobody knows what one costs. Where it turns out that the unit cannot be shared they were made in
vain."""

LARGE = 16
"""Rows of a unit from which on it is shared before anybody knows what one costs."""

PATIENCE = 3
"""So many units may have to be made again as a whole before it matters whether most are."""


class Cut:
    """Learns what a row costs, and whether units can be shared at all.

    Args:
        workers: among whom a unit is shared; one shares nothing.
        seconds: what a row has cost others before, if there were any.

    Attributes:
        seconds: what a row costs, as far as is known.
    """

    def __init__(self, workers: int, seconds: float | None = None) -> None:
        self._workers = workers
        self.seconds = seconds
        self._never = workers < 2
        self._shared = 0
        self._in_vain = 0

    def grow(self, workers: int) -> None:
        """There are to be so many workers. Where one had nobody to share with, units stay whole."""
        self._workers = max(self._workers, workers)

    def learned(self, rows: int, seconds: float) -> None:
        """A worker has made so many rows in this time."""
        if rows:
            cost = seconds / rows
            self.seconds = cost if self.seconds is None else (self.seconds + cost) / 2

    def share(self, rows: int, left: int) -> int:
        """How many of the rows that are left of a unit of so many the next worker gets."""
        if self._never or not rows:
            return left
        if self.seconds is None:
            return min(left, AT_FIRST) if rows >= LARGE else left
        if not self.is_worth_it(rows):
            return left
        most, least = LONGEST / self.seconds, math.ceil(SHORTEST / self.seconds)
        share = max(1, least, math.floor(min(most, math.ceil(rows / self._workers))))
        return left if left < share * 1.5 else share

    def is_worth_it(self, rows: int) -> bool:
        """Whether units of so many rows take long enough, as far as is known."""
        return self.seconds is not None and self.seconds * rows >= WORTH

    def shares(self, rows: int) -> bool | None:
        """Whether units of so many rows are made by several workers; None as long as that is to be seen."""
        if not self._never and self.seconds is None:
            return None
        if self.share(rows, rows) >= rows:
            return False
        return True if self._shared else None

    @property
    def gave_up(self) -> bool:
        """Whether no unit will be shared any more."""
        return self._never

    def shared(self) -> None:
        """A unit was made by several workers."""
        self._shared += 1

    def in_vain(self, for_good: bool) -> None:
        """A unit that was shared has to be made by one worker after all; `for_good`: as all others will have to."""
        self._in_vain += 1
        self._never = self._never or for_good or self._in_vain > max(PATIENCE, self._shared)
