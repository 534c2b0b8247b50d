"""How much of the CPUs is in use by all programs of the machine (Linux)."""

from __future__ import annotations

import os
from typing import NamedTuple

from stoker._core.machine.cgroups import read

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class CpuUse(NamedTuple):
    """Seconds since the machine's start that some CPUs were in use, and idle, summed over them."""

    used: float
    idle: float


UNKNOWN = CpuUse(0.0, 0.0)
"""The system does not tell."""


def cpu_use(root: str = "") -> CpuUse:
    """Returns the use of the CPUs of this process's affinity, by any program; `UNKNOWN` if the system does not tell.

    Waiting for a disk counts as idle, and so do programs of lower priority (`nice`), unless this process has such
    a priority itself. Time that a hypervisor took counts as used.

    Args:
        root: a prefix of `/proc`.
    """
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else None
    is_nice = hasattr(os, "getpriority") and os.getpriority(os.PRIO_PROCESS, 0) > 0
    used = idle = 0
    for line in (read(f"{root}/proc/stat") or "").splitlines():
        name, *fields = line.split()
        if not name.startswith("cpu"):
            break
        if name == "cpu" or len(fields) < 4 or (ours is not None and name not in ours):
            continue
        ticks = [int(field) for field in fields[:8]]  # those of guests, which follow, are part of the first
        waiting = sum(ticks[3:5]) + (0 if is_nice else ticks[1])
        used, idle = used + sum(ticks) - waiting, idle + waiting
    return CpuUse(used / _TICK, idle / _TICK)
