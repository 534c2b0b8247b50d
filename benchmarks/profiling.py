"""What does `loader.profile()` cost the epoch that it measures?

*Alone* iterates over the loader, *profiled* over `loader.profile()`, without steps on a held batch. Samples take a
given time of a CPU in two steps of a chain of transforms, the least of them about that of a row of an array. Counted
are CPU seconds of the process and its workers, for each sample, and samples per second.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import method
from method import Case, Figures, Goal

RIVALS = ("profiled", "alone")
CPU = "CPU-us per sample"


class Chain:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value


class Spin:
    """Takes time of the CPU."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, value: Any) -> Any:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return value


class Spins:
    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.transform = Chain(Spin(seconds / 2), Spin(seconds / 2))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.transform(index)


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.3 if options.quick else 2.0
    found = []
    for workers in (0, 2):
        for spin, goals in ((0.0, []), (1e-4, []), (1e-3, [Goal(CPU, "alone", at_most=1.02)])):
            name = f"samples of {1e3 * spin:g} ms, {workers or 'no'} workers"
            made = {rival: {"rival": rival, "workers": workers, "spin": spin, "seconds": seconds} for rival in RIVALS}
            found.append(Case(name, made, goals))
    return found


def cpu_seconds() -> float:
    """Returns those of this process and of the children that have ended."""
    return sum(os.times()[:4])


def measure(rival: str, workers: int, spin: float, seconds: float) -> Figures:
    import stoker

    cost = spin + 5e-6
    count = 32 * max(4, int(seconds * max(1, workers) / cost / 32 / 2))
    loader = stoker.DataLoader(Spins(count, spin), batch_size=32, num_workers=workers, seed=1)
    for _ in loader:  # imports, and what the first epoch learns
        break
    begun, cpu = time.perf_counter(), cpu_seconds()
    for _ in loader.profile() if rival == "profiled" else loader:
        pass
    loader.close()
    took, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    return {CPU: 1e6 * cpu / count, "samples/s": count / took}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
