"""What each worker is doing, in memory that it shares with its zygote: readable when it can no longer be asked."""

from __future__ import annotations

import mmap

from stoker._engine.base import IDLE

SIZE = 128
"""Bytes for each worker, of which it writes 8. Two that write to one line of a cache would wait for each other at every
sample; some processors fetch lines in pairs."""

_STEP = SIZE // 8


def views_of(memory: mmap.mmap) -> list[memoryview]:
    """Where each worker writes, at [0]."""
    words = memoryview(memory).cast("q")
    return [words[at : at + 1] for at in range(0, len(words), _STEP)]


class Marks:
    """A number for each worker. Made before the workers are forked; a store of 8 aligned bytes is never torn."""

    def __init__(self, workers: int) -> None:
        self._views: list[memoryview] = []
        self.grow(workers)

    def grow(self, workers: int) -> None:
        """There are to be so many workers."""
        before = len(self._views)
        if workers > before:
            self._views += views_of(mmap.mmap(-1, SIZE * (workers - before)))
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
