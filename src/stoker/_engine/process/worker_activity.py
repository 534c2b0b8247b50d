"""The activity of each worker, in memory that it shares with its zygote: readable after the worker's end."""

from __future__ import annotations

import mmap

from stoker._engine.activity import ACTIVITY, DUTIES, NEW_MARK, PLACE, Position

SIZE = 128
"""Bytes for each worker, of which it writes 24. Two that write to one line of a cache would wait for each other at
every sample; some processors fetch lines in pairs."""

_STEP = SIZE // 8


def views_of(memory: mmap.mmap) -> list[memoryview]:
    """The memory of the workers' marks."""
    words = memoryview(memory).cast("q")
    return [words[at : at + 3] for at in range(0, len(words), _STEP)]


class WorkerActivity:
    """A mark for each worker, and whether it has something to do at its end (`end_duties.py`).

    Made before the workers are forked; a store of 8 aligned bytes is never torn.
    """

    def __init__(self, workers: int) -> None:
        self._views: list[memoryview] = []
        self.grow(workers)

    def grow(self, workers: int) -> None:
        """Makes room for this number of workers."""
        before = len(self._views)
        if workers > before:
            self._views += views_of(mmap.mmap(-1, SIZE * (workers - before)))
        for worker in range(before, workers):
            self.forget(worker)

    def of(self, worker: int) -> memoryview:
        """Returns the memory of the worker's mark; at [DUTIES] its duties."""
        return self._views[worker]

    def read(self, worker: int) -> Position:
        """Returns the position that the worker wrote last."""
        view = self._views[worker]
        return Position.of(view[PLACE], view[ACTIVITY])

    def has_duties(self, worker: int) -> bool:
        """Whether the worker has something to do at its end."""
        return bool(self._views[worker][DUTIES])

    def forget(self, worker: int) -> None:
        """Another begins in its place."""
        view = self._views[worker]
        view[PLACE], view[ACTIVITY] = NEW_MARK
        view[DUTIES] = 0
