"""What does a batch cost the trainer, and a tiny batch everybody?

Ready batches: two workers make batches of 8 samples with four float32 tensors of 16 kB each, so four leaves of 128 kB.
The trainer sleeps for some milliseconds before it asks, so that the batch is there: what is counted is the processor
time of the `next()` alone, once of the trainer's thread, once of its whole process with the loader's threads, if there
are any, while it sleeps.

Tiny batches: 64 integers, two workers, no pause. What is left is the cost of handing out and handing over.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import method
from method import Case, Figures

WARM_UP = 50  # batches
PAUSE = 0.004  # seconds


def cases(options: argparse.Namespace) -> list[Case]:
    batches = 50 if options.quick else 400
    seconds = 0.3 if options.quick else 1.5
    return [
        Case("ready batches of four leaves", {rival: {"rival": rival, "batches": batches} for rival in RIVALS}),
        Case("batches of 64 integers", {rival: {"rival": rival, "seconds": seconds} for rival in RIVALS}),
    ]


RIVALS = ("stoker", "torch")


def measure(rival: str, batches: int = 0, seconds: float = 0.0) -> Figures:
    return ready(rival, batches) if batches else tiny(rival, seconds)


def ready(rival: str, batches: int) -> Figures:
    import torch

    loader = method.data_loader(rival)(Repeated(tuple(torch.rand(4, 4096))), batch_size=8, num_workers=2)
    iterator = iter(loader)
    for _ in range(WARM_UP):
        next(iterator)
    thread = 0.0
    process = time.process_time()
    for _ in range(batches):
        time.sleep(PAUSE)
        began = time.thread_time()
        next(iterator)
        thread += time.thread_time() - began
    process = time.process_time() - process
    del iterator
    return {
        "CPU-us per batch, trainer's thread": 1e6 * thread / batches,
        "CPU-us per batch, trainer's process": 1e6 * process / batches,
    }


def tiny(rival: str, seconds: float) -> Figures:
    used = method.cpu_seconds()
    iterator = iter(method.data_loader(rival)(Repeated(7), batch_size=64, num_workers=2))
    for _ in range(WARM_UP):
        next(iterator)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(iterator)
        count += 1
    passed = time.perf_counter() - began
    del iterator
    return {
        "batches/s": count / passed,
        "CPU-us per batch, all processes": 1e6 * (method.cpu_seconds() - used) / (count + WARM_UP),
    }


class Repeated:
    """A long dataset of one sample."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        return self.sample


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
