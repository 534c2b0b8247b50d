"""How well is waiting hidden, where samples wait for a disk or a network?

A sample sleeps, and is 1,000 float32 then: nothing is computed, so what a loader gives is the number of samples that it
has under way, unless it lets some of these places stand empty. The ideal is that none ever does: then the seconds that
the delivered samples have slept are those that passed, times the places.
Batches come in order; the trainer only counts them. Counting begins when some batches have come, so that the start is
left out; it is told apart as the time to the first batch.

The same wait for all: a sample sleeps for 20 ms. Stoker has 2 workers of 16 threads; torch the same 2 workers, and 32,
which is its way to as many places; torchdata's nodes and SPDL 32 threads in the trainer's process, with each sample a
task, as they advise. With batches of 8, half of the threads would have nothing to do with one batch at a time.

Uneven waits: 95 % of the samples sleep for 1 ms and 5 %, scattered, for 50 ms; two workers of one thread each. A batch
waits for its slowest sample, and the next ones are to be made meanwhile. "bare" is two threads in a loop that take the
next sample each, without batches or an order: what is left of the ideal where sleeping and waking have their price.

Short waits: samples that sleep for 2 ms, in batches of 8, four workers of one thread each. A worker has little to do
at a time, so what is between one thing and the next is a large part of it.

Counted are whole turns of the workers, some seconds long. CPU-ms and memory (PSS, behind the counting) are those of all
processes; the first batch is waited for with all that is needed imported.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import method
import numpy as np
from method import Case, Figures, Goal

WORKERS, THREADS = 2, 16
EVEN, SHORT, LONG, RARE = 0.02, 0.001, 0.05, 20
BRIEF = 0.002
RATE, SHARE, FIRST = "samples/s", "of the ideal rate", "seconds to the first batch"
CPU, MEMORY = "CPU-ms per sample", "MB, all processes"
PLENTY = 1_000_000
WARM_UP = 2  # batches of each worker


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.5 if options.quick else 4.0
    goals = [Goal(SHARE, at_least=0.9)]

    def rival(name: str, batch: int, wait: float = EVEN, workers: int = WORKERS, threads: int = 1) -> dict[str, Any]:
        how = {"batch": batch, "wait": wait, "workers": workers, "threads": threads}
        return {"rival": name, "seconds": seconds, **how}

    def even(batch: int) -> dict[str, dict[str, Any]]:
        all_places = WORKERS * THREADS
        return {
            f"stoker, {WORKERS} x {THREADS}": rival("stoker", batch, threads=THREADS),
            f"torch, {WORKERS}": rival("torch", batch),
            f"torch, {all_places}": rival("torch", batch, workers=all_places),
            "torchdata nodes": rival("torchdata nodes", batch, workers=1, threads=all_places),
            "SPDL": rival("SPDL", batch, workers=1, threads=all_places),
        }

    return [
        Case("samples that wait 20 ms, batches of 64", even(64), goals),
        Case("samples that wait 20 ms, batches of 8", even(8), goals),
        Case(
            "uneven samples, batches of 64, 2 workers",
            {name: rival(name, 64, wait=0) for name in ("stoker", "torch", "bare")},
            goals,
        ),
        Case(
            "samples that wait 2 ms, batches of 8, 4 workers",
            {name: rival(name, 8, BRIEF, workers=4) for name in ("stoker", "torch", "bare")},
            [Goal(SHARE, "torch", at_least=0.95)],
        ),
    ]


class Waits:
    """Samples that wait: so many seconds each, or unevenly if that is 0."""

    def __init__(self, wait: float) -> None:
        self._wait = wait

    def __len__(self) -> int:
        return PLENTY

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds(index))
        return np.full(1000, index, np.float32)

    def seconds(self, index: int) -> float:
        """How long this one takes: which are slow follows no pattern."""
        scattered = (index * 2654435761 % 2**32) >> 8
        return self._wait or (LONG if scattered % RARE == 0 else SHORT)


def measure(rival: str, batch: int, wait: float, workers: int, threads: int, seconds: float) -> Figures:
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than CPUs: that is what they are
    dataset = Waits(wait)
    try:
        for package in NEEDS[rival]:
            importlib.import_module(package)
    except ImportError:
        return dict.fromkeys((RATE, SHARE, FIRST, CPU, MEMORY), "not installed")
    used, began = method.cpu_seconds(), time.perf_counter()
    batches = RIVALS[rival](dataset, batch, workers, threads)
    before = len(next(batches))
    first = time.perf_counter() - began
    before += sum(len(next(batches)) for _ in range(WARM_UP * workers))
    since, count, slept = time.perf_counter(), 0, 0.0
    while time.perf_counter() - since < seconds:
        for _ in range(workers):
            indices = [int(sample[0]) for sample in next(batches)]
            count += len(indices)
            slept += sum(map(dataset.seconds, indices))
    passed = time.perf_counter() - since
    memory = method.memory_of_all()
    batches.close()
    return {
        RATE: count / passed,
        SHARE: slept / passed / (workers * threads),
        FIRST: first,
        CPU: 1e3 * (method.cpu_seconds() - used) / (before + count),
        MEMORY: memory / 1e6,
    }


# The rivals: each gives batches, in a random order


def stoker(dataset: Waits, batch: int, workers: int, threads: int) -> Iterator[Any]:
    import stoker

    with stoker.DataLoader(
        dataset, batch, shuffle=True, seed=0, num_workers=workers, threads_per_worker=threads
    ) as loader:
        yield from loader


def torch(dataset: Waits, batch: int, workers: int, threads: int) -> Iterator[Any]:
    import torch.utils.data

    iterator = iter(torch.utils.data.DataLoader(dataset, batch, shuffle=True, num_workers=workers))  # type: ignore[arg-type]
    yield from iterator
    del iterator


def nodes(dataset: Waits, batch: int, workers: int, threads: int) -> Iterator[Any]:
    import torchdata.nodes as theirs
    from torch.utils.data import RandomSampler, default_collate

    samples: Any = theirs.SamplerWrapper(RandomSampler(dataset))
    samples = theirs.ParallelMapper(samples, dataset.__getitem__, num_workers=threads, method="thread")
    batches = theirs.Mapper(theirs.Batcher(samples, batch), default_collate)
    yield from theirs.Loader(theirs.Prefetcher(batches, prefetch_factor=2))


def spdl(dataset: Waits, batch: int, workers: int, threads: int) -> Iterator[Any]:
    from spdl.pipeline import PipelineBuilder
    from torch.utils.data import RandomSampler, default_collate

    builder = PipelineBuilder().add_source(iter(RandomSampler(dataset)))  # type: ignore[arg-type]
    builder = builder.pipe(dataset.__getitem__, concurrency=threads, output_order="input")
    pipeline = builder.aggregate(batch).pipe(default_collate).add_sink(2).build(num_threads=threads + 1)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator(timeout=60)


def bare(dataset: Waits, batch: int, workers: int, threads: int) -> Iterator[Any]:
    made: list[Any] = []
    indices = itertools.count()
    ended = threading.Event()

    def make() -> None:
        while not ended.is_set():
            made.append(dataset[next(indices)])

    running = [threading.Thread(target=make) for _ in range(workers * threads)]
    for thread in running:
        thread.start()
    try:
        while True:
            while len(made) < batch:
                time.sleep(SHORT)
            some, made[:batch] = made[:batch], []
            yield some
    finally:
        ended.set()
        for thread in running:
            thread.join()


RIVALS = {"stoker": stoker, "torch": torch, "torchdata nodes": nodes, "SPDL": spdl, "bare": bare}
NEEDS = {
    "stoker": ("torch", "stoker"),
    "torch": ("torch",),
    "torchdata nodes": ("torch", "torchdata.nodes"),
    "SPDL": ("torch", "spdl.pipeline"),
    "bare": (),
}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
