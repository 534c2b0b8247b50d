"""The owner of the arena: allocates, reuses and releases slots. Runs in the zygote."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from stoker._core.machine import reserve
from stoker._core.machine.memory import available
from stoker._core.machine.reserve import file_limit
from stoker._engine.transport import segments
from stoker._engine.transport.segments import PAGE, ArenaFiles, Mapping
from stoker.errors import MemoryLimitError

RESERVING = 0.75e-6
"""Seconds per page to reserve memory anew, as measured."""

OFTEN = 400
"""Slots idle for this many times the time needed to reserve the latest slot are given back to the system. Reserving
them again then costs at most 0.25 % of the time, or about 1 % including the first page faults of the users."""

SHORTEST = 0.1
"""Lower bound of that idle time, in seconds."""


SpokenFor = Callable[[], int]
"""Returns the bytes that other processes are about to take. Called before memory is reserved."""


def _nothing() -> int:
    return 0


class Slot(NamedTuple):
    """A range of whole pages of one of the arena's files; its place and size never change. Messages refer to it by
    `number`."""

    number: int
    offset: int
    capacity: int


def rounded(size: int) -> int:
    """Returns `size` rounded up to an eighth of a power of two, in whole pages, so that uneven batches share slots."""
    return _up_to(max(segments.PAGE, 1 << max(0, size.bit_length() - 4)), size)


def _text(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _up_to(step: int, size: int) -> int:
    return -(-size // step) * step


class Arena:
    """Slots in shared files. Not thread safe; used only by the process that forks the workers.

    Args:
        files: where the slots lie.
        limit: bytes that all slots together may take; None: limited only by the available memory.
        clock: returns seconds.
        begin: place of the first slot.
    """

    def __init__(
        self,
        files: ArenaFiles,
        limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        begin: int = 0,
    ) -> None:
        self.files = files
        self._file_limit = file_limit()
        self._limit = limit
        self._clock = clock
        self._slots: list[Slot] = []
        self._free: set[int] = set()  # idle slots whose memory is reserved
        self._holes: set[int] = set()  # idle slots whose memory was given back to the system
        self.registered: set[int] = set()  # slots whose pages a device has: they must stay
        self._end = begin
        self._looked_at = clock()  # time of the last check for idle slots
        self._least_idle = 0  # lowest number of idle slots since that check
        self._largest = 0  # size of the largest batch, in bytes of whole pages
        self._is_even = True  # whether no batch was larger than the first

    def slot(self, number: int) -> Slot:
        return self._slots[number]

    def can_give(self, count: int, size: int, spoken_for: SpokenFor = _nothing) -> bool:
        """Returns whether `take` can provide `count` slots of `size` bytes, with a margin for growing processes."""
        wanted = self.wanted(count, size)
        if not wanted:
            return True
        if self._limit is not None and self.reserved_bytes + wanted > self._limit:
            return False
        memory = available()
        return memory.bytes - 2 * reserve.kept_free(memory.limit) - spoken_for() >= wanted

    def wanted(self, count: int, size: int) -> int:
        """Returns the bytes to reserve for `count` slots of `size` bytes, beyond the idle slots."""
        idle = sum(self._slots[number].capacity >= size for number in self._free)
        return max(0, count - idle) * self._capacity(size)

    @property
    def reserved_bytes(self) -> int:
        return sum(slot.capacity for slot in self._slots if slot.number not in self._holes)

    def take_free(self, size: int) -> Slot | None:
        """Returns an idle slot of at least `size` bytes, or None."""
        slot = self._best(self._free, size)
        if slot is not None:
            self._free.discard(slot.number)
            self._least_idle = min(self._least_idle, len(self._free))
        return slot

    def take(self, size: int, spoken_for: SpokenFor = _nothing) -> Slot:
        """Returns a reserved slot of at least `size` bytes.

        Raises:
            MemoryLimitError: the memory cannot hold the slot in addition to the bytes that `spoken_for` returns.
        """
        fits = self.take_free(size)
        if fits is not None:
            return fits
        self._least_idle = 0
        slot = self._best(self._holes, size)
        if slot is None:
            slot = self._new(size)
        while True:
            try:
                self._check_limit(slot.capacity)
                reserve.reserve(*self.files.at(slot.offset), slot.capacity, spoken_for())
                break
            except MemoryLimitError:
                if not self._free - self.registered:
                    raise
                self._give_back_largest()
        if slot.number == len(self._slots):
            self._slots.append(slot)
            self._end = slot.offset + slot.capacity
        self._holes.discard(slot.number)
        return slot

    def _new(self, size: int) -> Slot:
        """Returns a new slot, not yet reserved, behind the others: in the next file where the limit on file sizes asks
        for it.
        """
        for capacity in (self._capacity(size), _up_to(segments.PAGE, size)):
            place = self.files.room_for(capacity, self._end, self._file_limit)
            if place is not None:
                return Slot(len(self._slots), place, capacity)
        limit = _text(self._file_limit)
        here = f"the limit on file sizes (`ulimit -f`), which also applies to files in memory, is {limit}"
        if capacity > self._file_limit:
            raise MemoryLimitError(
                f"a batch needs {_text(size)}, but {here}: raise it, or use a smaller batch_size or output."
            )
        raise MemoryLimitError(
            f"a batch needs {_text(size)}, but {here}, and the {len(self.files)} files for batches are full: raise the "
            "limit, use smaller batches, fewer workers or a smaller prefetch_factor, or delete batches that are kept."
        )

    def wrote(self, size: int) -> None:
        """Records that a batch takes `size` bytes of its slot."""
        pages = _up_to(segments.PAGE, size)
        self._is_even = self._is_even and pages <= (self._largest or pages)
        self._largest = max(self._largest, pages)

    def _capacity(self, size: int) -> int:
        """Returns the capacity of a new slot: the size of the largest batch if batches are even, else rounded up."""
        pages = _up_to(segments.PAGE, size)
        return max(pages, min(rounded(size), self._largest)) if self._is_even else rounded(size)

    def _check_limit(self, size: int) -> None:
        taken = self.reserved_bytes
        if self._limit is not None and taken + size > self._limit:
            raise MemoryLimitError(
                f"a batch needs {_text(size)}, but of the {_text(self._limit)} that memory_budget "
                f"leaves for batches, other batches take {_text(taken)}. Use smaller batches, fewer workers "
                "or a smaller prefetch_factor, delete delivered batches that are still kept, or raise memory_budget."
            )

    def put_back(self, number: int) -> None:
        """Marks the slot as idle. Gives slots back to the system that stayed idle since the last check."""
        assert number not in self._free and number not in self._holes, "a slot was put back twice"
        self._free.add(number)
        now, pages = self._clock(), self._slots[number].capacity // segments.PAGE
        if now - self._looked_at > max(SHORTEST, OFTEN * RESERVING * pages):
            self.trim(len(self._free) - self._least_idle)
            self._looked_at, self._least_idle = now, len(self._free)

    def trim(self, keep: int) -> None:
        """Gives idle slots back to the system, the largest first, until at most `keep` remain, or registered ones."""
        while len(self._free) > keep and self._free - self.registered:
            self._give_back_largest()
        self._least_idle = min(self._least_idle, len(self._free))

    def _best(self, numbers: set[int], size: int) -> Slot | None:
        """Returns the smallest slot that holds `size` bytes and wastes at most half of itself."""
        most = 2 * rounded(size)
        fitting = [self._slots[n] for n in numbers if size <= self._slots[n].capacity <= most]
        return min(fitting, key=lambda slot: (slot.capacity, slot.number not in self.registered), default=None)

    def _give_back_largest(self) -> None:
        number = max(self._free - self.registered, key=lambda number: self._slots[number].capacity)
        slot = self._slots[number]
        self._free.discard(number)
        self._holes.add(number)
        reserve.punch(*self.files.at(slot.offset), slot.capacity)


# Released slots, posted by the trainer without a message: one byte for each slot, in shared memory.
#
# A training loop usually releases a batch after it has received the next one, hence after the trainer's message for
# that one. With messages alone, a loader would need one more slot than it has batches. The zygote therefore reads the
# board whenever it needs a slot.
#
# A byte has one writer at a time: the trainer while it holds the lease, otherwise the zygote. There is no lock, so
# either process may die. A slot that a device reads in place is posted as registered: the zygote must not punch it.


SIZE = PAGE
"""Bytes at the beginning of the arena's file, one for each of the first slots. Later slots are returned by message."""

