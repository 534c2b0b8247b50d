"""Anonymous shared memory: only this module and `segments_windows` know how a platform makes and maps it.

Linux uses `memfd_create`, other systems an unlinked temporary file: both have no name and vanish with their last
descriptor and mapping. Ranges are mapped by libc's `mmap`, because Python's `mmap` object duplicates the descriptor for
each mapping before Python 3.13. Windows uses `segments_windows`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from multiprocessing import reduction
from typing import Protocol

from stoker._core.machine.anonymous import anonymous as create

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
        held = ctypes.string_at(self.address, self.size)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        own = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        if _libc.mmap(self.address, self.size, protection, own, -1, 0) == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"could not map {self.size} bytes of memory: {os.strerror(number)}")
        ctypes.memmove(self.address, held, self.size)

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
