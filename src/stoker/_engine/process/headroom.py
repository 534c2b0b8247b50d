"""What workers will still take for samples: memory that nobody reserves, and that nobody else should have meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Headroom:
    """Compares what a worker has with what it had when it asked for memory for a batch: then it held its samples.

    Args:
        now: bytes of its own that a worker has now.
    """

    def __init__(self, now: Callable[[int], int]) -> None:
        self._now = now
        self._at_most: dict[int, int] = {}

    def showed(self, worker: int, own: int) -> None:
        """A worker that has samples in hand has so many bytes."""
        self._at_most[worker] = own

    def to_come(self, workers: Iterable[int]) -> int:
        """Bytes that these will take beyond what they have now. Who has shown nothing will be like the largest."""
        most = max(self._at_most.values(), default=0)
        return sum(max(0, self._at_most.get(worker, most) - self._now(worker)) for worker in workers) if most else 0
