"""A file of a store as Python's file object, for libraries that jump about in it."""

from __future__ import annotations

import io
from collections import OrderedDict

from stoker.sources.storage import File

BLOCK = 64 << 10
"""Bytes that are read at least."""
LARGEST = 4 << 20
"""Bytes that are read at once, at most, where it is read from front to back."""
HELD = 32 << 20
"""Bytes that are kept."""


class FileObject(io.RawIOBase):
    """A file of a store, open for reading. For one reader at a time.

    Blocks are kept, those used last. A read that goes on where blocks are held fetches more, up to 4 MiB at once.

    Args:
        file: of the store.

    Attributes:
        size: in bytes.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self.size = file.version.size
        self._position = 0
        self._ahead = BLOCK
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fills a buffer; less of it only at the end of the file.

        Raises:
            OSError: the file was changed or cannot be read.
        """
        begin = self._position
        end = min(begin + len(buffer), self.size)
        if end <= begin:
            return 0
        first, last = begin // BLOCK, (end - 1) // BLOCK
        self._fetch(first, last)
        for number in range(first, last + 1):
            block = self._blocks[number]
            at = number * BLOCK
            start, stop = max(begin, at), min(end, at + BLOCK)
            buffer[start - begin : stop - begin] = block[start - at : stop - at]
            self._blocks.move_to_end(number)
        while len(self._blocks) * BLOCK > HELD and len(self._blocks) > last + 1 - first:
            self._blocks.popitem(last=False)
        self._position = end
        return end - begin

    def _fetch(self, first: int, last: int) -> None:
        """Reads the blocks that are not held, those between the first and the last of them at once."""
        missing = [number for number in range(first, last + 1) if number not in self._blocks]
        if not missing:
            return
        first, last = missing[0], missing[-1]
        self._ahead = min(2 * self._ahead, LARGEST) if first - 1 in self._blocks else BLOCK
        begin = first * BLOCK
        length = max((last + 1) * BLOCK - begin, self._ahead)
        data = self._file.read(begin, min(length, self.size - begin))
        for at in range(0, len(data), BLOCK):
            self._blocks[first + at // BLOCK] = data[at : at + BLOCK]
