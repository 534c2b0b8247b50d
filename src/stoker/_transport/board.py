"""Where the trainer leaves word, without a message, of slots that it has let go of: a byte for each, in shared memory.

A training loop lets go of a batch when it has the next one: after the trainer's message for that. Who learns of it
with the message thereafter needs one slot more than there are batches. So the zygote looks here when it wants a slot.

A byte has one writer at a time: the trainer while the slot is in the user's hands, the zygote when it is not. No lock,
so either may die.
"""

from __future__ import annotations

import errno
import os

from stoker._transport.segments import PAGE, Mapping

SIZE = PAGE
"""Bytes at the beginning of the arena's file, and slots that have one; who comes back of the others is told."""


class Board:
    """One process's view of it. Any thread may `post`, one `collect`.

    Args:
        descriptor: the arena's file, which is made long enough.

    Raises:
        OSError: the system has no more mappings for this process, or no file of it may be so long.
    """

    def __init__(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size < SIZE:
            os.ftruncate(descriptor, SIZE)
        self._owner = os.getpid()
        self._mapping = Mapping(descriptor, 0, SIZE)
        self._bytes = self._mapping.part(0, SIZE)

    @classmethod
    def where_allowed(cls, descriptor: int) -> Board | None:
        """None where no file may be so long (`ulimit -f`): nor is there a slot then, and small batches need neither."""
        try:
            return cls(descriptor)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            return None

    def has(self, number: int) -> bool:
        """Whether there is a byte for this slot."""
        return number < SIZE

    def post(self, number: int) -> None:
        """The slot is nobody's any more, and is not touched from here until it is handed out again.

        Nothing in a fork of the process that made this board: there, batches end with the threads that are missing,
        before any hook is called, and they are still the parent's.
        """
        if os.getpid() == self._owner:
            self._bytes[number] = b"\1"

    def collect(self) -> list[int]:
        """The slots that were posted since the last time."""
        posted, numbers = self._bytes.raw, []
        at = posted.find(1)
        while at >= 0:
            self._bytes[at] = b"\0"
            numbers.append(at)
            at = posted.find(1, at + 1)
        return numbers
