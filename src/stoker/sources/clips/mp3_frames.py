"""The length of an MP3 file without the header that counts its frames: libsndfile estimates it by the first frame."""

from __future__ import annotations

from typing import NamedTuple

from stoker.sources.clips.clip_file import OpenClipFile

_FIRST = 1 << 16
"""Bytes in which the first frame is looked for."""
_KBITS = {  # of layer III, by the number in the header
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = (44_100, 48_000, 32_000)
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")
"""What may follow the last frame: titles and names."""


def length_without_header(file: OpenClipFile) -> int | None:
    """Counts the values for each channel of a file that has no header with its length, by reading it once.

    Returns:
        The count. None: the file has such a header, or no frame of layer III at its begin. 0: the length is not known,
        because frames have several bit rates, or because something between them is no frame.

    Raises:
        OSError: it cannot be read.
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
    """Returns the byte at which a file goes on behind an ID3 tag: 0 without one.

    Raises:
        OSError: it cannot be read.
    """
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
