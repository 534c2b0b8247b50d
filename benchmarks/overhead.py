"""How much processor time does a batch cost: in the training process, and a tiny one in all processes?

Ready batches: two workers make batches of 8 samples with four float32 tensors of 16 kB each, so four leaves of 128 kB.
The trainer sleeps for some milliseconds before it asks, so that the batch is there: what is counted is the processor
time of the `next()` alone, once of the trainer's thread, once of its whole process with the loader's threads, if there
are any, while it sleeps. *Bare* is the least that it can be with torch, NumPy and a socket in Python: two forked
processes that stack such batches into shared memory; the trainer reads a word of one of them, makes four tensors over
that memory, and asks for the next: no order, no account, no lease, no supervision.

Tiny batches: 64 integers, two workers, no pause. What is left is the cost of handing out and handing over.

Two threads, where `dataloader-rs` is installed (Python 3.13): batches of 64 integers, and of 64 rows of an array in
memory. There its batches are arrays, by `np.array` and `np.stack`, and so are Stoker's. No torch is needed for these.

A loop beside a busy loader: each step is some 20 ms of plain Python, then a batch of 4 MB is asked for, which lies
ready: its samples come from afar (they wait and compute nothing), so what the step takes longer than alone is what the
loader takes from the trainer's thread and from its interpreter's lock. `pin_memory=True` is asked for as well; without
an accelerator nothing is pinned.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import mmap
import os
import socket
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import method
from method import Case, Figures, Goal

WORKERS, SAMPLES = 2, 8
SLOTS = 2 * WORKERS + 2  # batches under way, and two in the trainer's hands
WARM_UP = 50  # batches
PAUSE = 0.004  # seconds
READY = "CPU-us per batch, trainer's thread"
LONGER = "a step, in times of one alone"


def cases(options: argparse.Namespace) -> list[Case]:
    batches = 50 if options.quick else 400
    seconds = 0.3 if options.quick else 1.5
    return [
        Case(
            "ready batches of four leaves",
            {rival: {"rival": rival, "batches": batches} for rival in (*RIVALS, "bare")},
            [Goal(READY, at_most=60)],
        ),
        Case("batches of 64 integers", {rival: {"rival": rival, "seconds": seconds} for rival in (*RIVALS, THREADS)}),
        Case(
            "a loop beside a busy loader",
            {rival: {"rival": rival, "steps": 10 if options.quick else 100} for rival in RIVALS},
            [Goal(LONGER, "torch", at_most=1)],
        ),
        *(
            Case(
                f"two threads, {what}",
                {rival: {"rival": rival, "seconds": seconds, "floats": floats} for rival in (THREADS, RUST)},
                [Goal("batches/s", RUST, at_least=goal)],
            )
            for what, floats, goal in THREADED
            if find_spec("dataloader_rs")
        ),
    ]


RIVALS = ("stoker", "torch")
THREADS, RUST = "stoker, threads", "dataloader-rs"
THREADED = (("64 integers", 0, 0.6), ("64 rows of 2 kB", 512, 0.9), ("64 rows of 48 kB", 12_288, 1.0))


def measure(rival: str, batches: int = 0, seconds: float = 0.0, steps: int = 0, floats: int | None = None) -> Figures:
    if steps:
        return beside(rival, steps)
    if floats is not None:
        return of_arrays(rival, seconds, floats)
    return ready(rival, batches) if batches else tiny(rival, seconds)


def ready(rival: str, batches: int) -> Figures:
    import torch

    sample = tuple(torch.rand(4, 4096))
    if rival == "bare":
        iterator = bare(sample)
    else:
        iterator = iter(method.data_loader(rival)(Repeated(sample), batch_size=SAMPLES, num_workers=WORKERS))
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
        READY: 1e6 * thread / batches,
        "CPU-us per batch, trainer's process": 1e6 * process / batches,
    }


def bare(sample: Sequence[Any]) -> Iterator[list[Any]]:
    """Batches of such samples, for ever: as many under way as a loader has, and the word for each is its number."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    size = SAMPLES * sample[0].nbytes
    memory = mmap.mmap(-1, SLOTS * len(sample) * size)

    def leaves(number: int) -> list[Any]:
        first = number % SLOTS * len(sample)
        shape = (SAMPLES, *sample[0].shape)
        return [
            torch.from_numpy(np.ndarray(shape, np.float32, memory, (first + leaf) * size))
            for leaf in range(len(sample))
        ]

    def work(end: socket.socket) -> None:
        while word := end.recv(4):
            for field, out in zip(sample, leaves(int.from_bytes(word, "little")), strict=True):
                torch.stack([field] * SAMPLES, out=out)
            end.send(word)

    with contextlib.ExitStack() as ends:
        workers = []
        for _ in range(WORKERS):
            mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            child = os.fork()
            if not child:
                for other in (mine, *workers):
                    other.close()
                work(its)
                os._exit(0)
            its.close()
            ends.callback(os.waitpid, child, 0)
            workers.append(mine)
        for end in workers:  # before they are waited for
            ends.callback(end.close)
        for number in range(2 * WORKERS):
            workers[number % WORKERS].send(number.to_bytes(4, "little"))
        for number in itertools.count():
            end = workers[number % WORKERS]
            made = int.from_bytes(end.recv(4), "little")
            batch = leaves(made)
            end.send((number + 2 * WORKERS).to_bytes(4, "little"))
            yield batch


