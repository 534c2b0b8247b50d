"""Where decoding begins, so that a clip has the values that it has in the whole file.

Decoders of lossy formats carry data from one piece to the next, and libsndfile's seeks give them too little of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from stoker.sources.clips.clip_file import OpenClipFile


def exact_start(sound: Any, file: OpenClipFile, start: int, total: int) -> int:
    """Returns the frame, `start` or one before it, from which the library is to read.

    Args:
        sound: the open file, of soundfile.
        file: from which it was opened.
        start: the first frame of the clip.
        total: frames of the file.
    """
    if not start or not sound.seekable():
        return 0
    if sound.subtype.startswith("MPEG"):
        return max(0, start - _frames_before(sound.samplerate, sound.channels))
    if sound.subtype == "VORBIS":
        return _vorbis(OggPages(b"\x01vorbis", file), start, total)
    if sound.subtype == "OPUS":
        return _opus(OggPages(b"OpusHead", file), start, total, sound.samplerate)
    return start


def _frames_before(rate: int, channels: int) -> int:
    """Returns the frames to be decoded before a clip of an MP3 file.

    The data of a piece may begin some hundred bytes earlier, which are many pieces where these are small; and four
    more, since each piece is blended with the next.
    """
    reservoir, values, kbits, side = (511, 1152, 32, (17, 32)) if rate >= 32_000 else (255, 576, 8, (9, 17))
    least = values * 125 * kbits // rate - 6 - side[channels - 1]  # bytes of data in the smallest piece
    return (reservoir // least + 4) * values


def _vorbis(pages: OggPages, start: int, total: int) -> int:
    """The library takes the end of the last page for that of its last piece, which reaches further."""
    if pages.ends is None:
        return 0
    before, last = pages.ends
    return max(0, min(start, total - (last - before) - 1))


def _opus(pages: OggPages, start: int, total: int, rate: int) -> int:
    """The decoder of music forgets within a second, that of speech never."""
    begin = start - rate
    if pages.ends is None or begin <= 0:
        return 0
    first, end = (pages.ends[1] - (total - frame) * 48_000 // rate for frame in (begin, start))
    return begin if pages.hold_music_only(first - 48_000, end) else 0  # the library itself begins 0.66 s earlier


# The pages of an Ogg file: at which frame each ends, and what its packets hold.


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
    """

    begin: int
    granule: int
    continues: bool
    lengths: bytes
    body: bytes

    def first_bytes(self) -> list[int]:
        """Returns the first byte of each packet that begins in it."""
        packets, place, begins = [], 0, not self.continues
        for length in self.lengths:
            if begins and length:
                packets.append(self.body[place])
            begins = length < 255
            place += length
        return packets


class OggPages:
    """The pages of the first stream of a kind in an Ogg file.

    Args:
        kind: the bytes with which its first packet begins.

    Attributes:
        ends: the granules of the last page but one, and of the last. None: there is no such stream, or it does not
            reach the end of the file.
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
        """Returns whether all packets of an Opus stream between two granules are of its decoder of music, CELT."""
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
            while (match := self._page.search(data, place)) and begin + match.start() < end:
                page = _page(data, match.start(), begin)
                if page is None:
                    break
                yield page
                place = match.start() + _HEADER + len(page.lengths) + len(page.body)
            behind = match.start() if match else max(place, len(data) - _HEADER)
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


# The length of an MP3 file without the header that counts its frames: libsndfile estimates it by the first frame.


_FIRST = 1 << 16
"""Bytes in which the first frame is looked for."""
_KBITS = {  # of layer III, by the number in the header
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = (44_100, 48_000, 32_000)
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")
"""Chunks that may follow the last frame: titles and names."""


def length_without_header(file: OpenClipFile) -> int | None:
    """Counts the values for each channel of a file that has no header with its length, by reading it once.

    Returns:
        The count. None: the file has such a header, or no frame of layer III at its begin. 0: the length is not known,
        because frames have several bit rates, or because something between them is no frame.
    """
    begin = behind_tag(file)
    data = file.read(begin, _FIRST)
    place = data.find(b"\xff")
    while 0 <= place < len(data) and not _frame(data, place):
        place = data.find(b"\xff", place + 1)
    first = _frame(data, place) if place >= 0 else None
    if first is None:
        return None
    if any(data.find(name, place, place + first.size) >= 0 for name in (b"Xing", b"Info", b"VBRI")):
        return None
    data += file.read(begin + len(data), file.version.size)
    count = 0
    while (frame := _frame(data, place)) is not None:
        if frame.kbits != first.kbits:
            return 0
        place += frame.size
        count += 1
    rest = data[place:]
    return count * first.values if not rest.strip(b"\0") or rest.startswith(_TAGS) else 0


def behind_tag(file: OpenClipFile) -> int:
    """Returns the byte at which a file goes on behind an ID3 tag: 0 without one."""
    head = file.head[:10]
    if head[:3] != b"ID3" or len(head) < 10:
        return 0
    return 10 + sum(byte << 7 * place for place, byte in enumerate(reversed(head[6:])))  # seven bits in each


class _Frame(NamedTuple):
    kbits: int
    size: int
    """Its bytes."""
    values: int
    """For each channel."""


def _frame(data: bytes, place: int) -> _Frame | None:
    """Returns the frame of layer III whose header is at a place; None if there is none."""
    head = int.from_bytes(data[place : place + 4], "big")
    version, layer, number, rate = head >> 19 & 3, head >> 17 & 3, head >> 12 & 15, head >> 10 & 3
    if head >> 21 != 0x7FF or version == 1 or layer != 1 or number in (0, 15) or rate == 3:
        return None
    kbits = _KBITS[1 if version == 3 else 2][number]
    rate = _RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    values = 1152 if version == 3 else 576
    return _Frame(kbits, values * 125 * kbits // rate + (head >> 9 & 1), values)
