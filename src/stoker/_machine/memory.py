"""How much memory this process may still take: the least of what the machine and its memory cgroups have left."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

from stoker._machine.cgroups import Cgroup, own, read

_NO_LIMIT = 1 << 60
"""Version 1 writes "no limit" as a number near 2**63."""


@dataclass(frozen=True)
class Available:
    """What is left before the kernel has to kill something.

    Attributes:
        bytes: that can still be taken; file cache counts as free, shared memory as taken. Never negative.
        limit: the whole of what is limited, in bytes.
        source: who limits, for people: "memory cgroup /docker/ab (v2)", "the machine".
    """

    bytes: int
    limit: int
    source: str

    @property
    def is_of_a_cgroup(self) -> bool:
        """Whether a cgroup limits it: then nobody outside it is ended for want of it."""
        return self.source.startswith("memory cgroup")


def available() -> Available:
    """The least that is left at any level: the machine, and each memory cgroup up from this process's own.

    Costs some tens of microseconds a level, so it may be asked before each reservation. Safe in any thread and
    process. Levels that cannot be read are left out; on systems other than Linux and Windows the whole memory of the
    machine is taken as available, or `sys.maxsize` where even that is unknown. Swap does not count.
    """
    return _available("")


def proportional(pid: int) -> int:
    """Memory of a process in bytes, where what it shares is divided by those who share it; 0 if that is not known."""
    for line in (read(f"/proc/{pid}/smaps_rollup") or "").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


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
    """Limit and use. `hierarchical_memory_limit` knows of levels above that a container cannot see."""
    stat = group.read("memory.stat")
    if stat is None:
        return _NO_LIMIT, 0
    limit = _field(stat, "hierarchical_memory_limit")
    used = _number(group.read("memory.usage_in_bytes")) if limit < _NO_LIMIT else 0
    return limit, used - _field(stat, "total_inactive_file") - _field(stat, "total_active_file")


def _version_2(group: Cgroup) -> tuple[int, int]:
    """Limit and use. Beyond `memory.high` a process is slowed to a crawl, so that is a limit too."""
    limit = min(_number(group.read("memory.max"), _NO_LIMIT), _number(group.read("memory.high"), _NO_LIMIT))
    if limit >= _NO_LIMIT:
        return _NO_LIMIT, 0
    stat = group.read("memory.stat") or ""
    used = _number(group.read("memory.current"))
    return limit, used - _field(stat, "inactive_file") - _field(stat, "active_file")


def _number(text: str | None, otherwise: int = 0) -> int:
    return int(text) if text and text.strip().isdigit() else otherwise


def _field(stat: str, name: str) -> int:
    """A number of a `memory.stat`, which has one "name number" on each line; 0 where it is missing."""
    _, _, rest = f"\n{stat}".partition(f"\n{name} ")
    return _number(rest.partition("\n")[0])
