"""The size of a file by its own header: libraries read a truncated file of these formats as a shorter one."""

from __future__ import annotations

from typing import Literal

from stoker.errors import MediaFileError
from stoker.sources.clips.clip_file import OpenClipFile

_UNKNOWN_RIFF = 0x7FFF_0000
"""The least length in a RIFF header of programs that do not know it yet, as those that write into a pipe."""
_EBML, _SEGMENT = bytes.fromhex("1a45dfa3"), bytes.fromhex("18538067")


def check_is_whole(file: OpenClipFile) -> None:
    """Compares the size of a file with what its header promises, in WAV, AIFF, AVI, Matroska and WebM files.

    Raises:
        MediaFileError: the file is smaller.
        OSError: it cannot be read.
    """
    size, promised = file.version.size, promised_size(file.head)
    if promised is not None and size < promised and not _data_are_whole(file):
        raise MediaFileError(f"{file.name} is truncated: it has {size:,} bytes, and its header promises {promised:,}")


def _data_are_whole(file: OpenClipFile) -> bool:
    """Returns whether all sound or pictures of a WAV, AIFF or AVI file are there: programs miscount the whole file."""
    order: Literal["little", "big"] = "little" if file.head[:4] == b"RIFF" else "big"
    size, place = file.version.size, 12
    while place + 8 <= size and file.head[:4] in (b"RIFF", b"FORM"):
        chunk = file.read(place, 12)
        end = place + 8 + int.from_bytes(chunk[4:8], order)
        if chunk[:4] in (b"data", b"SSND") or chunk[8:] == b"movi":
            return end <= size
        place = end + end % 2
    return False


def promised_size(head: bytes) -> int | None:
    """Returns the size that the header of a file promises, in bytes; None if it promises none.

    Args:
        head: the first bytes of the file.
    """
    if head[:4] == b"RIFF":
        length = int.from_bytes(head[4:8], "little")
        return 7 + length if length < _UNKNOWN_RIFF else None  # 8, and some programs leave out the last byte of padding
    if head[:4] == b"FORM":  # AIFF
        return 7 + int.from_bytes(head[4:8], "big")
    if head[:4] == _EBML:
        length, place = _number(head, 4)
        place += length
        if head[place : place + 4] == _SEGMENT:
            length, begin = _number(head, place + 4)
            return begin + length if length != (1 << 7 * (begin - place - 4)) - 1 else None  # all ones: unknown
    return None


def _number(head: bytes, place: int) -> tuple[int, int]:
    """Returns a number of variable length at a place of a Matroska file, and the place behind it."""
    width = 9 - head[place].bit_length() if place < len(head) else 1
    number = int.from_bytes(head[place : place + width], "big")
    return number & ((1 << 7 * width) - 1), place + width
