"""What each worker is doing, in memory that it shares with its zygote: readable when it can no longer be asked."""

from __future__ import annotations

import mmap

from stoker._engine.base import IDLE

SIZE = 128
"""Bytes for each worker, of which it writes 8. Two that write to one line of a cache would wait for each other at every
sample; some processors fetch lines in pairs."""

_STEP = SIZE // 8


class Marks:
    """A number for each worker. Made before the workers are forked; a store of 8 aligned bytes is never torn."""

    def __init__(self, workers: int) -> None:
        self._view = memoryview(mmap.mmap(-1, SIZE * max(1, workers))).cast("q")
        for worker in range(workers):
            self.forget(worker)

    def of(self, worker: int) -> memoryview:
        """Where the worker writes, at [0]."""
        return self._view[_STEP * worker : _STEP * worker + 1]

    def read(self, worker: int) -> int:
        """What the worker wrote last."""
        return self._view[_STEP * worker]

    def forget(self, worker: int) -> None:
        """Another begins in its place."""
        self._view[_STEP * worker] = IDLE
