"""What can befall a process, as functions that it calls: the columns of the matrix."""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

Strike = Callable[[], Any]

MUCH = 64 << 20
"""Bytes that no cell's cgroup has."""


class UnpicklableError(Exception):
    """Cannot leave the process in which it was raised."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("it holds a lock")


def raises() -> NoReturn:
    raise OSError("image file is truncated")


def raises_unpicklable() -> NoReturn:
    raise UnpicklableError("image file is truncated")


def exhausts_its_limit() -> None:
    """RLIMIT_AS at what the process has. Lifted again behind, as if the memory had come back."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + (1 << 20), before[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def exhausts_its_cgroup(group: str) -> None:
    """The kernel kills this process, which is alone in its cgroup."""
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    b"x" * MUCH


def strike(fault: str, group: str = "") -> None:
    """Lets this befall the calling process."""
    if fault == "memory cgroup":
        exhausts_its_cgroup(group)
    _STRIKES[fault]()


def strike_in_c(fault: str, group: str = "") -> None:
    """The same, from within a function in C."""
    within = _IN_C.get(fault)
    if within is None:
        sorted([None], key=lambda _: strike(fault, group))
    else:
        within()


def loops() -> None:
    """In C, and without ever giving the interpreter's lock away."""
    sum(itertools.repeat(0))


_LIBC = ctypes.CDLL(None)

_STRIKES: dict[str, Strike] = {
    "exception": raises,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(3),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV in C": lambda: ctypes.string_at(0),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "busy loop": loops,
    "rlimit": exhausts_its_limit,
    "unpicklable exception": raises_unpicklable,
}

_IN_C: dict[str, Strike] = {
    "exception": lambda: struct.unpack("<d", b"short"),
    "sys.exit": lambda: _LIBC.exit(3),
    "os._exit": lambda: _LIBC._exit(3),
    "SIGKILL": lambda: _LIBC.kill(os.getpid(), 9),
    "SIGSTOP": lambda: _LIBC.kill(os.getpid(), int(signal.SIGSTOP)),
}
