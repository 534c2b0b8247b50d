"""Finds threads of native libraries before a fork, and workers that wait for ever for a lock that a thread held at the
fork.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterator
from typing import NamedTuple

from stoker._engine.process import linux
from stoker._engine.process.deadlines import LOCKED_AFTER


class Pool(NamedTuple):
    """Threads that a library starts when it is first used.

    Attributes:
        threads: how their names begin, as the kernel has them: 15 bytes at most.
        modules: names of libraries whose they may be. A library that datasets do not use is left out: hf_xet, whose
            threads are named as those of every user of Tokio.
    """

    threads: str
    modules: tuple[str, ...]


POOLS = (
    Pool("polars-", ("polars",)),  # has a thread of Tokio too
    Pool("tokio-rt-worker", ("obstore", "lance", "lancedb", "deltalake", "icechunk", "datafusion")),
    Pool("rdk:main", ("confluent_kafka",)),
)
"""obstore and Polars were seen to hang, and clients of Kafka to time out. The others run Tokio as obstore does.

To add one, take the names from /proc/self/task/*/comm in a process that has used it.
"""


class Found(NamedTuple):
    """A thread of this process, and the library that most likely started it."""

    thread: str
    library: str

    def __str__(self) -> str:
        return f"thread {self.thread!r} of this process (most likely of {self.library})"


def find() -> Found | None:
    """Returns the first pool whose library is loaded and whose threads run.

    Takes a microsecond where no such library is loaded, else some microseconds for each thread of the process.
    """
    loaded = [
        (pool.threads, module) for pool in POOLS for module in pool.modules if sys.modules.get(module) is not None
    ]
    if not loaded:
        return None
    names = sorted(other_threads())
    return next((Found(name, module) for begin, module in loaded for name in names if name.startswith(begin)), None)


def jax_has_started() -> bool:
    """Returns whether JAX has started a backend, with threads. Its import starts none."""
    if sys.modules.get("jax") is None:
        return False
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(bridge, "_backends", True))


def is_ray_worker() -> bool:
    """Returns whether this process is a worker of Ray: a fork of it, which lacks Ray's threads, hangs."""
    ray = sys.modules.get("ray._private.worker")
    worker = getattr(ray, "global_worker", None)
    return worker is not None and getattr(worker, "mode", None) == getattr(ray, "WORKER_MODE", 1)


def ray_has_started() -> bool:
    """Returns whether this process is connected to a cluster of Ray, by threads."""
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    return bool(getattr(worker, "connected", False))


_FORKS = tuple(
    ("ignore", re.compile(text), category, None, 0)
    for text, category in (
        (".*multi-threaded, use of fork", DeprecationWarning),  # Python 3.12
        (r"os\.fork\(\) was called", RuntimeWarning),  # JAX
    )
)


@contextlib.contextmanager
def quiet_about_forks() -> Iterator[None]:
    """Silences the warnings of forks beside threads: births with a lock held are noticed and redone.

    The filters are put into the list of filters and taken out again, because `warnings.catch_warnings` lets Python
    forget which warnings it has shown, and show each of them again.
    """
    filters = warnings.filters
    filters[:0] = _FORKS  # type: ignore[index]  # typeshed: a sequence
    try:
        yield
    finally:
        for one in _FORKS:
            with contextlib.suppress(ValueError):  # a hook of the fork has reset them
                filters.remove(one)  # type: ignore[attr-defined]


def other_threads() -> set[str]:
    """Returns the names of this process's threads but the main one; none where the kernel does not say."""
    names = set()
    with contextlib.suppress(OSError):  # no /proc
        for thread in os.listdir("/proc/self/task"):
            if int(thread) != os.getpid():
                with contextlib.suppress(OSError):  # it has ended
                    names.add(_read(f"/proc/self/task/{thread}/comm").rstrip("\n"))
    return names


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 64).decode(errors="replace")
    finally:
        os.close(descriptor)


class ForkDeadlockCheck:
    """Looks at workers until one of them has answered."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._used: dict[int, float] = {}  # pid → seconds of processor time, when it was looked at last
        self._found = False

    def shows(self, busy: Collection[int], now: float) -> bool:
        """Whether it shows now, the first time, in the workers with these pids, all that have something to do."""
        if self._found:
            return False
        waits = bool(busy)
        for pid in busy:
            used = linux.cpu_seconds(pid)
            if used != self._used.get(pid, 0.0) or not linux.waits_for_a_lock(pid):
                waits = False
            self._used[pid] = used
        if not waits:
            self._since = None
        elif self._since is None:
            self._since = now
        else:
            self._found = now - self._since > LOCKED_AFTER
        return self._found
