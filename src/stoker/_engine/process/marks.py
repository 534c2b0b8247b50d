"""What each worker is doing, in memory that it shares with its zygote: readable when it can no longer be asked."""

from __future__ import annotations

import mmap

from stoker._engine.base import IDLE

_SIZE = 8


class Marks:
    """A number for each worker. Made before the workers are forked; a store of 8 aligned bytes is never torn."""

    def __init__(self, workers: int) -> None:
        self._view = memoryview(mmap.mmap(-1, _SIZE * max(1, workers))).cast("q")
        for worker in range(workers):
            self.forget(worker)

    def of(self, worker: int) -> memoryview:
        """Where the worker writes, at [0]."""
        return self._view[worker : worker + 1]

    def read(self, worker: int) -> int:
        """What the worker wrote last."""
        return self._view[worker]

    def forget(self, worker: int) -> None:
        """Another begins in its place."""
        self._view[worker] = IDLE
