"""Anonymous shared memory, and the files of an arena. Only this module and `segments_windows` know how a platform makes
and maps it.

Linux uses `memfd_create`, other systems an unlinked temporary file: both have no name and vanish with their last
descriptor and mapping. Ranges are mapped by libc's `mmap`, because Python's `mmap` object duplicates the descriptor for
each mapping before Python 3.13. Windows uses `segments_windows`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import sys
from collections.abc import Callable
from multiprocessing import reduction
from typing import NamedTuple, Protocol, Self

from stoker._core.machine.memory import available
from stoker._core.machine.reserve import anonymous as create
from stoker._core.machine.reserve import file_limit

__all__ = ["CAN_DETACH", "PAGE", "Mapping", "Sent", "create", "read"]

PAGE = mmap.ALLOCATIONGRANULARITY
"""Mappings begin at multiples of this many bytes: a page, or 64 KiB on Windows."""

_MAP_SHARED = 0x01
_MAP_POPULATE = 0x8000 if sys.platform == "linux" else 0  # page faults one by one would cost more than the copy
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


def read(descriptor: int, offset: int, size: int) -> bytearray:
    """Returns a copy of a range of a shared file, made without mapping it."""
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        done = os.preadv(descriptor, [rest], offset)
        rest, offset = rest[done:], offset + done
    return data


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_int64,)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


if sys.platform != "win32":
    _libc = _load_libc()  # before workers are forked, because it takes each of them as long as a small batch


class Mapping:
    """A range of a shared file, mapped readable and writable for the lifetime of the object."""

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, size, protection, _MAP_SHARED | _MAP_POPULATE, descriptor, offset)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"could not map {size} bytes of shared memory: {os.strerror(number)}")
        self.address: int = address
        self.size = size
        self._unmap = _libc.munmap

    def part(self, offset: int, size: int) -> ctypes.Array[ctypes.c_char]:
        """Returns `size` bytes beginning at `offset` as a buffer. The caller keeps the mapping alive."""
        return (ctypes.c_char * size).from_address(self.address + offset)

    def detach(self) -> None:
        """Replaces the mapping by private memory of the process with the same contents, at the same address."""
        content = ctypes.string_at(self.address, self.size)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        own = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        if _libc.mmap(self.address, self.size, protection, own, -1, 0) == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"could not map {self.size} bytes of memory: {os.strerror(number)}")
        ctypes.memmove(self.address, content, self.size)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit, arrays of the user may still point to the mapping; the kernel unmaps it soon.
        if not is_finalizing() and hasattr(self, "address"):
            self._unmap(self.address, self.size)


class _Passed(Protocol):
    """A descriptor on its way to another process."""

    def detach(self) -> int: ...


class Sent:
    """A shared file among the arguments of a spawned process; unpickling gives it a descriptor of that process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[object, tuple[object]]:
        return _arrived, (reduction.DupFd(self.descriptor),)


def _arrived(passed: _Passed) -> Sent:
    descriptor = passed.detach()
    os.set_inheritable(descriptor, False)  # not for programs that a dataset runs
    return Sent(descriptor)


if hasattr(os, "O_TEMPORARY"):  # Windows
    from stoker._engine.transport.segments_windows import WindowsMapping as Mapping  # type: ignore[assignment]
    from stoker._engine.transport.segments_windows import WindowsSent as Sent  # type: ignore[assignment]
    from stoker._engine.transport.segments_windows import create, read

CAN_DETACH = hasattr(Mapping, "detach")
"""Whether a mapping can be replaced by a private copy at the same address: not on Windows."""


# The files of an arena: one, or several where `ulimit -f` keeps one from growing.


MOST = 64
"""Files at most: each costs each process a descriptor."""

_BITS = 48
"""A place in the arena is the number of its file, and below it as many bits for the place in that file."""


class FilePlace(NamedTuple):
    """A place in one of the files."""

    descriptor: int
    offset: int


class ArenaFiles(tuple[int, ...]):
    """The descriptors of an arena's files. A place in the arena is one number, which messages carry."""

    @classmethod
    def create(cls) -> Self:
        """Returns new files, not inherited by programs: as many as the memory takes under the limit on file sizes."""
        files = [create()]
        if PAGE <= (most := file_limit()) < sys.maxsize:
            number = min(MOST, math.ceil(available().bytes / (most // PAGE * PAGE)))
            with contextlib.suppress(OSError):  # no descriptor is left: fewer will do
                while len(files) < number:
                    files.append(create())
        return cls(files)

    def at(self, offset: int) -> FilePlace:
        """Returns the file of a place, and the place in it."""
        return FilePlace(self[offset >> _BITS], offset & ((1 << _BITS) - 1))

    def room_for(self, size: int, begin: int, most: int) -> int | None:
        """Returns the first place from `begin` on where `size` bytes lie in one file of at most `most` bytes."""
        number, offset = begin >> _BITS, begin & ((1 << _BITS) - 1)
        if offset + size > most:
            number, offset = number + 1, 0
        return (number << _BITS) + offset if offset + size <= most and number < len(self) else None

    def sizes(self) -> list[tuple[int, int]]:
        """Returns (the place of its begin, its size) of each file."""
        return [(number << _BITS, os.fstat(file).st_size) for number, file in enumerate(self)]

    @property
    def reserved_bytes(self) -> int:
        return sum(os.fstat(file).st_blocks * 512 for file in self)

    def close(self) -> None:
        for file in self:
            os.close(file)
