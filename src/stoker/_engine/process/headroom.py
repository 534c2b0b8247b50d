"""What workers will still take for samples: memory that nobody reserves, and that nobody else should have meanwhile."""

from __future__ import annotations

from collections.abc import Callable

MUCH = 16 << 20
"""Bytes that a worker takes for samples from which on none begins before it is seen whether they are there."""


class Headroom:
    """Compares what a worker has with what it was born with, and with what it had when it held most of a unit: when it
    asked for a slot, as a rule.

    Args:
        now: bytes of its own that a worker has now; 0 where nobody knows.
        known: what units took of the workers of the last epoch; None if nobody knows.

    Attributes:
        growth: bytes that a unit takes of a worker, of the one with most; None as long as nobody knows.
        is_much: whether it is so much that it has to be there before a worker begins, as far as anybody knows.
    """

    def __init__(self, now: Callable[[int], int], known: int | None = None) -> None:
        self._now = now
        self._known = known
        self._at_first: dict[int, int] = {}
        self._growth: dict[int, int] = {}  # as each has shown last
        self._learn()

    def born(self, worker: int) -> None:
        """A worker begins: what it has is no sample's. If there was one of this number, it will be like it."""
        self._at_first[worker] = self._now(worker)

    def left(self, worker: int) -> None:
        """A worker has left that had grown too large or old: the next of this number will be like the others. Where
        none of them has shown anything, like that one: it is all that is known."""
        grown = self._growth.pop(worker, None)
        if not self._growth and grown is not None:
            self._known = grown
        self._learn()

    def showed(self, worker: int, own: int) -> None:
        """A worker that has most of a unit in hand has so many bytes."""
        self._growth[worker] = max(0, own - self._at_first[worker])
        self._learn()

    def _learn(self) -> None:
        self.growth: int | None = max(self._growth.values(), default=self._known)
        self.is_much = self.growth is None or self.growth >= MUCH

    def to_come(self, worker: int) -> int:
        """Bytes that a worker with a unit in hand will take beyond what it has now. Who has shown nothing is like the
        one with most."""
        return self._beyond(worker, self._growth.get(worker, self.growth or 0))

    def to_begin(self, worker: int) -> int:
        """Bytes that a worker without one will take if it begins one: as much as the one with most."""
        return self._beyond(worker, self.growth or 0)

    def so_far(self, worker: int) -> int:
        """Bytes that a worker has taken since it was born."""
        return self._now(worker) - self._at_first[worker]

    def _beyond(self, worker: int, growth: int) -> int:
        return max(0, self._at_first[worker] + growth - self._now(worker)) if growth else 0
