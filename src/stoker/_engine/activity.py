"""The activity of a worker, in memory that another process can read when the worker dies or stalls."""

from __future__ import annotations

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


PLACE, ACTIVITY = 0, 1
"""Indices of a mark's two numbers: a worker's place in the unit, and its `Activity`. The place is written first;
between samples it alone changes.
"""

DUTIES = 2
"""Index at which a worker process records whether it has duties at its end."""

NEW_MARK = (0, Activity.IDLE)


class Mark(Protocol):
    """Numbers that show a worker's activity: a list, or memory that another process reads."""

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
    def of(cls, place: int, activity: int) -> Position:
        """Returns the position that a mark's two numbers encode."""
        known = Activity(activity)
        return cls(known, place if known in (Activity.SAMPLE, Activity.SEVERAL) else 0)

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
WRITE = Position(Activity.WRITE)
SEVERAL = Position(Activity.SEVERAL)
