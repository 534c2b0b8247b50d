"""How fast do batches reach the trainer, and what does it cost?

Samples are float32 tensors in memory, 64 of them to a batch, collated by the default function in two worker processes,
so the work is the transport: collating, handing over, reading, giving back. Once the trainer reads one byte of every
page, as the least that a training step does; once it lets the batch go unread.

Batches are counted for some seconds after a warm-up. The processor time is that of all processes, from the loader's
making until it is closed, start and warm-up included, divided by the number of batches. On a machine with two CPUs
three processes and what else runs compete for them: there the processor time is the steadier figure.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import method
from method import Case, Figures, Goal

WORKERS = 2
BATCH = 64
WARM_UP = 12  # batches: all slots have been used, all mappings made
SIZES = [("38 MB", (3, 224, 224), 128, 5), ("3 MB", (3, 64, 64), 1024, 5), ("128 kB", (512,), 4096, 2)]
"""Name of the batch, shape of a sample, how many are in memory, how many times torch's rate is the goal."""


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.3 if options.quick else 1.5
    return [
        Case(
            f"batches of {name}, {'read' if reads else 'not read'}",
            {
                rival: {"rival": rival, "shape": shape, "samples": samples, "reads": reads, "seconds": seconds}
                for rival in ("stoker", "torch")
            },
            [Goal("batches/s", against="torch", at_least=times)],
        )
        for name, shape, samples, times in SIZES
        for reads in (True, False)
    ]


def measure(rival: str, shape: list[int], samples: int, reads: bool, seconds: float) -> Figures:
    import numpy as np
    import torch

    DataLoader = method.data_loader(rival)
    dataset = Tensors(torch.rand(samples, *shape).unbind())
    step = 4096 if math.prod(shape) * 4 * BATCH >= 4096 else 1
    used = method.cpu_seconds()
    iterator = iter(DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS))
    count, began = 0, 0.0
    for count, batch in enumerate(iterator, 1):
        if reads:
            batch.numpy().reshape(-1).view(np.uint8)[::step].max()
        now = time.perf_counter()
        if count == WARM_UP:
            began = now
        elif began and now - began > seconds:
            break
    del iterator, batch
    used = method.cpu_seconds() - used
    return {
        "batches/s": (count - WARM_UP) / (now - began),
        "CPU-ms per batch": 1e3 * used / count,
    }


class Tensors:
    """A long dataset of few samples, which are tensors in memory."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