_RELEASED, _REGISTERED = b"\1", b"\2"


class Board:
    """One process's mapping of the board. `post` is thread safe; only one thread may call `collect`.

    Args:
        descriptor: of the arena's file, which is lengthened if necessary.

    Raises:
        OSError: the process has too many mappings, or the file-size limit is lower than `SIZE`.
        MemoryLimitError: there is no room for it.
    """

    def __init__(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size < SIZE:
            reserve.lengthen(descriptor, SIZE)
        self._owner = os.getpid()
        self._mapping = Mapping(descriptor, 0, SIZE)
        self._bytes = self._mapping.part(0, SIZE)
        self.registered: set[int] = set()  # slots that were registered when they were posted last

    @classmethod
    def where_allowed(cls, descriptor: int) -> Board | None:
        """Returns a board, or None if `ulimit -f` forbids a file of this size: there are no slots then either."""
        try:
            return cls(descriptor)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            return None

    def has(self, number: int) -> bool:
        """Returns whether this slot has a byte."""
        return number < SIZE

    def post(self, number: int, registered: bool = False) -> None:
        """Marks the slot as released. The caller must not touch the slot until it receives it again.

        Does nothing in a fork of the process that made this board: there, batches of vanished threads are destroyed
        before any at-fork hook runs, while the parent still uses them.
        """
        if os.getpid() == self._owner:
            self._bytes[number] = _REGISTERED if registered else _RELEASED

    def collect(self) -> list[int]:
        """Returns the slots posted since the last call."""
        posted, numbers = self._bytes.raw, []
        for mark, note in ((_RELEASED, self.registered.discard), (_REGISTERED, self.registered.add)):
            at = posted.find(mark)
            while at >= 0:
                self._bytes[at] = b"\0"
                numbers.append(at)
                note(at)
                at = posted.find(mark, at + 1)
        return numbers
