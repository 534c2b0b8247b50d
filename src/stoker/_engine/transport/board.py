"""Released slots, posted by the trainer without a message: one byte for each slot, in shared memory.

A training loop usually releases a batch after it has received the next one, hence after the trainer's message for that
one. With messages alone, a loader would need one more slot than it has batches. The zygote therefore reads the board
whenever it needs a slot.

A byte has one writer at a time: the trainer while it holds the lease, otherwise the zygote. There is no lock, so either
process may die.
"""

from __future__ import annotations

import errno
import os

from stoker._core.machine import reserve
from stoker._engine.transport.segments import PAGE, Mapping

SIZE = PAGE
"""Bytes at the beginning of the arena's file, one for each of the first slots. Later slots are returned by message."""


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

    def post(self, number: int) -> None:
        """Marks the slot as released. The caller must not touch the slot until it receives it again.

        Does nothing in a fork of the process that made this board: there, batches of vanished threads are destroyed
        before any at-fork hook runs, while the parent still uses them.
        """
        if os.getpid() == self._owner:
            self._bytes[number] = b"\1"

    def collect(self) -> list[int]:
        """Returns the slots posted since the last call."""
        posted, numbers = self._bytes.raw, []
        at = posted.find(1)
        while at >= 0:
            self._bytes[at] = b"\0"
            numbers.append(at)
            at = posted.find(1, at + 1)
        return numbers
