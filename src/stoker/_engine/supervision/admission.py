"""Limits the number of workers that work at once, if the memory for their samples would not suffice for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from stoker._core.machine import memory, reserve
from stoker._engine.supervision.dispatch import Dispatch
from stoker._engine.supervision.slot_allocator import MUCH, SlotAllocator, WorkerMemory
from stoker.errors import MemoryLimitError

UNKNOWN = 1 << 30
"""Bytes that a worker is assumed to need until one has shown its need: more than nearly all do. If there is less for
each, the others begin after the first has asked for a slot, or answered.
"""
PATIENCE = 1.0
"""Seconds after which the memory of the first workers is read, if none has shown its need: most slow units are small,
and workers may even wait for each other.
"""
AMPLE = 4.0
"""Multiple of the need of all workers together from which on memory is ample."""
LOOK_AGAIN = 0.05
"""Seconds without a check after memory was ample: a trainer that keeps batches can take some gigabytes in a second. A
check takes some 0.1 ms, and there may be thousands of units in a second.
"""


class Refused(NamedTuple):
    """A unit that no worker can begin, even with all the memory; the worker that would have; and the reason."""

    unit: int
    worker: int
    why: MemoryLimitError


class Admission:
    """Decides whether an idle worker may begin a unit; a refused worker holds nothing, so it loses nothing by waiting.

    Memory for samples, and for the results of a `collate_fn`, is not reserved: if several workers each take all that is
    left, the kernel kills them one after the other. The earliest unit begins as soon as no other worker works.

    Args:
        dispatch: knows the units.
        slots: knows the slots that units will need.
        worker_memory: knows the memory that workers take.
        available: returns the available memory.
        clock: seconds of a monotonic clock.

    Attributes:
        refused: the available memory when a worker was refused because of the known need of the others; or None.
        looks_at: time to read the memory of busy workers, if none shows it before; or None.
        starved: the unit that no worker could begin when units were handed out last, or None.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        slots: SlotAllocator,
        worker_memory: WorkerMemory,
        available: Callable[[], memory.Available] = memory.available,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatch = dispatch
        self._slots = slots
        self._memory = worker_memory
        self._available = available
        self._clock = clock
        self._ample_until = -1.0
        self._unknown_since: float | None = None
        self.looks_at: float | None = None
        self.refused: memory.Available | None = None
        self.starved: Refused | None = None

    def gate(self) -> Callable[[int, int], bool] | None:
        """Returns a function that decides whether an idle worker may begin a unit; None if all may without a check."""
        self.refused = self.starved = self.looks_at = None
        return self.admits if self._memory.is_much and self._clock() >= self._ample_until else None

    @property
    def is_short(self) -> bool:
        """Whether a worker had to wait for memory when units were handed out last."""
        return self.refused is not None or self.starved is not None

    def admits(self, worker: int, unit: int) -> bool:
        """Whether an idle worker may begin this unit."""
        busy = self._dispatch.busy
        if unit <= self._dispatch.outstanding[0] and all(map(self._slots.waits, busy)):
            # Busy workers wait for this unit to have memory first. Without any, all the memory is for this unit
            return bool(busy) or self._could_do_it(worker, unit)
        there, left = self._left()
        growth, everybody = self._memory.growth, sum(map(self._memory.is_here, self._dispatch.alive))
        slots = self._slots.to_be_given(unit)
        if left >= (UNKNOWN * everybody if growth is None else AMPLE * (growth * everybody + slots)):
            self._ample_until = self._clock() + LOOK_AGAIN
        if growth is None:  # until a worker has shown its need
            here = set(filter(self._memory.is_here, busy))
            return left >= UNKNOWN * (len(here) + 1) or self._seem_small(here)
        if left >= self._slots.spoken_for() + self._memory.to_begin(worker) + slots:
            return True
        self.refused = there
        return False

    def _seem_small(self, busy: set[int]) -> bool:
        """Whether the busy workers began at least `PATIENCE` seconds ago, and have taken little."""
        now = self._clock()
        if self._unknown_since is None:
            self._unknown_since = now
        if now < self._unknown_since + PATIENCE:
            self.looks_at = self._unknown_since + PATIENCE
            return False
        return max(map(self._memory.so_far, busy), default=0) < MUCH

    def _could_do_it(self, worker: int, unit: int) -> bool:
        """Whether there is as much memory as a worker took last, for this one alone."""
        wanted = self._memory.to_begin(worker)
        if not wanted or wanted <= self._left()[1]:
            return True
        self._slots.give_back()
        there, left = self._left()
        if wanted <= left:
            return True
        if not all(map(self._memory.is_here, self._dispatch.alive)):  # a worker of another machine will make it
            self.refused = there
            return False
        took = "and a worker took this much for the samples of its last batch and their collation"
        why = reserve.refusal(wanted, there, f"{reserve.kept_in_words(there)}, {took}")
        self.starved = Refused(unit, worker, why)
        return False

    def _left(self) -> tuple[memory.Available, int]:
        """Returns the available memory, and the bytes of it that may be taken."""
        there = self._available()
        return there, there.bytes - reserve.kept_free(there.limit)
