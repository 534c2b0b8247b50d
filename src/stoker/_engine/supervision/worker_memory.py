"""Estimates the memory that workers will still take for samples, which is not reserved."""

from __future__ import annotations

from collections.abc import Callable

MUCH = 16 << 20
"""Bytes. A worker that needs at least this much for its samples begins a unit only once that much memory is known to be
free.
"""


class WorkerMemory:
    """Compares a worker's memory at its birth, now, and when it held most of a unit: usually at its request for a slot.

    Args:
        now: returns a worker's private memory in bytes; 0 if unknown.
        known: bytes per unit of the last epoch's workers; None if unknown.

    Attributes:
        growth: bytes per unit of the worker that takes most; None while unknown.
        is_much: whether that memory must be free before a worker begins; true while unknown.
    """

    def __init__(self, now: Callable[[int], int], known: int | None = None) -> None:
        self._now = now
        self._known = known
        self._at_first: dict[int, int] = {}
        self._growth: dict[int, int] = {}  # bytes, as each worker has shown last
        self._learn()

    def born(self, worker: int, own: int | None = None) -> None:
        """Records the memory of a new worker, now or `own` at its birth, which belongs to no sample. It is assumed to
        need as much as an earlier worker of this number.
        """
        self._at_first[worker] = self._now(worker) if own is None else own

    def left(self, worker: int) -> None:
        """Forgets a worker that had grown too large or old: the next of this number is assumed to be like the others,
        or like this one if no other has shown its need.
        """
        grown = self._growth.pop(worker, None)
        if not self._growth and grown is not None:
            self._known = grown
        self._learn()

    def showed(self, worker: int, own: int) -> None:
        """Records the memory of a worker that has most of a unit in hand."""
        self._growth[worker] = max(0, own - self._at_first[worker])
        self._learn()

    def _learn(self) -> None:
        self.growth: int | None = max(self._growth.values(), default=self._known)
        self.is_much = self.growth is None or self.growth >= MUCH

    def to_come(self, worker: int) -> int:
        """Returns the bytes that a worker with a unit in hand will still take. A worker that has shown nothing counts
        as the one that takes most.
        """
        return self._beyond(worker, self._growth.get(worker, self.growth or 0))

    def to_begin(self, worker: int) -> int:
        """Returns the bytes that an idle worker will take for a unit: as much as the one that takes most."""
        return self._beyond(worker, self.growth or 0)

    def so_far(self, worker: int) -> int:
        """Returns the bytes that a worker has taken since its birth."""
        return self._now(worker) - self._at_first[worker]

    def _beyond(self, worker: int, growth: int) -> int:
        return max(0, self._at_first[worker] + growth - self._now(worker)) if growth else 0
