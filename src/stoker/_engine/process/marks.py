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
        self._views: list[memoryview] = []
        self.grow(workers)

    def grow(self, workers: int) -> None:
        """There are to be so many workers."""
        before = len(self._views)
        if workers > before:
            view = memoryview(mmap.mmap(-1, SIZE * (workers - before))).cast("q")
            self._views += [view[_STEP * n : _STEP * n + 1] for n in range(workers - before)]
        for worker in range(before, workers):
            self.forget(worker)

    def of(self, worker: int) -> memoryview:
        """Where the worker writes, at [0]."""
        return self._views[worker]

    def read(self, worker: int) -> int:
        """What the worker wrote last."""
        return self._views[worker][0]

    def forget(self, worker: int) -> None:
        """Another begins in its place."""
        self._views[worker][0] = IDLE
