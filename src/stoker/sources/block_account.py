"""How many bytes the files of a block cache take: a number in a file, which processes change one at a time."""

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

if sys.platform != "win32":
    import fcntl

_FORMAT = struct.Struct("<16sQd")
_CHECK = 4
_TRIES, _PAUSE = 1000, 1e-3


class BlockAccount:
    """The contents of the file, while this thread of this process alone may change them.

    Args:
        descriptor: of the file.
        count: returns the bytes; called if the file does not know: it is new or damaged, or the machine was started
            anew since it was written, and files may have been lost.

    Attributes:
        used: bytes.
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
