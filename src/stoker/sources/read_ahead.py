"""Files that are read from front to back in large pieces, where each request takes long."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

from stoker.sources.storage import File, LocalFile, Version

FIRST = 128 << 10
"""Bytes of the first request, and of one behind a jump."""
LARGEST = 8 << 20
"""Bytes of the largest request: at 20 ms for a request and 100 MB/s, four fifths of the time are transfer."""
GAP = 1 << 20
"""Bytes that are read and not used, rather than jumped over."""


@runtime_checkable
class RangedFile(File, Protocol):
    """A file of which several ranges can be read at once."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns ranges, given as the first byte and the byte behind the last."""


def ahead(file: File) -> File:
    """Returns a file for reading from front to back: the same one if it lies on this machine."""
    return file if isinstance(file, LocalFile) else ReadAhead(file)


class ReadAhead:
    """A file that reads more than is asked for, the more the longer it is read without jumps. For one reader.

    Memory: 8 MiB.

    Args:
        file: may have `read_ranges`; large pieces are then read as four ranges at once.

    Attributes:
        stop: the byte behind which little will be read.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._held = b""
        self._begin = 0
        self._next = FIRST
        self._size = self.stop = file.version.size

    @property
    def version(self) -> Version:
        return self._file.version

    def read(self, begin: int, length: int) -> bytes:
        end = min(begin + length, self._size)
        place = begin - self._begin
        if place >= 0 and end <= self._begin + len(self._held):
            return self._held[place : place + length]
        behind = self._begin + len(self._held)
        is_near = bool(self._held) and self._begin <= begin <= behind + GAP
        kept = self._held[place:] if is_near and begin < behind else b""
        self._next = min(2 * self._next, LARGEST) if is_near else FIRST
        start = begin + len(kept)
        wanted = min(start + self._next, max(self.stop, start + FIRST), self._size)
        self._held = kept + self._read(start, max(end, wanted))
        self._begin = begin
        return self._held[:length]

    def _read(self, begin: int, end: int) -> bytes:
        if end - begin < 4 * FIRST or not isinstance(self._file, RangedFile):
            return self._file.read(begin, end - begin) if end > begin else b""
        cuts = [begin + (end - begin) * part // 4 for part in range(5)]
        return b"".join(self._file.read_ranges(list(pairwise(cuts))))


class Held:
    """A file some ranges of which are in memory. Neighbouring ranges were read together, all at once.

    Args:
        file: the file.
        ranges: the first byte, and the byte behind the last, of each range that will be read.
    """

    def __init__(self, file: RangedFile, ranges: Sequence[tuple[int, int]]) -> None:
        self._file = file
        joined = coalesced(ranges)
        self._parts = list(zip(joined, file.read_ranges(joined), strict=True))

    @property
    def version(self) -> Version:
        return self._file.version

    def read(self, begin: int, length: int) -> bytes:
        for (first, last), data in self._parts:
            if first <= begin and begin + length <= last:
                return data[begin - first : begin - first + length]
        return self._file.read(begin, length)


def coalesced(ranges: Sequence[tuple[int, int]], gap: int = GAP) -> list[tuple[int, int]]:
    """Returns ranges in order, those joined that lie at most `gap` bytes apart. Empty ones are left out."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(one for one in ranges if one[1] > one[0]):
        if joined and begin <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined
