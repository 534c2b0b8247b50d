"""The memory that this process may still take: the least left by the machine and its memory cgroups."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from typing import NamedTuple

from stoker._core.machine.cgroups import Cgroup, own, read

_NO_LIMIT = 1 << 60
"""Limits from here on mean "no limit", in bytes: version 1 writes a number near 2**63."""


@dataclass(frozen=True)
class Available:
    """The memory that is left before the kernel kills a process.

    Attributes:
        bytes: still available; file cache counts as free, shared memory as taken. Never negative.
        limit: the limit itself, in bytes.
        source: the limit in words: "memory cgroup /docker/ab (v2)", "the machine".
    """

    bytes: int
    limit: int
    source: str

    @property
    def is_of_a_cgroup(self) -> bool:
        """Whether a cgroup sets the limit: the kernel then kills only processes of that cgroup."""
        return self.source.startswith("memory cgroup")


def available() -> Available:
    """Returns the least memory left at any level: the machine, and each memory cgroup of this process.

    Takes some tens of microseconds for each level, cheap enough before each reservation. Safe in any thread and
    process. Unreadable levels are ignored. On systems other than Linux and Windows all memory of the machine counts as
    available, or `sys.maxsize` if that is unknown. Swap does not count.
    """
    return _available("")


def proportional(pid: int) -> int:
    """Returns the proportional memory of a process in bytes (shared pages divided by their users); 0 if unknown."""
    for line in (read(f"/proc/{pid}/smaps_rollup") or "").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def shm_in_words() -> str:
    """A sentence on the room in `/dev/shm`, where torch's shared tensors lie; nothing on platforms without it."""
    try:
        there = os.statvfs("/dev/shm")
    except (AttributeError, OSError):
        return ""
    free, size = there.f_bavail * there.f_frsize / 2**20, there.f_blocks * there.f_frsize / 2**20
    return (
        f"torch's shared tensors lie in /dev/shm, which has {free:,.1f} MiB free of {size:,.1f} MiB: use smaller ones, "
        "or make it larger (docker run --shm-size=8g; Kubernetes: an emptyDir of medium Memory)."
    )


class MemoryShares(NamedTuple):
    """The memory of a process, in bytes; 0 where it is unknown.

    Attributes:
        proportional: all of it, shared pages divided by their users.
        own: anonymous memory, shared pages divided by their users, what is swapped out included. Files and shared
            memory, such as batches, are left out. Where the kernel does not tell it (before Linux 5.4), memory that
            only this process has and has written.
        anonymous: anonymous memory, shared pages in full. A page that is copied because it is written counts before and
            after.
    """

    proportional: int
    own: int
    anonymous: int


def shares(pid: int) -> MemoryShares:
    """Returns the memory of a process, by one read of `/proc/PID/smaps_rollup`."""
    known: dict[str, int] = {}
    for line in (read(f"/proc/{pid}/smaps_rollup") or "").splitlines():
        name, _, value = line.partition(":")
        if value.endswith("kB"):
            known[name] = int(value.split()[0]) << 10
    own = known.get("Pss_Anon", known.get("Private_Dirty", 0)) + known.get("SwapPss", 0)
    return MemoryShares(known.get("Pss", 0), own, known.get("Anonymous", 0) + known.get("Swap", 0))


def _available(root: str) -> Available:
    least = _machine(root)
    for group in own("memory", root):
        limit, used = _version_1(group) if group.version == 1 else _version_2(group)
        if limit < _NO_LIMIT and limit - used < least.bytes:
            least = Available(max(0, limit - used), limit, f"memory {group}")
    return least


def _machine(root: str) -> Available:
    meminfo = read(f"{root}/proc/meminfo")
    if meminfo is not None and "MemAvailable:" in meminfo:
        words = meminfo.split()
        free, total = (int(words[words.index(key) + 1]) << 10 for key in ("MemAvailable:", "MemTotal:"))
        return Available(free, total, "the machine")
    if hasattr(ctypes, "windll"):
        status = (ctypes.c_uint64 * 8)(64)  # Windows' MEMORYSTATUSEX, which begins with its own size
        ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
        return Available(status[2], status[1], "the machine")
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return Available(sys.maxsize, sys.maxsize, "unknown")
    return Available(total, total, "the machine")


def _version_1(group: Cgroup) -> tuple[int, int]:
    """Returns limit and use. `hierarchical_memory_limit` includes levels that a container cannot see."""
    stat = group.read("memory.stat")
    if stat is None:
        return _NO_LIMIT, 0
    limit = _field(stat, "hierarchical_memory_limit")
    used = _number(group.read("memory.usage_in_bytes")) if limit < _NO_LIMIT else 0
    return limit, used - _field(stat, "total_inactive_file") - _field(stat, "total_active_file")


def _version_2(group: Cgroup) -> tuple[int, int]:
    """Returns limit and use. `memory.high` counts as a limit, since the kernel throttles processes beyond it."""
    limit = min(_number(group.read("memory.max"), _NO_LIMIT), _number(group.read("memory.high"), _NO_LIMIT))
    if limit >= _NO_LIMIT:
        return _NO_LIMIT, 0
    stat = group.read("memory.stat") or ""
    used = _number(group.read("memory.current"))
    return limit, used - _field(stat, "inactive_file") - _field(stat, "active_file")


def _number(text: str | None, otherwise: int = 0) -> int:
    return int(text) if text and text.strip().isdigit() else otherwise


def _field(stat: str, name: str) -> int:
    """Returns a number of a `memory.stat`, which has "name number" on each line; 0 if it is missing."""
    _, _, rest = f"\n{stat}".partition(f"\n{name} ")
    return _number(rest.partition("\n")[0])
