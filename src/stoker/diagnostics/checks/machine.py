"""Checks of the machine or container: CPUs, memory, `/dev/shm`, file descriptors."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

from stoker._core.machine import anonymous, cpus
from stoker._core.machine import memory as machine_memory
from stoker._engine.fork import timerfd
from stoker.diagnostics.checks.finding import Finding

SMALL_SHM = 1 << 30
"""Bytes of `/dev/shm` below which the batches of torch's loader may not fit."""

FEW_DESCRIPTORS = 4096
LITTLE = 0.1
"""Share of the memory limit that should be free."""


def cpu() -> Iterator[Finding]:
    """Yields the CPUs that this process may use, by machine, affinity and cgroups."""
    usable, all_of_them = cpus.cpus(), os.cpu_count() or 1
    what = f"{usable.number} CPUs ({usable.source})"
    if usable.number == all_of_them:
        yield Finding("CPUs", "fine", what)
        return
    yield Finding(
        "CPUs",
        "advice",
        f"{what}; the machine has {all_of_them}, and os.cpu_count() says so",
        "Workers and threads that are counted by os.cpu_count() share the fewer CPUs and slow each other down.",
        f"num_workers={usable.number} at most (stoker.DataLoader: num_workers='auto'), OMP_NUM_THREADS={usable.number}",
    )


def memory() -> Iterator[Finding]:
    """Yields the memory that is left, by machine and cgroups."""
    free = machine_memory.available()
    what = f"{free.bytes / 2**30:.1f} GiB free of {free.limit / 2**30:.1f} GiB ({free.source})"
    if free.bytes >= LITTLE * free.limit:
        yield Finding("memory", "fine", what)
        return
    yield Finding(
        "memory",
        "problem",
        what,
        "The kernel ends a process when the limit is passed, and a worker is often the first (signal 9).",
        "End other programs, raise the container's limit, or pass fewer workers or a smaller batch_size.",
    )


def shared_memory() -> Iterator[Finding]:
    """Yields the size of `/dev/shm`, through which torch's loader sends batches."""
    try:
        there = os.statvfs("/dev/shm")
    except OSError:
        size, free = 0, 0
    else:
        size, free = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
    what = f"{free / 2**20:,.0f} MiB free of {size / 2**20:,.0f} MiB" if size else "there is none"
    if free >= SMALL_SHM:
        yield Finding("/dev/shm", "fine", what)
        return
    yield Finding(
        "/dev/shm",
        "advice",
        what,
        "The workers of torch's DataLoader send num_workers x prefetch_factor batches through it; a batch that does "
        "not fit is a bus error. Stoker's batches do not use it.",
        "docker run --shm-size=8g (Kubernetes: an emptyDir of medium Memory), or from stoker import DataLoader",
    )


def system_calls() -> Iterator[Finding]:
    """Yields the system calls that Stoker replaces, because a filter (seccomp) denies them."""
    calls = {"timerfd_create": timerfd.works(), "epoll_create1": _has_epoll()}
    denied = [name for name, works in calls.items() if not works]
    file = anonymous.replaced_by()
    if file is None and not denied:
        yield Finding("system calls", "fine", "files in memory, timers and epoll are there")
        return
    what = ([f"batches lie in {file}"] if file else []) + ([f"{' and '.join(denied)}: denied"] if denied else [])
    yield Finding(
        "system calls",
        "advice" if file else "fine",
        "; ".join(what),
        "The system may write batches to the disk, and a full disk is a MemoryLimitError." if file else "",
        "Allow memfd_create in the container's seccomp profile, or set TMPDIR to a folder in memory" if file else "",
    )


def _has_epoll() -> bool:
    if hasattr(select, "epoll"):  # Linux
        try:
            select.epoll().close()
        except OSError:
            return False
    return True


def descriptors() -> Iterator[Finding]:
    """Yields the limit on open files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEW_DESCRIPTORS:
        yield Finding("open files", "fine", f"up to {'any number' if soft == resource.RLIM_INFINITY else f'{soft:,}'}")
        return
    can = "any number" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    yield Finding(
        "open files",
        "advice",
        f"up to {soft:,} in a process ({can} if it asks)",
        "torch's loader holds a descriptor for each tensor that is kept from a worker's batch ('Too many open files', "
        "'received 0 items of ancdata'). Stoker's batches need none.",
        f"ulimit -n {min(65536, hard) if hard != resource.RLIM_INFINITY else 65536}, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    )
