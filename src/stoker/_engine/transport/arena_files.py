"""The files of an arena: one, or several where `ulimit -f` keeps one from growing."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from typing import NamedTuple, Self

from stoker._core.machine.memory import available
from stoker._core.machine.reserve import file_limit
from stoker._engine.transport import segments

MOST = 64
"""Files at most: each costs each process a descriptor."""

_BITS = 48
"""A place in the arena is the number of its file, and below it as many bits for the place in that file."""


class FilePlace(NamedTuple):
    """A place in one of the files."""

    descriptor: int
    offset: int


class ArenaFiles(tuple[int, ...]):
    """The descriptors of an arena's files. A place in the arena is one number, which messages carry."""

    @classmethod
    def create(cls) -> Self:
        """Returns new files, not inherited by programs: as many as the memory takes under the limit on file sizes."""
        files = [segments.create()]
        if segments.PAGE <= (most := file_limit()) < sys.maxsize:
            number = min(MOST, math.ceil(available().bytes / (most // segments.PAGE * segments.PAGE)))
            with contextlib.suppress(OSError):  # no descriptor is left: fewer will do
                while len(files) < number:
                    files.append(segments.create())
        return cls(files)

    def at(self, offset: int) -> FilePlace:
        """Returns the file of a place, and the place in it."""
        return FilePlace(self[offset >> _BITS], offset & ((1 << _BITS) - 1))

    def room_for(self, size: int, begin: int, most: int) -> int | None:
        """Returns the first place from `begin` on where `size` bytes lie in one file of at most `most` bytes."""
        number, offset = begin >> _BITS, begin & ((1 << _BITS) - 1)
        if offset + size > most:
            number, offset = number + 1, 0
        return (number << _BITS) + offset if offset + size <= most and number < len(self) else None

    def sizes(self) -> list[tuple[int, int]]:
        """Returns (the place of its begin, its size) of each file."""
        return [(number << _BITS, os.fstat(file).st_size) for number, file in enumerate(self)]

    @property
    def reserved_bytes(self) -> int:
        return sum(os.fstat(file).st_blocks * 512 for file in self)

    def close(self) -> None:
        for file in self:
            os.close(file)
