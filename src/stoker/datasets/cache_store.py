"""Records by number, in one file that any process may read and write at any time, and die meanwhile.

**The file.** A head (how far the file is taken), a slot of 16 bytes for each number (offset, length, checksum), then
the records one after the other, in the order of their writing. A hole reads as zeros, so a new file needs nothing
written, and what is not used takes no memory and no disk.

**Writing.** A writer takes a range at the end, writes the record, and last the slot. Whoever dies in between leaves a
range that no slot names. A reader believes a slot only if the checksum of what it names agrees, so nothing has to be
flushed or fenced: what was written by half, by two at once, or not yet by a machine that lost its power, is no record.

**Taking a range** is the only thing that one must do alone, for some microseconds. It is done under a lock of the
kernel's (`fcntl`), which ends with its owner, and which nobody waits for: who does not get it within some 10 ms,
because its owner is stopped or the machine is very busy, goes without. Records are never moved or removed, so there is
nothing else to agree on.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import struct
import sys
import time
import weakref
import zlib
from collections.abc import Iterator
from multiprocessing import context, reduction
from typing import Any

from stoker._machine.anonymous import anonymous
from stoker._machine.memory import available
from stoker._machine.reserve import kept_free
from stoker.errors import MemoryLimitError

if sys.platform != "win32":
    import fcntl

FORMAT_VERSION = 1

_HEAD = struct.Struct("<Q")
_SLOT = struct.Struct("<QII")
_SLOTS_AT = 16
_LARGEST = (1 << 31) - (1 << 12)
"""What a system writes at once."""
_BEYOND = 1 << 62
"""No file is so large: who says so is damaged."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
_TRIES, _PAUSE = 100, 1e-4
_STEP = 1 << 20
"""Bytes of memory that a process asks for at once; others ask meanwhile."""

_alone: dict[tuple[int, ...], object] = {}
"""Which thread is at the head of a file; by process too, so that a fork does not inherit its turn."""


