"""How fast do batches reach the trainer, and what does it cost?

Samples are float32 tensors in memory, 64 of them to a batch, collated by the default function in two worker processes,
so the work is the transport: collating, handing over, reading, giving back. Once the trainer reads one byte of every
page, as the least that a training step does; once it lets the batch go unread. The limit is two threads without a
loader, each of which collates batch after batch into a buffer that it keeps, and reads it itself.

Where `--tensorflow` names an interpreter that has it, tf.data batches rows of an array by threads of its own: it is
shown, and no goal, because no sample of it is made by Python.

In process nothing travels: `num_workers=0`, beside torch's loader with as many, and one bare thread. What is left is
collation, and the memory that a batch lies in.

Batches are counted for some seconds after a warm-up. The processor time is that of all processes meanwhile. On a
machine with two CPUs three processes and what else runs compete for them: there the processor time is the steadier
figure. The memory is that of all processes, the samples included.
"""

from __future__ import annotations

import argparse
import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import counting
import method
from method import Case, Figures, Goal

WORKERS = 2
BATCH = 64
WARM_UP = 12  # batches: all slots have been used, all mappings made
SIZES = [("38 MB", (3, 224, 224), 128, 5), ("3 MB", (3, 64, 64), 1024, 5), ("128 kB", (512,), 4096, 2.5)]
"""Name of the batch, shape of a sample, how many are in memory, how many times torch's rate is the goal."""


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.3 if options.quick else 1.5
    in_process = [
        Case(
            f"in process: batches of {name}",
            {
                rival: {"rival": rival, "shape": shape, "samples": samples, "workers": 0, "seconds": seconds}
                for rival in ("stoker", "torch", "bare thread")
            },
            [Goal("batches/s", against="torch", at_least=1)],
        )
        for name, shape, samples, _ in SIZES
    ]
    return in_process + [
        Case(
            f"batches of {name}, {'read' if reads else 'not read'}",
            {
                rival: {"rival": rival, "shape": shape, "samples": samples, "reads": reads, "seconds": seconds}
                for rival in ("stoker", "torch", "bare threads")
            }
            | ({} if options.quick else tensorflow(options, shape, samples, reads, seconds)),
            [
                Goal("batches/s", against="torch", at_least=times),
                Goal("batches/s", against="bare threads", at_least=0.9),
            ],
        )
        for name, shape, samples, times in SIZES
        for reads in ((True,) if options.quick else (True, False))
    ]


def tensorflow(
    options: argparse.Namespace, shape: tuple[int, ...], samples: int, reads: bool, seconds: float
) -> dict[str, Any]:
    how = {"rival": "tf.data", "shape": shape, "samples": samples, "reads": reads, "seconds": seconds}
    return {"tf.data": how | ({"python": options.tensorflow} if options.tensorflow else {})}


def measure(
    rival: str, shape: list[int], samples: int, seconds: float, reads: bool = True, workers: int = WORKERS
) -> Figures:
    import numpy as np

    if rival == "tf.data":
        return of_tensorflow(shape, samples, seconds, reads)
    import torch

    dataset = Tensors(torch.rand(samples, *shape).unbind())
    step = 4096 if math.prod(shape) * 4 * BATCH >= 4096 else 1

    def read(batch: Any) -> None:
        if reads:
            batch.numpy().reshape(-1).view(np.uint8)[::step].max()

    if not workers:
        torch.set_num_threads(1)  # of torch.stack: all rivals run in this thread
    if rival in ("bare threads", "bare thread"):
        return bare(dataset, read, seconds, max(1, workers))
    batches = method.data_loader(rival)(dataset, batch_size=BATCH, num_workers=workers)
    return counting.counted(batches, seconds, read, WARM_UP)


def of_tensorflow(shape: list[int], samples: int, seconds: float, reads: bool) -> Figures:
    import numpy as np
    import tf_data

    def read(batch: Any) -> None:
        if reads:
            batch.reshape(-1).view(np.uint8)[::4096].max()

    rows = np.random.default_rng(0).random((samples, *shape), np.float32)
    return counting.or_not_installed(
        lambda: tf_data.tensors(rows, BATCH, WORKERS), lambda batches: counting.counted(batches, seconds, read, WARM_UP)
    )


def bare(dataset: Tensors, read: Callable[[Any], None], seconds: float, count: int) -> Figures:
    """So many threads, and nothing between them and the samples."""
    import torch

    torch.set_num_threads(1)
    counts = []
    buffers = [torch.empty(BATCH, *dataset[0].shape) for _ in range(count)]

    def work(kept: Any) -> None:
        for done in itertools.count():
            if time.perf_counter() > began + seconds:
                return counts.append(done)
            first = done * BATCH
            torch.stack([dataset[index] for index in range(first, first + BATCH)], out=kept)
            read(kept)

    threads = [threading.Thread(target=work, args=[kept]) for kept in buffers]
    used, began = method.cpu_seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, used = time.perf_counter() - began, method.cpu_seconds() - used
    return {
        counting.RATE: sum(counts) / elapsed,
        counting.CPU: 1e3 * used / sum(counts),
        counting.MEMORY: method.memory_of_all() / 1e6,
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
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--tensorflow", help="an interpreter that has TensorFlow, for tf.data")
    method.main(arguments, cases, measure)
