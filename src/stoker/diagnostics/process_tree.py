"""CPU time and memory of a process and all its descendants, read from `/proc` by another process (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stoker._core.machine import memory
from stoker._core.machine.cgroups import read
from stoker._core.machine.cpus import cpu_use

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

INTERVAL = 0.25
"""Seconds between samples, at least."""

SHARE = 0.01
"""Share of one CPU that reading the memory may take: that of many or large processes is read less often."""


@dataclass(frozen=True)
class TreeSample:
    """All processes of a tree at one moment.

    Attributes:
        time: seconds of `time.perf_counter()`.
        cpu: CPU-seconds of all processes seen so far, those that have ended included.
        memory: proportional memory in bytes (a shared page is counted once) when it was last read; 0 if unknown.
        read: when the memory was read last; 0 for `time`.
        used: seconds that the CPUs that this process may use were in use, by any program; 0 if unknown.
        idle: seconds that they were idle.
    """

    time: float
    cpu: float
    memory: int
    processes: int
    read: float = 0.0
    used: float = 0.0
    idle: float = 0.0


class ProcessTree:
    """Samples the descendants of this process.

    Args:
        root: pid of the first of them.
        share: of one CPU that reading the memory may take.
    """

    def __init__(self, root: int, share: float = SHARE) -> None:
        self._root = root
        self._share = share
        self._seconds: dict[tuple[int, str], float] = {}
        self._due = self._memory_due = 0.0
        self._memory, self._memory_read = 0, 0.0
        self.samples: list[TreeSample] = []
        self.memory = ProcessMemory()

    def sample_if_due(self) -> None:
        """Takes a sample, unless the latest one is too recent."""
        now = time.perf_counter()
        if now >= self._due:
            self._due = now + INTERVAL
            self.sample()

    def sample(self) -> None:
        """Takes a sample now, and halves the number of samples if there are very many."""
        alive, now = self.alive(), time.perf_counter()
        if now >= self._memory_due:
            begun = time.thread_time()
            self._memory, self._memory_read = self.memory.read(alive, now), now
            self._memory_due = now + (time.thread_time() - begun) / self._share
        used = sum(self._seconds.values())
        machine = cpu_use()
        self.samples.append(TreeSample(now, used, self._memory, len(alive), self._memory_read, *machine))
        if len(self.samples) > 20_000:
            del self.samples[1:-1:2]

    def alive(self) -> list[int]:
        """Returns the pids of the root and its descendants, and notes their CPU time."""
        pids, waiting = [], [self._root]
        while waiting:
            pid = waiting.pop()
            if (stat := read(f"/proc/{pid}/stat")) is None:
                continue
            fields = stat.rpartition(") ")[2].split()
            self._seconds[pid, fields[19]] = (int(fields[11]) + int(fields[12])) / _TICK
            if fields[0] != "Z":
                pids.append(pid)
            waiting += children_of(pid)
        return pids


def children_of(pid: int) -> list[int]:
    """Returns the pids of a process's children, of all its threads; none if it has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in (read(f"/proc/{pid}/task/{thread}/children") or "").split()]


MOST = 400
"""Readings that are kept of a process; of more, every second one is left out."""

SHORT = 8
"""Readings below which nothing is kept of a process that has ended."""

ENDED = 400
"""Processes that have ended of which the readings are kept; of more, every second one is forgotten."""


class MemoryReading(NamedTuple):
    """A process's memory at one moment, in bytes.

    `time` is in seconds of `time.perf_counter()`; `own` and `anonymous` are as in `MemoryShares`; `left` is what the
    machine, or the container, had left.
    """

    time: float
    own: int
    anonymous: int
    left: int


@dataclass
class ProcessHistory:
    """The readings of a process, in order."""

    pid: int
    readings: list[MemoryReading] = field(default_factory=list)


class ProcessMemory:
    """Reads the memory of processes, and keeps the readings of each one.

    Attributes:
        histories: of all processes that are kept, those that have ended first.
    """

    def __init__(self) -> None:
        self._alive: dict[int, ProcessHistory] = {}
        self._ended: list[ProcessHistory] = []

    @property
    def histories(self) -> list[ProcessHistory]:
        """Returns the readings of each process; a pid comes twice if it was used again."""
        return [*self._ended, *self._alive.values()]

    def read(self, pids: Sequence[int], now: float) -> int:
        """Reads the memory of the processes that are alive; returns the sum of their proportional memory, in bytes."""
        left, whole = memory.available().bytes, 0
        for pid in self._alive.keys() - {*pids}:
            self._end(self._alive.pop(pid))
        for pid in pids:
            proportional, own, anonymous = memory.shares(pid)
            whole += proportional
            if not proportional:  # it has just ended, or its memory may not be read
                continue
            readings = self._alive.setdefault(pid, ProcessHistory(pid)).readings
            readings.append(MemoryReading(now, own, anonymous, left))
            if len(readings) > MOST:
                del readings[1:-1:2]
        return whole

    def _end(self, history: ProcessHistory) -> None:
        if len(history.readings) >= SHORT:
            self._ended.append(history)
        if len(self._ended) > ENDED:
            del self._ended[1:-1:2]
