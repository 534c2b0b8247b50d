"""Records by number, in one file that any process may read and write at any time and may be killed while doing so.

**The file.** A head (the end of the used part), a slot of 16 bytes for each number (offset, length, checksum), then the
records in the order of their writing. A hole reads as zeros, so a new file needs no initialization, and unused parts
take no memory and no disk.

**Writing.** A writer reserves a range at the end, writes the record, then the slot. A writer that is killed in between
leaves a range that no slot refers to. A reader trusts a slot only if the checksum of its record agrees, so no flush or
fence is needed: a record that was half written, written by two processes at once, or lost in a power failure counts as
missing.

**Reserving a range** is the only step that needs exclusion, for a few microseconds. It uses a lock of the kernel
(`fcntl`), which ends with its owner. No process waits for it without bound: one that does not get the lock within about
10 ms, because the owner is stopped or the machine is very busy, does not write the record. Records are never moved or
removed, so nothing else needs coordination.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import struct
import sys
import time
import weakref
import zlib
from collections.abc import Iterator
from multiprocessing import context, reduction
from typing import Any

from stoker._core.machine.memory import available
from stoker._core.machine.reserve import anonymous, kept_free
from stoker.datasets.sample_record import is_pickle
from stoker.errors import FolderOwnerError, MemoryLimitError

if sys.platform != "win32":
    import fcntl
    import pwd

FORMAT_VERSION = 2

_HEAD = struct.Struct("<Q")
_SLOT = struct.Struct("<QII")
_SLOTS_AT = 16
_LARGEST = (1 << 31) - (1 << 12)
"""Bytes that the system writes in one call, at most."""
_BEYOND = 1 << 62
"""Bytes, more than any file has; a larger offset is damage."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
_TRIES, _PAUSE = 100, 1e-4
_STEP = 1 << 20
"""Bytes of memory that a process reserves in addition to a record, so that it rarely reads the limits again."""

_alone: dict[tuple[int, ...], object] = {}
"""The thread that holds the head of each file. The process is part of the key, so that a fork does not inherit it."""


