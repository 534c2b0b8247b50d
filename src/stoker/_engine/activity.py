"""The activity of each worker: what it does with the unit in hand, and the memory shared with the zygote that says so,
readable when the worker stalls and after its end.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, Protocol


class Activity(IntEnum):
    """The activity of a worker with the unit in hand. Both processes have the same version, so the numbers agree."""

    SAMPLE = 0
    """Making the sample at `Position.place`."""
    IDLE = 1
    """Nothing: waiting for a unit."""
    START = 2
    """Running the user's `worker_init_fn`, or the steps before the first sample."""
    WHOLE = 3
    """Fetching a whole batch at once."""
    COLLATE = 4
    WRITE = 5
    """Handing the batch over."""
    DESCRIBE = 6
    """Having the dataset describe a sample that failed."""
    POLICY = 7
    """Asking `on_error` about a sample that failed."""
    SEVERAL = 8
    """Waiting for the sample at `Position.place`, while others are made at the same time."""
    UNPICKLING = 9
    """Unpickling the job, before its first unit."""
    TRANSFORM = 10
    """Running the user's transform of the whole batch."""
    TURN = 11
    """Waiting with a unit while the workers of other ranks of the pool work."""


PLACE, ACTIVITY = 0, 1
"""Indices of a mark's two numbers: a worker's place in the unit, and its `Activity`. The place is written first;
between samples it alone changes.
"""

DUTIES = 2
"""Index at which a worker process records whether it has duties at its end."""

IN_HAND = 3
"""Index at which a worker process records the number of the unit of a run that it makes."""

NEW_MARK = (0, Activity.IDLE)


class Mark(Protocol):
    """Numbers that show a worker's activity: a list, or memory that another process reads.

    In a thread the place may be a function that returns it: nothing is written for each sample then.
    """

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Position(NamedTuple):
    """The activity of a worker, and the sample of the unit if it has one. Equal positions compare equal.

    Attributes:
        activity: the worker's activity.
        place: place of the sample in the unit, from 0; 0 if the activity has no sample.
    """

    activity: Activity
    place: int = 0

    @classmethod
    def of(cls, place: int | Callable[[], int], activity: int) -> Position:
        """Returns the position that a mark's two numbers encode."""
        known = Activity(activity)
        if known not in (Activity.SAMPLE, Activity.SEVERAL):
            return cls(known)
        return cls(known, place() if callable(place) else place)

    @property
    def mark(self) -> int:
        """One number for the position: a sample's place; below 0 for other activities, as in events."""
        return self.place if self.activity is Activity.SAMPLE else -self.activity


def sample(place: int) -> Position:
    """Returns the position at the sample at this place."""
    return Position(Activity.SAMPLE, place)


IDLE = Position(Activity.IDLE)
START = Position(Activity.START)
COLLATE = Position(Activity.COLLATE)
TRANSFORM = Position(Activity.TRANSFORM)
WRITE = Position(Activity.WRITE)
SEVERAL = Position(Activity.SEVERAL)


SIZE = 128
"""Bytes for each worker, of which it writes 32. Two that write to one line of a cache would wait for each other at
every sample; some processors fetch lines in pairs."""

_STEP = SIZE // 8


def views_of(memory: mmap.mmap) -> list[memoryview]:
    """The memory of the workers' marks."""
    words = memoryview(memory).cast("q")
    return [words[at : at + 4] for at in range(0, len(words), _STEP)]


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

    def in_hand(self, worker: int) -> int:
        """Returns the number of the unit of a run that the worker made last, or has in hand."""
        return self._views[worker][IN_HAND]

    def has_duties(self, worker: int) -> bool:
        """Whether the worker has something to do at its end."""
        return bool(self._views[worker][DUTIES])

    def forget(self, worker: int) -> None:
        """Another begins in its place."""
        view = self._views[worker]
        view[PLACE], view[ACTIVITY] = NEW_MARK
        view[DUTIES], view[IN_HAND] = 0, -1
