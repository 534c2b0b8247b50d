"""How many workers work at once: fewer than there are, where what each takes for its samples would not fit beside the
others'."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from stoker._engine.process.headroom import MUCH, Headroom
from stoker._engine.process.lending import Lending
from stoker._machine import memory, reserve
from stoker._supervision.dispatch import Dispatch
from stoker.errors import MemoryLimitError

UNKNOWN = 1 << 30
"""Bytes that a worker is taken to need as long as none has shown what it does: more than nearly all. Where there is not
so much for each, the others begin when the first has asked for a slot, or answered."""
PATIENCE = 1.0
"""Seconds after which it is looked what those have who have begun, where none has shown what it takes: most units that
are slow are small, and workers may even wait for each other."""
AMPLE = 4.0
"""So many times what all workers together could take is ample, ..."""
LOOK_AGAIN = 0.05
"""... and then nobody looks for so many seconds: a trainer that keeps batches can take some gigabytes in a second. To
look takes some 0.1 ms, and there may be thousands of units in a second."""


class Starved(NamedTuple):
    """A unit that nobody can begin, though all the memory is for it; the worker that would have; and why it cannot."""

    unit: int
    worker: int
    why: MemoryLimitError


class Admission:
    """Sees whether a worker may begin: whoever is refused has nothing in hand yet, and loses nothing by waiting.

    What nobody has reserved is samples, and what a `collate_fn` makes of them: where each of several workers takes as
    much of it as is left, the kernel kills them one after the other. The earliest unit is begun as soon as nobody else
    works.

    Args:
        dispatch: knows the units.
        lending: knows what slots they will want.
        headroom: knows what workers take.
        available: how much memory there is.
        clock: seconds since some moment.

    Attributes:
        refused: what there was, where a worker was refused because of what is known of the others; or None.
        looks_at: when it is to be looked what those have who have begun, if none shows it before; or None.
        starved: the unit that nobody could begin when units were handed out last, or None.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        lending: Lending,
        headroom: Headroom,
        available: Callable[[], memory.Available] = memory.available,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatch = dispatch
        self._lending = lending
        self._headroom = headroom
        self._available = available
        self._clock = clock
        self._ample_until = -1.0
        self._unknown_since: float | None = None
        self.looks_at: float | None = None
        self.refused: memory.Available | None = None
        self.starved: Starved | None = None

    def gate(self) -> Callable[[int, int], bool] | None:
        """What says whether a worker that has nothing may begin a unit; None where all may without a look."""
        self.refused = self.starved = self.looks_at = None
        return self.admits if self._headroom.is_much and self._clock() >= self._ample_until else None

    @property
    def is_short(self) -> bool:
        """Whether somebody had to wait for memory when units were handed out last."""
        return self.refused is not None or self.starved is not None

    def admits(self, worker: int, unit: int) -> bool:
        """Whether a worker that has nothing may begin this unit."""
        busy = self._dispatch.busy
        if unit <= self._dispatch.outstanding[0] and all(map(self._lending.waits, busy)):
            # Who has work waits for this unit to have memory first. Where nobody has any, all the memory is for it
            return bool(busy) or self._could_do_it(worker, unit)
        there, left = self._left()
        growth, everybody = self._headroom.growth, len(self._dispatch.alive)
        slots = self._lending.to_be_given(unit)
        if left >= (UNKNOWN * everybody if growth is None else AMPLE * (growth * everybody + slots)):
            self._ample_until = self._clock() + LOOK_AGAIN
        if growth is None:  # as long as nobody has shown it, which is never again once one has
            return left >= UNKNOWN * (len(busy) + 1) or self._seem_small(busy)
        if left >= self._lending.spoken_for() + self._headroom.to_begin(worker) + slots:
            return True
        self.refused = there
        return False

    def _seem_small(self, busy: list[int]) -> bool:
        """Whether those who have begun have done so long ago, and have taken little."""
        now = self._clock()
        if self._unknown_since is None:
            self._unknown_since = now
        if now < self._unknown_since + PATIENCE:
            self.looks_at = self._unknown_since + PATIENCE
            return False
        return max(map(self._headroom.so_far, busy)) < MUCH

    def _could_do_it(self, worker: int, unit: int) -> bool:
        """Whether there is as much as a worker took last, for this one alone."""
        wanted = self._headroom.to_begin(worker)
        if not wanted or wanted <= self._left()[1]:
            return True
        self._lending.give_back()
        there, left = self._left()
        if wanted <= left:
            return True
        took = "and a worker took so much for the samples of the last one and what it made of them"
        why = reserve.refusal(wanted, there, f"{reserve.kept_in_words(there)}, {took}")
        self.starved = Starved(unit, worker, why)
        return False

    def _left(self) -> tuple[memory.Available, int]:
        """What is available, and how much of it may be taken."""
        there = self._available()
        return there, there.bytes - reserve.kept_free(there.limit)
