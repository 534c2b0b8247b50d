"""`ProcessMemory`: the memory of each process of a program over time, read by another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stoker._core.machine import memory

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
