"""Decides how many rows of a unit one worker gets: a pure policy, facts in, decisions out. No clock, process or I/O.

See `docs/design/11-parts.md`.
"""

from __future__ import annotations

import math

WORTH = 0.05
"""Seconds. Shortest unit that workers share. A worker waits after its part, while a worker on whole units already has
the next: batches of 8 samples of 2 ms came at 0.66 of the rate that four workers can give, and unshared ones at 0.86.
"""

SHORTEST = 0.02
"""Seconds of work in a part, at least: the wait after a part must be a small share of it."""

LONGEST = 0.1
"""Seconds of work in a part, at most: the rest of a unit goes to the first free worker. Each part costs its worker and
the zygote half a millisecond.
"""

AT_FIRST = 4
"""Rows of a part until the cost of a row is known. They are sent on if the unit turns out not to be shareable."""

LARGE = 16
"""Rows. Smallest unit that is shared before the cost of a row is known."""

PATIENCE = 3
"""Units that one worker may have to join before the policy checks whether most are."""


class SplitPolicy:
    """Learns the cost of a row, and whether units can be shared at all.

    Args:
        workers: number of workers that share a unit; one shares nothing.
        seconds: cost of a row in an earlier epoch, or None.

    Attributes:
        seconds: cost of a row; None while unknown.
    """

    def __init__(self, workers: int, seconds: float | None = None) -> None:
        self._workers = workers
        self.seconds = seconds
        self._never = workers < 2
        self._shared = 0
        self._in_vain = 0

    def grow(self, workers: int) -> None:
        """Raises the number of workers. If there was only one at first, units stay whole."""
        self._workers = max(self._workers, workers)

    def learned(self, rows: int, seconds: float) -> None:
        """Records that a worker has made `rows` in `seconds`."""
        if rows:
            cost = seconds / rows
            self.seconds = cost if self.seconds is None else (self.seconds + cost) / 2

    def share(self, rows: int, left: int) -> int:
        """Returns the number of rows for the next worker, of a unit that has `rows` of which `left` remain."""
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
        """Whether units with this number of rows take long enough, as far as is known."""
        return self.seconds is not None and self.seconds * rows >= WORTH

    def shares(self, rows: int) -> bool | None:
        """Whether units with this number of rows are made by several workers; None until known."""
        if not self._never and self.seconds is None:
            return None
        if self.share(rows, rows) >= rows:
            return False
        return True if self._shared else None

    @property
    def gave_up(self) -> bool:
        """Whether no unit will be shared any longer."""
        return self._never

    def shared(self) -> None:
        """Records a unit that several workers made."""
        self._shared += 1

    def in_vain(self, for_good: bool) -> None:
        """Records a shared unit that one worker has to join; `for_good`: the same holds for all others."""
        self._in_vain += 1
        self._never = self._never or for_good or self._in_vain > max(PATIENCE, self._shared)
