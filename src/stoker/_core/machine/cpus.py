"""The number of CPUs that this process may use, and the limit that determines it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from stoker._core.machine.cgroups import Cgroup, own


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