class Store:
    """Records by number. Any thread and process may use it at once; forks share it.

    Args:
        descriptor: of a file that is new or of such a store; it is closed with the store.
        slots: how many numbers there are.
        limit: bytes that the file may take, slots included; None for no limit.
    """

    def __init__(self, descriptor: int, slots: int, limit: int | None) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("samples can be kept only where there are pread and fcntl: on Linux and macOS")
        self._descriptor = descriptor
        self._slots = slots
        self._limit = limit
        status = os.fstat(descriptor)
        self._file = status.st_dev, status.st_ino
        weakref.finalize(self, os.close, descriptor)

    def get(self, number: int) -> bytes | None:
        """Returns a record, or None where there is none that is whole."""
        offset, length, check = self._slot(number) if number < self._slots else (0, 0, 0)
        if not offset:
            return None
        data: bytes = os.pread(self._descriptor, length, offset)
        return data if (len(data), _checksum(number, data)) == (length, check) else None

    def put(self, number: int, data: bytes) -> None:
        """Keeps a record, if there is room for it and nobody else is at it for long."""
        length, check = len(data), _checksum(number, data)
        if length > _LARGEST or number >= self._slots:
            return
        if self._slot(number)[1:] == (length, check) and self.get(number) is not None:
            return  # somebody else was quicker
        offset = None
        try:
            offset = self._take(length)
            if offset is not None and os.pwrite(self._descriptor, data, offset) == length:
                os.pwrite(self._descriptor, _SLOT.pack(offset, length, check), _SLOTS_AT + number * _SLOT.size)
                return
        except OSError as error:
            if error.errno not in _FULL:
                raise
        if offset is not None:
            self._give_back(offset, length)

    def _slot(self, number: int) -> tuple[int, int, int]:
        slot = os.pread(self._descriptor, _SLOT.size, _SLOTS_AT + number * _SLOT.size)
        offset, length, check = _SLOT.unpack(slot.ljust(_SLOT.size, b"\0"))
        return (offset, length, check) if offset < _BEYOND and length <= _LARGEST else (0, 0, 0)

    def _take(self, size: int) -> int | None:
        """A range of the file that is nobody else's; None where there is no room, or no getting at it."""
        for _ in range(_TRIES):
            with self._turn() as alone:
                if alone:
                    return self._advance(size)
            time.sleep(_PAUSE)
        return None

    def _advance(self, size: int) -> int | None:
        end = self._end()
        if end + size > (self._limit or _BEYOND) or not self._may_take(size):
            return None
        os.pwrite(self._descriptor, _HEAD.pack(end + size), 0)
        return end

    def _give_back(self, offset: int, size: int) -> None:
        """A range that could not be written, if nobody has taken one behind it."""
        with self._turn() as alone, contextlib.suppress(OSError):
            if alone and self._end() == offset + size:
                os.pwrite(self._descriptor, _HEAD.pack(offset), 0)

    def _end(self) -> int:
        head = os.pread(self._descriptor, _HEAD.size, 0).ljust(_HEAD.size, b"\0")
        end: int = max(_HEAD.unpack(head)[0], _SLOTS_AT + self._slots * _SLOT.size)
        return end

    def _may_take(self, size: int) -> bool:
        """Whether there is room where the file is kept."""
        return True

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Whether this thread of this process is alone at the head of the file."""
        me, here = object(), (os.getpid(), *self._file)
        if _alone.setdefault(here, me) is not me:  # the kernel's lock is one process's, not one store's
            yield False
            return
        try:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _HEAD.size)
            except (BlockingIOError, PermissionError):
                yield False
                return
            try:
                yield True
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, _HEAD.size)
        finally:
            del _alone[here]


class Memory(Store):
    """A store in anonymous memory, shared by all processes that are forked or born from its own.

    The memory is taken as it is written, and only while the machine and the container have some to spare.

    Args:
        slots: how many numbers there are.
        limit: bytes.
        descriptor: of another process's store, whose memory this one shares.

    Raises:
        ValueError: the slots alone take more than `limit`.
        MemoryLimitError: the machine or the container has not so much left.
    """

    def __init__(self, slots: int, limit: int, descriptor: int | None = None) -> None:
        if descriptor is None:
            _check_limit("memory", limit, slots)
            _check_memory(limit)
            descriptor = anonymous()
        super().__init__(descriptor, slots, limit)
        self._granted = 0  # bytes that were there when this process asked last, and that it has not taken since

    def __reduce__(self) -> Any:
        """Shared with a process that is being started; elsewhere, a copy is an empty one of the same size."""
        if context.get_spawning_popen() is None:
            return Memory, (self._slots, self._limit)
        return _received, (self._slots, self._limit, reduction.DupFd(self._descriptor))

    def _may_take(self, size: int) -> bool:
        if size > self._granted:
            if size + _STEP > _spare():
                return False
            self._granted = size + _STEP
        self._granted -= size
        return True


class Folder(Store):
    """A store in a file that outlives the process, and that other jobs of the machine may share.

    Args:
        folder: is made if it is not there.
        identity: what the records follow from: another identity is another file.
        slots: how many numbers there are.
        limit: bytes, or None.

    Raises:
        ValueError: the slots alone take more than `limit`.
        OSError: the file cannot be made or written.
    """

    def __init__(self, folder: str, identity: object, slots: int, limit: int | None) -> None:
        if limit is not None:
            _check_limit("disk", limit, slots)
        folder = os.path.abspath(folder)
        os.makedirs(folder, exist_ok=True)
        name = hashlib.sha256(repr((FORMAT_VERSION, identity, slots)).encode()).hexdigest()[:32]
        path = os.path.join(folder, f"{name}.samples")
        super().__init__(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), slots, limit)
        self._arguments = (folder, identity, slots, limit)

    def __reduce__(self) -> Any:
        return Folder, self._arguments


def _checksum(number: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_SLOT.pack(number, len(data) & 0xFFFFFFFF, 0)))


def _received(slots: int, limit: int, descriptor: Any) -> Memory:
    return Memory(slots, limit, descriptor.detach())


def _check_limit(name: str, limit: int, slots: int) -> None:
    least = _SLOTS_AT + slots * _SLOT.size
    if limit <= least:
        raise ValueError(f"{name}={limit} bytes hold no sample: the index alone takes {least} bytes")


def _check_memory(limit: int) -> None:
    memory = available()
    if limit > _spare():
        raise MemoryLimitError(
            f"a cache of {limit} bytes does not fit: {memory.bytes} are available of {memory.limit} (limited by "
            f"{memory.source}), and {kept_free(memory.limit)} are kept free. Pass memory={_spare()} or less."
        )


def _spare() -> int:
    memory = available()
    return max(0, memory.bytes - kept_free(memory.limit))
