"""Files that are read from front to back in large pieces, where each request takes long."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

from stoker._core.worker_info import current
from stoker.errors import FileChangedError
from stoker.sources.storage import File, LocalFile, Version

FIRST = 128 << 10
"""Bytes of the first request, and of one behind a jump."""
LARGEST = 4 << 20
"""Bytes that are read at once, in `PARTS` ranges: the next ones are fetched while these are used."""
PARTS = 4
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

    In a worker, the next bytes are fetched by a thread meanwhile; elsewhere no thread is started. Memory: 12 MiB.

    Args:
        file: may have `read_ranges`; large pieces are then read as several ranges at once.

    Attributes:
        stop: the byte behind which little will be read.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._parts: list[tuple[int, bytes]] = []  # one behind the other, with the bytes at which they begin
        self._next = FIRST
        self._size = self.stop = file.version.size
        self._fetch: _Fetch | None = None

    @property
    def version(self) -> Version:
        return self._file.version

    def read(self, begin: int, length: int) -> bytes:
        end = min(begin + length, self._size)
        if end <= begin:
            return b""
        if not self._parts or not self._parts[0][0] <= begin <= self._behind + GAP:
            self._parts.clear()
            self._fetch, self._next = None, FIRST
        while not self._parts or self._behind < end:
            self._read_on(begin, end)
        pieces = []
        for at, data in self._parts:
            if at <= begin < at + len(data):
                pieces.append(data[begin - at : end - at])
                begin += len(pieces[-1])
                if begin == end:
                    break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def _behind(self) -> int:
        at, data = self._parts[-1]
        return at + len(data)

    def _read_on(self, begin: int, end: int) -> None:
        """Reads the bytes behind those that are held, and drops the oldest."""
        fetch, self._fetch = self._fetch, None
        if fetch is None:
            if self._parts and self._behind < begin:
                self._parts.clear()
            start = self._behind if self._parts else begin
            fetch = _Fetch(self._file, start, max(end, self._reach(start)))
        is_first = not self._parts
        self._parts = [(at, data) for at, data in self._parts if at + len(data) > begin - LARGEST]
        self._parts += fetch.parts()
        self._next = FIRST if is_first else min(2 * self._next, LARGEST)
        behind = self._behind
        if not is_first and behind < min(self.stop, self._size) and current.is_worker_process:
            self._fetch = _Fetch(self._file, behind, self._reach(behind))
            self._fetch.start()

    def _reach(self, start: int) -> int:
        return min(start + self._next, max(self.stop, start + FIRST), self._size)


class _Fetch(threading.Thread):
    """Reads bytes of a file, at once or in a thread.

    Args:
        end: the byte behind the last.
    """

    def __init__(self, file: File, begin: int, end: int) -> None:
        super().__init__(name="stoker-read-ahead", daemon=True)
        self._file, self._begin, self._end = file, begin, end
        self._parts: list[tuple[int, bytes]] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._parts = self._read()
        except BaseException as error:
            self._error = error

    def parts(self) -> list[tuple[int, bytes]]:
        """Returns the bytes in parts, with the places at which they begin; waits for the thread, if there is one."""
        if self.ident is None:
            return self._read()
        self.join()
        if self._error is not None:
            raise self._error
        return self._parts

    def _read(self) -> list[tuple[int, bytes]]:
        begin, end = self._begin, self._end
        if end - begin < PARTS * FIRST or not isinstance(self._file, RangedFile):
            data = self._file.read(begin, end - begin)
            if len(data) < end - begin:
                raise FileChangedError(f"a file ends at byte {begin + len(data)}, and had {self._file.version.size}")
            return [(begin, data)]
        cuts = [begin + (end - begin) * part // PARTS for part in range(PARTS + 1)]
        return list(zip(cuts, self._file.read_ranges(list(pairwise(cuts))), strict=False))


class Held:
    """A file some ranges of which are in memory.

    Args:
        parts: the first byte, and the byte behind the last, of each range, and its bytes.
    """

    def __init__(self, file: RangedFile, parts: Sequence[tuple[tuple[int, int], bytes]]) -> None:
        self._file = file
        self._parts = parts

    @property
    def version(self) -> Version:
        return self._file.version

    def read(self, begin: int, length: int) -> bytes:
        end = min(begin + length, self.version.size)
        for (first, last), data in self._parts:
            if first <= begin <= end <= last:
                return data[begin - first : end - first]
        return self._file.read(begin, length)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._file.read_ranges(ranges)


def held(file: RangedFile, ranges: Sequence[tuple[int, int]]) -> Held:
    """Returns a file with ranges in memory, which are read at once; neighbouring ones together."""
    joined = coalesced(ranges)
    return Held(file, list(zip(joined, file.read_ranges(joined), strict=True)))


def coalesced(ranges: Sequence[tuple[int, int]], gap: int = GAP) -> list[tuple[int, int]]:
    """Returns ranges in order, those joined that lie at most `gap` bytes apart. Empty ones are left out."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(one for one in ranges if one[1] > one[0]):
        if joined and begin <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined
