"""What a process has and has left behind: processes, descriptors, threads, memory."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from pathlib import Path

MARK = "STOKER_SOAK"
"""An environment variable with the soak's pid: its descendants have it, wherever they have gone."""

M_MMAP_THRESHOLD = -3

DEADLINE = 3.0
"""Seconds within which all is to be gone."""


def become_marked() -> None:
    """Begins this program anew, with the mark: a forked child's environment is that of the program's start."""
    if os.environ.get(MARK) != str(os.getpid()):
        os.environ[MARK] = str(os.getpid())
        os.execv(sys.executable, sys.orig_argv)


def descendants() -> list[str]:
    """Processes that bear the mark, but this one."""
    mark = f"{MARK}={os.getpid()}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(name) != os.getpid() and mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(f"{name} {Path(f'/proc/{name}/stat').read_text().split(') ')[0]})")
        except OSError:  # it is gone, or not ours
            continue
    return found


def give_memory_back() -> None:
    """From now on the allocator keeps nothing of a batch that is gone: what stays then is still in use."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)


class Held:
    """What this process holds."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self.descriptors = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                self.descriptors[int(name)] = os.readlink(f"/proc/self/fd/{name}")
            except OSError:  # the one of listdir itself
                continue
        self.threads = len(sys._current_frames())
        self.objects = len(gc.get_objects())
        self.mappings = Path("/proc/self/maps").read_text().count("/memfd:")
        rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
        # Not what it has mapped of a library: whether that is private depends on who else has
        self.memory = sum(int(line.split()[1]) << 10 for line in rollup if line.startswith("Anonymous:"))

    def more_than(self, before: Held) -> list[str]:
        """What there is now and was not then, but for memory."""
        return [
            *(f"process {told}" for told in descendants()),
            *(f"descriptor {n} -> {to}" for n, to in self.descriptors.items() if n not in before.descriptors),
            *([f"{self.threads} threads for {before.threads}"] if self.threads > before.threads else []),
            *([f"{self.mappings} mappings of files in memory"] if self.mappings > before.mappings else []),
        ]


def settled(before: Held) -> tuple[Held, list[str]]:
    """What this process holds once its endings are over, and what should not be there."""
    until = time.monotonic() + DEADLINE
    while (left := (now := Held()).more_than(before)) and time.monotonic() < until:
        time.sleep(0.02)
    return now, left
