"""What does `stoker.install(num_workers="auto")` gain for a program with another number of workers?

Each program has torch's loader and a number of workers of its own: one, which is too few, or eight for each CPU, which
are too many. It runs unmodified over torch's engine, under `stoker.install()`, and under
`stoker.install(num_workers="auto")`, each in a process of its own. *Waits* are samples that sleep for 4 ms, as from a
network; *computes* are samples that need a CPU for 1 ms. The training loop has no work, so it always waits. The rate
counts from the first batch on, so it includes the time until the number is found; memory is that of all processes.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import method
from method import Case, Figures, Goal

BATCH = 8
RATE, CPU, MEMORY, FOUND = "batches/s", "CPU-ms per batch", "MB, all processes", "workers"
TORCH, INSTALLED, AUTO = "torch", "install()", 'install(num_workers="auto")'


class Samples:
    """Samples that each wait or compute for some seconds."""

    def __init__(self, waits: float, computes: float) -> None:
        self.waits, self.computes = waits, computes

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        time.sleep(self.waits)
        until = time.thread_time() + self.computes
        while time.thread_time() < until:
            pass
        return index


PROGRAMS = {
    "waits, one worker": (Samples(0.004, 0), 1),
    "computes, one worker": (Samples(0, 0.001), 1),
    "computes, eight workers for each CPU": (Samples(0, 0.001), 8 * len(os.sched_getaffinity(0))),
}
GAINS = {"waits, one worker": 2.0, "computes, one worker": 1.2}


def cases(options: Any) -> list[Case]:
    seconds = 1.0 if options.quick else 12.0
    return [
        Case(
            program,
            {rival: {"program": program, "rival": rival, "seconds": seconds} for rival in (AUTO, INSTALLED, TORCH)},
            [
                Goal(RATE, INSTALLED, at_least=GAINS.get(program, 0.95)),
                Goal(RATE, TORCH, at_least=GAINS.get(program, 0.95), headline=False),
            ],
        )
        for program in PROGRAMS
    ]


def measure(program: str, rival: str, seconds: float) -> Figures:
    from torch.utils.data import DataLoader

    import stoker

    dataset, workers = PROGRAMS[program]
    engine: Any = contextlib.nullcontext()
    if rival != TORCH:
        engine = stoker.install(num_workers="auto") if rival == AUTO else stoker.install()
    with engine:
        loader: Any = DataLoader(dataset, BATCH, num_workers=workers)  # type: ignore[arg-type]
        batches = iter(loader)
        next(batches)
        used, began, count = method.cpu_seconds(), time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            next(batches)
            count += 1
        took, used = time.perf_counter() - began, method.cpu_seconds() - used
        behind = None if rival == TORCH else stoker.loader_of(loader)
        figures: Figures = {
            RATE: count / took,
            CPU: 1e3 * used / count,
            MEMORY: method.memory_of_all() / 1e6,
            FOUND: str(workers if behind is None else behind.num_workers),
        }
        del batches
    return figures


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
