"""What workers will still take for samples: memory that nobody reserves, and that nobody else should have meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable

MUCH = 16 << 20
"""Bytes that a worker takes for samples from which on none begins before it is seen whether they are there."""
UNKNOWN = 1 << 30
"""Bytes that a worker is taken to need as long as none has shown what it does: more than nearly all. Where there is not
so much for each, the others begin when the first has asked for a slot, or answered."""


class Headroom:
    """Compares what a worker has with what it had when it asked for memory for a batch: then it held its samples.

    Args:
        now: bytes of its own that a worker has now; 0 where nobody knows.
    """

    def __init__(self, now: Callable[[int], int]) -> None:
        self._now = now
        self._at_first: dict[int, int] = {}
        self._at_most: dict[int, int] = {}

    def born(self, worker: int) -> None:
        """A worker begins: what it has is no sample's. If there was one of this number, it will be like it."""
        self._at_first[worker] = self._now(worker)

    def left(self, worker: int) -> None:
        """A worker has left that had grown too large or old: the next of this number will be like the others."""
        self._at_most.pop(worker, None)

    def showed(self, worker: int, own: int) -> None:
        """A worker that has samples in hand has so many bytes."""
        self._at_most[worker] = own

    @property
    def has_shown(self) -> bool:
        """Whether any worker has."""
        return bool(self._at_most)

    @property
    def is_much(self) -> bool:
        """Whether it is so much that it has to be there before a worker begins, as far as anybody knows."""
        return not self.has_shown or self.growth >= MUCH

    @property
    def growth(self) -> int:
        """Bytes that samples have taken of a worker, of the one with most."""
        return max((own - self._at_first.get(worker, own) for worker, own in self._at_most.items()), default=0)

    def to_come(self, workers: Iterable[int]) -> int:
        """Bytes that these will take beyond what they have now. Who has shown nothing will be like the largest."""
        most = max(self._at_most.values(), default=0)
        return sum(max(0, self._at_most.get(worker, most) - self._now(worker)) for worker in workers) if most else 0

    def to_begin(self, worker: int) -> int:
        """Bytes that a worker without work will take if it begins some: like whoever has shown most."""
        most = max(self._at_most.values(), default=0)
        return max(0, most - self._now(worker))
