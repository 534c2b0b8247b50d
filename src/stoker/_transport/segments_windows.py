"""Shared memory on Windows: the other half of `segments`, which chooses it.

A temporary file stands in that the system deletes with its last handle, and keeps in memory where it can. Ranges are
mapped by Python's `mmap`: each mapping has a handle of its own on the file, so a batch that is kept outlives the arena.
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
from typing import Any


def create() -> int:
    """A new, empty shared file; returns its descriptor, which no other program inherits."""
    path = os.path.join(tempfile.gettempdir(), f"stoker-{secrets.token_hex(8)}")
    kind = os.O_TEMPORARY | os.O_SHORT_LIVED | os.O_NOINHERIT | os.O_BINARY  # type: ignore[attr-defined]
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | kind, 0o600)


def read(descriptor: int, offset: int, size: int) -> bytearray:
    """A copy of a range of a shared file, made without mapping it."""
    data = bytearray(size)
    rest = memoryview(data)
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        file.seek(offset)
        while rest:
            rest = rest[file.readinto(rest) :]
    return data


class Mapping:
    """A range of a shared file in this process's memory, readable and writable, until the object is gone."""

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size, offset=offset)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size = size

    def part(self, offset: int, size: int) -> ctypes.Array[ctypes.c_char]:
        """The bytes from `offset` on, as a buffer. It does not keep the mapping: the caller does."""
        return (ctypes.c_char * size).from_address(self.address + offset)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end arrays of the user may still look here; the system unmaps it all soon.
        if is_finalizing() and hasattr(self, "address"):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))


class Sent:
    """A shared file among the arguments of a process that multiprocessing spawns; there `descriptor` is its own."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> Any:
        import msvcrt

        popen: Any = context.get_spawning_popen()
        return _arrived, (popen.duplicate_for_child(msvcrt.get_osfhandle(self.descriptor)),)  # type: ignore[attr-defined]


def _arrived(handle: int) -> Sent:
    import msvcrt

    return Sent(msvcrt.open_osfhandle(handle, os.O_RDWR | os.O_NOINHERIT))  # type: ignore[attr-defined]
