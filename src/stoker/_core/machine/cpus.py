"""The CPUs that this process may use: their number, the limit that sets it, their division among ranks and loaders, and
their use.
"""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass
from typing import NamedTuple

from stoker._core.machine.cgroups import Cgroup, own, read


@dataclass(frozen=True)
class Cpus:
    """The CPUs of this process.

    Attributes:
        number: processes that can compute at once, at least 1. A quota is rounded up: with 1.5 CPUs, two processes
            share the time, whereas one would leave a third unused.
        quota: CPUs of time that the cgroups grant; `math.inf` without a limit.
        source: the limit in words: "the machine", "CPU affinity", "quota of 1.5 CPUs of cgroup /docker/ab (v2)".
    """

    number: int
    quota: float
    source: str


def cpus() -> Cpus:
    """Returns the lowest limit of the machine, the process's affinity and its CPU cgroups at every level.

    Safe in any thread and process; reads the limits at each call. Systems without affinity or cgroups have no such
    limit.
    """
    return _cpus("")


def _cpus(root: str) -> Cpus:
    number, source = os.cpu_count() or 1, "the machine"
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < number:
        number, source = len(os.sched_getaffinity(0)), "CPU affinity"
    groups = own("cpu", root)
    quota, innermost = min(((_quota(group), -level) for level, group in enumerate(groups)), default=(math.inf, 0))
    if quota < number:
        number, source = max(1, math.ceil(quota)), f"quota of {quota:g} CPUs of {groups[-innermost]}"
    return Cpus(number, quota, source)


def _quota(group: Cgroup) -> float:
    if group.version == 1:
        quota, period = group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")
    else:
        quota, _, period = (group.read("cpu.max") or "max").partition(" ")
    try:
        granted = int(quota or -1) / int(period or 100_000)
    except ValueError:  # "max"
        return math.inf
    return granted if granted > 0 else math.inf


def ranks() -> int:
    """Returns the ranks on this host that share its visible CPUs; 1 if the environment does not say.

    torchrun and compatible launchers set `LOCAL_WORLD_SIZE` and do not bind ranks to CPUs. MPI and Slurm bind each rank
    to its own CPUs, visible in its affinity.
    """
    world_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(world_size)) if world_size.isdigit() else 1


def for_this_rank() -> int:
    """Returns the CPUs of this rank, at least 1."""
    return max(1, cpus().number // ranks())


class Claim:
    """The workers of one open loader. Ends with `release` or with the object."""

    def __init__(self, number: int) -> None:
        self.number = number
        key = id(self)
        _claims[key] = weakref.ref(self, lambda _: _claims.pop(key, None))

    def release(self) -> None:
        """Frees the workers for other loaders. Idempotent."""
        self.number = 0


_claims: dict[int, weakref.ref[Claim]] = {}
"""The claims of this process. A forked worker inherits them, so a loader inside it gets the remaining CPUs."""


def taken() -> int:
    """Returns the workers of all open loaders of this process."""
    claims = [claim() for claim in list(_claims.values())]
    return sum(claim.number for claim in claims if claim is not None)


def claim(wanted: int, most: int, least: int = 1) -> Claim:
    """Claims up to `wanted` workers of those left of `most`; at least `least`, if as many are wanted."""
    return Claim(max(min(least, wanted), min(wanted, most - taken())))


# How much of the CPUs is in use by all programs of the machine (Linux).


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
