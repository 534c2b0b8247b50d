"""The arena's owner: which slots exist, which are free, what is reserved and given back. Runs in the zygote."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from stoker._machine import reserve
from stoker._machine.memory import available
from stoker._transport import segments
from stoker.errors import MemoryLimitError

RESERVING = 0.75e-6
"""Seconds that it takes to reserve a page anew."""

OFTEN = 400
"""What lay idle for so many times what it takes to reserve the latest slot is given back. So memory is not kept for a
need that is rare, and to reserve it anew costs at most 0.25 %; with the first touch by those who use it, some 1 %."""

SHORTEST = 0.1
"""Seconds that this takes at the least."""


SpokenFor = Callable[[], int]
"""Says how many bytes others will take. It is asked where memory is reserved anew."""


def _nothing() -> int:
    return 0


class Slot(NamedTuple):
    """A range of the arena: whole pages, of one place and size for ever. `number` is its name in messages."""

    number: int
    offset: int
    capacity: int


def rounded(size: int) -> int:
    """`size` rounded up to an eighth of a power of two, and to whole pages, so that uneven batches share slots."""
    return _up_to(max(segments.PAGE, 1 << max(0, size.bit_length() - 4)), size)


def _up_to(step: int, size: int) -> int:
    return -(-size // step) * step


class Arena:
    """Slots in one shared file. Not thread safe; one process only, the one that forks the workers.

    Args:
        descriptor: the file's.
        limit: bytes that all slots together may take; None for what the memory gives.
        clock: seconds since some moment.
        begin: where the first slot lies.
    """

    def __init__(
        self,
        descriptor: int,
        limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        begin: int = 0,
    ) -> None:
        self.descriptor = descriptor
        self._limit = limit
        self._clock = clock
        self._slots: list[Slot] = []
        self._free: set[int] = set()  # reserved, and nobody's
        self._holes: set[int] = set()  # given back to the system, and nobody's
        self._end = begin
        self._looked_at = clock()  # when idle slots were looked at last
        self._least_idle = 0  # how many lay idle all the time
        self._largest = 0  # batch that lay in a slot, in bytes of whole pages
        self._is_even = True  # whether none was larger than the first

    def slot(self, number: int) -> Slot:
        return self._slots[number]

    def can_give(self, count: int, size: int, spoken_for: SpokenFor = _nothing) -> bool:
        """Whether `take` would give so many slots of `size` bytes, even if the processes grow a little meanwhile."""
        wanted = self.wanted(count, size)
        if not wanted:
            return True
        if self._limit is not None and self.reserved_bytes + wanted > self._limit:
            return False
        memory = available()
        return memory.bytes - 2 * reserve.kept_free(memory.limit) - spoken_for() >= wanted

    def wanted(self, count: int, size: int) -> int:
        """Bytes that would be reserved anew for so many slots of `size` bytes."""
        idle = sum(self._slots[number].capacity >= size for number in self._free)
        return max(0, count - idle) * self._capacity(size)

    @property
    def reserved_bytes(self) -> int:
        return sum(slot.capacity for slot in self._slots if slot.number not in self._holes)

    def take_free(self, size: int) -> Slot | None:
        """A slot of at least `size` bytes that lies idle, if there is one."""
        slot = self._best(self._free, size)
        if slot is not None:
            self._free.discard(slot.number)
            self._least_idle = min(self._least_idle, len(self._free))
        return slot

    def take(self, size: int, spoken_for: SpokenFor = _nothing) -> Slot:
        """A slot of at least `size` bytes, reserved; raises MemoryLimitError if the memory cannot hold it, and what is
        spoken for."""
        fits = self.take_free(size)
        if fits is not None:
            return fits
        self._least_idle = 0
        slot = self._best(self._holes, size)
        if slot is None:
            slot = Slot(len(self._slots), self._end, self._capacity(size))
        while True:
            try:
                self._check_limit(slot.capacity)
                reserve.reserve(self.descriptor, slot.offset, slot.capacity, spoken_for())
                break
            except MemoryLimitError:
                if not self._free:
                    raise
                self._give_back(max(self._free, key=lambda number: self._slots[number].capacity))
        if slot.number == len(self._slots):
            self._slots.append(slot)
            self._end += slot.capacity
        self._holes.discard(slot.number)
        return slot

    def wrote(self, size: int) -> None:
        """A batch takes so many bytes of its slot."""
        pages = _up_to(segments.PAGE, size)
        self._is_even = self._is_even and pages <= (self._largest or pages)
        self._largest = max(self._largest, pages)

    def _capacity(self, size: int) -> int:
        """What a new slot for so many bytes should hold: where batches are even, no more than one of them."""
        pages = _up_to(segments.PAGE, size)
        return max(pages, min(rounded(size), self._largest)) if self._is_even else rounded(size)

    def _check_limit(self, size: int) -> None:
        taken = self.reserved_bytes
        if self._limit is not None and taken + size > self._limit:
            raise MemoryLimitError(
                f"a batch needs {size / 2**20:,.1f} MiB, but of the {self._limit / 2**20:,.1f} MiB that memory_budget "
                f"leaves for batches {taken / 2**20:,.1f} MiB are taken by others. Use smaller batches, fewer workers "
                "or a smaller prefetch_factor, let go of batches that were delivered, or raise memory_budget."
            )

    def put_back(self, number: int) -> None:
        """The slot is nobody's again. Of those that lay idle for a while some are given back to the system."""
        assert number not in self._free and number not in self._holes, "a slot was put back twice"
        self._free.add(number)
        now, pages = self._clock(), self._slots[number].capacity // segments.PAGE
        if now - self._looked_at > max(SHORTEST, OFTEN * RESERVING * pages):
            self.trim(len(self._free) - self._least_idle)
            self._looked_at, self._least_idle = now, len(self._free)

    def trim(self, keep: int) -> None:
        """Gives memory back to the system until at most `keep` slots lie idle, the largest first."""
        while len(self._free) > keep:
            self._give_back(max(self._free, key=lambda number: self._slots[number].capacity))
        self._least_idle = min(self._least_idle, len(self._free))

    def _best(self, numbers: set[int], size: int) -> Slot | None:
        """The smallest that holds `size` without wasting more than half of itself."""
        most = 2 * rounded(size)
        fitting = [self._slots[n] for n in numbers if size <= self._slots[n].capacity <= most]
        return min(fitting, key=lambda slot: slot.capacity, default=None)

    def _give_back(self, number: int) -> None:
        slot = self._slots[number]
        self._free.discard(number)
        self._holes.add(number)
        reserve.punch(self.descriptor, slot.offset, slot.capacity)