def tiny(rival: str, seconds: float) -> Figures:
    kind, threads = rival.partition(",")[0], {"worker_method": "thread"} if rival == THREADS else {}
    return rate(iter(method.data_loader(kind)(Repeated(7), batch_size=64, num_workers=2, **threads)), seconds)


def of_arrays(rival: str, seconds: float, floats: int) -> Figures:
    import numpy as np

    dataset = Rows(np.random.default_rng(0).random((4096, floats), np.float32)) if floats else Integers()
    if rival == THREADS:
        loader = method.data_loader("stoker")(dataset, 64, num_workers=2, worker_method="thread", output="numpy")
        return rate(iter(loader), seconds)
    from dataloader_rs import PyDataloader, PyDataset

    kind = type(dataset)
    own = type("Dataset", (PyDataset,), {"__len__": kind.__len__, "__getitem__": kind.__getitem__})()
    vars(own).update(vars(dataset))
    return rate(iter(PyDataloader(own, 64, num_workers=2, collate_fn=np.stack if floats else np.array)), seconds)


def rate(iterator: Iterator[Any], seconds: float) -> Figures:
    for _ in range(WARM_UP * 10):
        next(iterator)
    used = method.cpu_seconds()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(iterator)
        count += 1
    passed, memory = time.perf_counter() - began, method.memory_of_all()
    del iterator
    return {
        "batches/s": count / passed,
        "CPU-us per batch, all processes": 1e6 * (method.cpu_seconds() - used) / count,
        "MB, all processes": memory / 1e6,
    }


def beside(rival: str, steps: int) -> Figures:
    def step(rounds: int) -> float:
        began, total = time.perf_counter(), 0
        for number in range(rounds):
            total += number
        return time.perf_counter() - began

    rounds = int(100_000 * 0.02 / statistics.median(step(100_000) for _ in range(20)))
    alone = [step(rounds) for _ in range(steps)]
    warnings.simplefilter("ignore")  # of memory that cannot be pinned
    loader = method.data_loader(rival)(Waiting(), batch_size=16, num_workers=2, pin_memory=True)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    with_it = []
    for _ in range(steps):
        began = time.perf_counter()
        step(rounds)
        next(iterator)
        with_it.append(time.perf_counter() - began)
    del iterator
    again = [step(rounds) for _ in range(steps)]  # the machine may have changed its speed
    return {LONGER: statistics.median(with_it) / statistics.median(alone + again)}


class Waiting:
    """Samples of 256 kB that come from afar."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        time.sleep(0.001)
        return np.full(1 << 18, index % 256, np.uint8)


class Integers:
    """A long dataset of its indices. `dataloader-rs` lists them all when it begins."""

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, index: int) -> Any:
        return index


class Rows(Integers):
    """A long dataset of the rows of an array."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: int) -> Any:
        return self.array[index % len(self.array)]


class Repeated:
    """A long dataset of one sample."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        return self.sample


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
