"""The file of a cached block: a header with checksums, then the data; and the file that counts the bytes of a cache.

The header is a magic, the block's name, the data's length, a CRC-32 of each page of 16 KiB, and a CRC-32 of all that.
So a read verifies only the pages that it needs. Little-endian.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

# How many bytes the files of a block cache take: a number in a file, which processes change one at a time.


if sys.platform != "win32":
    import fcntl

_FORMAT = struct.Struct("<16sQd")
_CHECK = 4
_TRIES, _PAUSE = 1000, 1e-3


class BlockAccount:
    """The contents of the file, while this thread of this process alone may change them.

    Args:
        count: returns the bytes; called if the file does not know: it is new or damaged, or the machine was started
            anew since it was written, and files may have been lost.

    Attributes:
        told: when the user was last told of a failure, in seconds since 1970.
    """

    def __init__(self, descriptor: int, count: Callable[[], int]) -> None:
        self._descriptor = descriptor
        data = os.pread(descriptor, _FORMAT.size + _CHECK, 0)
        boot, used, self.told = b"", 0, 0.0
        if len(data) == _FORMAT.size + _CHECK and _checksum(data[:-_CHECK]) == data[-_CHECK:]:
            boot, used, self.told = _FORMAT.unpack(data[:-_CHECK])
        self.used: int = used if boot == _boot() else count()

    def write(self) -> None:
        """Writes the attributes to the file."""
        data = _FORMAT.pack(_boot(), max(0, self.used), self.told)
        os.pwrite(self._descriptor, data + _checksum(data), 0)


@contextlib.contextmanager
def account(path: str, count: Callable[[], int]) -> Iterator[BlockAccount | None]:
    """Yields the account in a file, which is created if needed, and writes it at the end of the context.

    Yields None if the account is not free within about a second. The lock belongs to the open file, so it excludes
    threads and processes alike, and ends with its owner.

    Raises:
        OSError: the file cannot be opened or written, or its file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _is_free(descriptor):
            yield None
            return
        try:
            own = BlockAccount(descriptor, count)
            try:
                yield own
            finally:
                own.write()
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a forked child may have inherited the file
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    """Locks the file, or returns False."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_PAUSE)
    return False


def _checksum(data: bytes) -> bytes:
    return crc32(data).to_bytes(_CHECK, "little")


@functools.cache
def _boot() -> bytes:
    """Returns a number that changes when the machine is started; always the same where the system has none."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


PAGE = 1 << 14
"""Bytes that share a checksum."""

_MAGIC = b"stoker block 1\n\0"
_HEAD = struct.Struct("<16s16sQ")
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