class Store:
    """Records by number. Any thread and process may use it at the same time; forks share it.

    Args:
        descriptor: a file that is new or holds such a store. It is closed with the store.
        slots: the number of records, at most.
        limit: the size of the file in bytes, slots included; None for no limit.
    """

    def __init__(self, descriptor: int, slots: int, limit: int | None) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("samples can be kept only on systems with pread and fcntl: Linux and macOS")
        self._descriptor = descriptor
        self._slots = slots
        self._limit = limit
        status = os.fstat(descriptor)
        self._file = status.st_dev, status.st_ino
        weakref.finalize(self, os.close, descriptor)

    def get(self, number: int) -> bytes | None:
        """Returns a record, or None if it is missing or incomplete."""
        offset, length, check = self._slot(number) if number < self._slots else (0, 0, 0)
        if not offset:
            return None
        data: bytes = os.pread(self._descriptor, length, offset)
        return data if (len(data), _checksum(number, data)) == (length, check) else None

    def put(self, number: int, data: bytes) -> None:
        """Keeps a record, if it fits and the lock is free within about 10 ms."""
        length, check = len(data), _checksum(number, data)
        if length > _LARGEST or number >= self._slots:
            return
        if self._slot(number)[1:] == (length, check) and self.get(number) is not None:
            return  # another process has written it
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
        """Returns the offset of a range reserved for this caller; None if there is no room or the lock is not free."""
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
        """Releases a range that could not be written, unless another range follows it."""
        with self._turn() as alone, contextlib.suppress(OSError):
            if alone and self._end() == offset + size:
                os.pwrite(self._descriptor, _HEAD.pack(offset), 0)

    def _end(self) -> int:
        head = os.pread(self._descriptor, _HEAD.size, 0).ljust(_HEAD.size, b"\0")
        end: int = max(_HEAD.unpack(head)[0], _SLOTS_AT + self._slots * _SLOT.size)
        return end

    def _may_take(self, size: int) -> bool:
        """Returns whether the place of the file has room for `size` more bytes."""
        return True

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Yields whether this thread of this process holds the head of the file."""
        me, here = object(), (os.getpid(), *self._file)
        if _alone.setdefault(here, me) is not me:  # the kernel's lock belongs to the process, not to the store
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
    """A store in anonymous memory, shared by all processes that this process forks or starts.

    Memory is used as records are written, and only while the machine and the container have some to spare.

    Args:
        slots: the number of records, at most.
        limit: the size in bytes.
        descriptor: the store of another process, whose memory this one shares.

    Raises:
        ValueError: the slots alone take more than `limit`.
        MemoryLimitError: the machine or the container has less memory available than `limit`.
    """

    def __init__(self, slots: int, limit: int, descriptor: int | None = None) -> None:
        if descriptor is None:
            _check_limit("memory", limit, slots)
            _check_memory(limit)
            descriptor = anonymous()
        super().__init__(descriptor, slots, limit)
        self._granted = 0  # bytes that were available when this process last asked, less those used since

    def __reduce__(self) -> Any:
        """Returns a shared store for a process that is being started, and an empty one of the same size for any other
        copy.
        """
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


class FileStore(Store):
    """A store in a file that outlives the process and that other jobs on the machine may share.

    Where another user owns the file, it may be one that can only be read: then no record is kept.

    Args:
        folder: created if it does not exist.
        identity: the value that determines the records; another identity uses another file.
        slots: the number of records, at most.
        limit: the size of the file in bytes, or None.

    Raises:
        ValueError: the slots alone take more than `limit`.
    """

    def __init__(self, folder: str, identity: object, slots: int, limit: int | None) -> None:
        if limit is not None:
            _check_limit("disk", limit, slots)
        self._folder = folder = os.path.abspath(folder)
        self._name = hashlib.sha256(repr((FORMAT_VERSION, identity, slots)).encode()).hexdigest()[:32] + ".samples"
        self._arguments = (folder, identity, slots, limit)
        path, flags = os.path.join(folder, self._name), os.O_CLOEXEC | os.O_NOFOLLOW
        self._may_write = True
        try:
            os.makedirs(folder, exist_ok=True)
            descriptor = _opened(path, flags | os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if not os.path.exists(path):
                raise OSError(
                    error.errno,
                    f"{error.strerror}: CacheDataset cannot write to its folder, and has left nothing there",
                    folder,
                ) from None
            descriptor, self._may_write = _opened(path, flags | os.O_RDONLY), False
        super().__init__(descriptor, slots, limit)

    def put(self, number: int, data: bytes) -> None:
        """Keeps a record, if it fits, the lock is free within about 10 ms, and the file can be written."""
        if self._may_write:
            super().put(number, data)

    def __reduce__(self) -> Any:
        return type(self), self._arguments


class Folder(FileStore):
    """A store of the records of samples, whose folder others may write to.

    Records without pickle lie in a file in the folder. Pickles lie in a folder `pickles` in it, of mode 700, and are
    read and written only where both folders and the file belong to this user or to root.

    Args: as of `FileStore`.
    """

    _pickles: Store | None = None

    def get(self, number: int) -> bytes | None:
        """Returns a record, or None if it is missing or incomplete, or a pickle that another user may have written."""
        data = super().get(number)
        if data is not None and not is_pickle(data):
            return data
        with contextlib.suppress(OSError):
            self._pickles = self._pickles or self._private(create=False)
        return None if self._pickles is None else self._pickles.get(number)

    def put(self, number: int, data: bytes) -> None:
        """Keeps a record, as `FileStore` does.

        Raises:
            FolderOwnerError: the record is a pickle, and another user owns the folder, or may write to the file.
        """
        if not is_pickle(data):
            super().put(number, data)
            return
        self._pickles = self._pickles or self._private(create=True)
        self._pickles.put(number, data)

    def _private(self, *, create: bool) -> Store:
        """Returns the store of pickles."""
        _check_owner(self._folder, os.stat(self._folder))
        path = os.path.join(self._folder, "pickles")
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(folder)
            _check_owner(path, status)
            if status.st_mode & 0o077:
                os.fchmod(folder, 0o700)
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
            descriptor = _opened(os.path.join(path, self._name), flags, 0o600, folder)
        finally:
            os.close(folder)
        try:
            _check_owner(os.path.join(path, self._name), os.fstat(descriptor))
        except FolderOwnerError:
            os.close(descriptor)
            raise
        return Store(descriptor, self._slots, self._limit)


def _opened(path: str, flags: int, mode: int = 0o666, folder: int | None = None) -> int:
    """Opens a file, and nothing else that may lie in its place: opening a FIFO would wait for another process.

    Args:
        folder: the descriptor of its folder, if that is open.
    """
    descriptor = os.open(path if folder is None else os.path.basename(path), flags | os.O_NONBLOCK, mode, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "CacheDataset found no regular file in the place of its records. Delete it", path)
    return descriptor


def _check_owner(path: str, status: os.stat_result) -> None:
    """Checks that no other user may have written a file, or may exchange what is in a folder."""
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISDIR(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0) or shared:
        raise FolderOwnerError(
            f"samples of this dataset can be cached only as pickles, and {path} "
            f"{'can be written by other users' if shared else f'belongs to {_user(status.st_uid)}'}: reading a pickle "
            "executes its content. Give CacheDataset a folder of your own, or make samples of arrays, numbers, texts, "
            "bytes, tuples, lists and dicts, which need no pickle."
        )


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return f"user {number}"


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
