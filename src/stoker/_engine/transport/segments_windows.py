"""Shared memory on Windows, imported by `segments`.

Uses a temporary file that the system deletes with its last handle and keeps in memory if it can. Ranges are mapped by
Python's `mmap`: each mapping has its own handle on the file, so a kept batch outlives the arena.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import context


def create() -> int:
    """Returns the descriptor of a new, empty shared file; child processes do not inherit it."""
    path = os.path.join(tempfile.gettempdir(), f"stoker-{secrets.token_hex(8)}")
    kind = os.O_TEMPORARY | os.O_SHORT_LIVED | os.O_NOINHERIT | os.O_BINARY  # type: ignore[attr-defined]
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | kind, 0o600)


def read(descriptor: int, offset: int, size: int) -> bytearray:
    """Returns a copy of a range of a shared file, made without mapping it."""
    data = bytearray(size)
    rest = memoryview(data)
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        file.seek(offset)
        while rest:
            rest = rest[file.readinto(rest) :]
    return data


class WindowsMapping:
    """A range of a shared file, mapped readable and writable for the lifetime of the object."""

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size, offset=offset)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size = size

    def part(self, offset: int, size: int) -> ctypes.Array[ctypes.c_char]:
        """Returns `size` bytes beginning at `offset` as a buffer. The caller keeps the mapping alive."""
        return (ctypes.c_char * size).from_address(self.address + offset)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit, arrays of the user may still point to the mapping; the system unmaps it soon.
        if is_finalizing() and hasattr(self, "address"):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))


class WindowsSent:
    """A shared file among the arguments of a spawned process; unpickling gives it a descriptor of that process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[object, tuple[object]]:
        import msvcrt

        popen: object = context.get_spawning_popen()
        return _arrived, (popen.duplicate_for_child(msvcrt.get_osfhandle(self.descriptor)),)  # type: ignore[attr-defined]


def _arrived(handle: int) -> WindowsSent:
    import msvcrt

    return WindowsSent(msvcrt.open_osfhandle(handle, os.O_RDWR | os.O_NOINHERIT))  # type: ignore[attr-defined]
