"""Whose turn it is among the workers of one process of a pool: a pure policy, without clock or process."""

from __future__ import annotations

LONGEST = 10.0
"""Seconds after which a turn no longer keeps others from working: its sample waits for something, such as a message."""


class Turns:
    """One worker makes a unit at a time. Of those that wait, the one that has waited longest is next: ranks that ask at
    the same rate get the same number of units, and what one leaves goes to those that wait.

    Attributes:
        seconds: of finished turns, by worker.
        total: of all workers, also of those that have ended.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []  # in the order in which they began to
        self._working: dict[int, float] = {}  # worker → since when
        self.seconds: dict[int, float] = {}
        self.total = 0.0

    def wants(self, worker: int) -> None:
        """A worker has a unit to make."""
        self._waiting.append(worker)

    def done(self, worker: int, now: float) -> None:
        """A worker has made its unit."""
        if (began := self._working.pop(worker, None)) is not None:
            self.seconds[worker] = self.seconds.get(worker, 0.0) + now - began
            self.total += now - began

    def ended(self, worker: int, now: float) -> None:
        """A worker has ended."""
        self.done(worker, now)
        self.seconds.pop(worker, None)
        if worker in self._waiting:
            self._waiting.remove(worker)

    def next(self, now: float) -> list[int]:
        """Returns the workers whose turn begins now."""
        if not self._waiting or any(now - began < LONGEST for began in self._working.values()):
            return []
        worker = self._waiting.pop(0)
        self._working[worker] = now
        return [worker]

    def patience(self, now: float) -> float | None:
        """Returns the seconds until a turn has lasted too long for those that wait; None if nobody waits."""
        if not self._waiting:
            return None
        return max((began + LONGEST - now for began in self._working.values()), default=0.0)
