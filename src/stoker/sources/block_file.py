"""The file of a cached block: a header with checksums, then the data.

The header is a magic, the block's name, the data's length, a CRC-32 of each page of 16 KiB, and a CRC-32 of all that.
So a read verifies only the pages that it needs. Little-endian.
"""

from __future__ import annotations

import os
import struct
from zlib import crc32

PAGE = 1 << 14
"""Bytes that share a checksum."""

_MAGIC = b"stoker block 1\n\0"
_HEAD = struct.Struct("<16s16sQ")
_CHECK = 4
_UNIT = 4096


def size_of(length: int) -> int:
    """Returns the bytes of the file of a block of `length` bytes."""
    return _data_at(length) + length


def on_disk(size: int) -> int:
    """Returns the bytes that a file of `size` bytes occupies, in whole units of 4,096."""
    return -(-size // _UNIT) * _UNIT


def _data_at(length: int) -> int:
    return _HEAD.size + _CHECK * (-(-length // PAGE) + 1)


def _header(name: str, length: int, checks: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, bytes.fromhex(name), length) + checks
    return head + crc32(head).to_bytes(_CHECK, "little")


def write(descriptor: int, name: str, data: memoryview) -> None:
    """Writes the whole block to an empty file, or one of its size.

    Raises:
        OSError: the disk is full, or the file cannot be written.
    """
    pages = [crc32(data[begin : begin + PAGE]) for begin in range(0, len(data), PAGE)]
    header = _header(name, len(data), b"".join(check.to_bytes(_CHECK, "little") for check in pages))
    _write_all(descriptor, memoryview(header), 0)
    _write_all(descriptor, data, len(header))


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done


def read(descriptor: int, name: str, length: int, begin: int, end: int) -> bytes | None:
    """Returns bytes `begin` to `end` of a block, verified; None if it is damaged, or another block.

    Raises:
        OSError: the file cannot be read.
    """
    at = _data_at(length)
    header = os.pread(descriptor, at, 0)
    checks = header[_HEAD.size : -_CHECK]
    if header != _header(name, length, checks):
        return None
    first, last = begin // PAGE, -(-end // PAGE)
    stop = min(last * PAGE, length)
    data = os.pread(descriptor, stop - first * PAGE, at + first * PAGE)
    if len(data) != stop - first * PAGE:
        return None
    view = memoryview(data)
    for place, page in enumerate(range(first, last)):
        check = int.from_bytes(checks[page * _CHECK : (page + 1) * _CHECK], "little")
        if crc32(view[place * PAGE : (place + 1) * PAGE]) != check:
            return None
    return data[begin - first * PAGE : end - first * PAGE]
