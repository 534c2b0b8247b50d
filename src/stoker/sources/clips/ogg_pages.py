"""The pages of an Ogg file: at which frame each ends, and what its packets hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from stoker.sources.clips.clip_file import OpenClipFile

_WINDOW = 1 << 16
"""Bytes in which a page is looked for: more than a page has."""
_HEADER = 27


class Page(NamedTuple):
    """A page of a stream.

    Attributes:
        begin: its byte in the file.
        granule: frames from the begin of the stream to the end of the last packet that ends in it; -1 if none does.
        continues: whether it begins with the rest of a packet.
        lengths: of the pieces of its packets: one of less than 255 bytes ends a packet.
        body: its bytes.
    """

    begin: int
    granule: int
    continues: bool
    lengths: bytes
    body: bytes

    def first_bytes(self) -> list[int]:
        """Returns the first byte of each packet that begins in it."""
        found, place, begins = [], 0, not self.continues
        for length in self.lengths:
            if begins and length:
                found.append(self.body[place])
            begins = length < 255
            place += length
        return found


class OggPages:
    """The pages of the first stream of a kind in an Ogg file.

    Args:
        kind: the bytes with which its first packet begins.
        file: which is read.

    Attributes:
        ends: the granules of the last page but one, and of the last. None: there is no such stream, or it does not
            reach the end of the file.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, kind: bytes, file: OpenClipFile) -> None:
        self._file = file
        self._size = size = file.version.size
        self.ends: tuple[int, int] | None = None
        head = file.read(0, _WINDOW)
        begin = head.find(kind) - _HEADER - 1  # the first packet is alone in its page
        if begin < 0 or head[begin : begin + 4] != b"OggS":
            return
        self._page = re.compile(rb"OggS\0[\0-\7].{8}" + re.escape(head[begin + 14 : begin + 18]) + b".{9}", re.DOTALL)
        for window in (_WINDOW, 16 * _WINDOW):
            granules = sorted({page.granule for page in self._from(max(0, size - window), size) if page.granule >= 0})
            if len(granules) > 1:
                self.ends = granules[-2], granules[-1]
                return

    def hold_music_only(self, begin: int, end: int) -> bool:
        """Returns whether all packets of an Opus stream between two granules are of its decoder of music, CELT.

        Raises:
            OSError: the file cannot be read.
        """
        low, high = 0, self._size
        while high - low > _WINDOW:
            middle = (low + high) // 2
            page = next((page for page in self._from(middle, middle + 2 * _WINDOW) if page.granule >= 0), None)
            if page is not None and page.granule < begin:
                low = page.begin
            else:
                high = middle
        last = -1
        for page in self._from(low, self._size):
            if page.granule > 0 and any(first >> 3 < 16 for first in page.first_bytes()):
                return False
            last = max(last, page.granule)
            if last >= end:
                break
        return last >= end

    def _from(self, begin: int, end: int) -> Iterator[Page]:
        """Yields the whole pages that begin in a part of the file."""
        while begin < end:
            data = self._file.read(begin, 2 * _WINDOW)
            place = 0
            while (found := self._page.search(data, place)) and begin + found.start() < end:
                page = _page(data, found.start(), begin)
                if page is None:
                    break
                yield page
                place = found.start() + _HEADER + len(page.lengths) + len(page.body)
            behind = found.start() if found else max(place, len(data) - _HEADER)
            if not behind or begin + len(data) >= self._size:
                return
            begin += behind


def _page(data: bytes, place: int, offset: int) -> Page | None:
    """Returns the page at a place of the data, which begin at an offset of the file; None if its end is missing."""
    lengths = data[place + _HEADER : place + _HEADER + data[place + _HEADER - 1]]
    body = place + _HEADER + len(lengths)
    end = body + sum(lengths)
    if len(lengths) < data[place + _HEADER - 1] or end > len(data):
        return None
    granule = int.from_bytes(data[place + 6 : place + 14], "little", signed=True)
    ends = any(length < 255 for length in lengths)
    return Page(offset + place, granule if ends else -1, bool(data[place + 5] & 1), lengths, data[body:end])
