"""When workers have had nothing to do for a while: a pure policy, facts in, decisions out. No clock, process or I/O."""

from __future__ import annotations

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
