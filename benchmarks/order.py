"""How long does a shuffled epoch take to begin, and with how much memory?

From making the loader until its first batch of 256 is there, without workers; a sample is its index, so the batch is
the order and next to nothing else. The memory is what the process takes at most until then, beyond what it had. Torch
and torchdata draw all indices first, as a tensor and as a list of Python's integers: 48 bytes for each, which a machine
must have, or they are not run. Grain computes them one by one, as Stoker does a block at a time. What an index costs
once the epoch runs is the third figure, the mean over the 100 batches that follow (or as many as there are).

One of eight ranks: Stoker's `distributed="pad"` beside torch's `DistributedSampler`, on the last rank.
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import method
import rivals
from method import Case, Figures, Goal

BATCH = 256
RANKS = 8
SIZES = {"10^3": 10**3, "10^6": 10**6, "10^8": 10**8, "10^10": 10**10}
TORCHS_BYTES = 48  # of an index: 8 in the tensor, 8 in the list, 32 of the integer
FIRST, MEMORY, LATER = "ms to the first batch", "MB until then", "us per index afterwards"


def cases(options: argparse.Namespace) -> list[Case]:
    def case(name: str, size: str, *others: str) -> Case:
        goals = [Goal(FIRST, at_most=5), Goal(MEMORY, at_most=2)] if size == "10^10" else []
        return Case(f"{size} samples, {name}", {rival: {"rival": rival, "n": SIZES[size]} for rival in others}, goals)

    sizes = ["10^6", "10^10"] if options.quick else list(SIZES)
    result = [
        *(case("all of them", size, "stoker", "torch", "torchdata", "Grain") for size in sizes),
        *(case(f"one of {RANKS} ranks", size, "stoker distributed", "torch DistributedSampler") for size in sizes),
    ]
    return rivals.left_out(result) if options.quick else result


def measure(rival: str, n: int) -> Figures:
    from stoker._core.machine import memory

    if rival not in ("stoker", "stoker distributed", "Grain") and memory.available().bytes < TORCHS_BYTES * n:
        return {FIRST: "not run", MEMORY: f"{TORCHS_BYTES * n / 1e6:,.0f} needed", LATER: "not run"}
    try:
        begin = RIVALS[rival]()
    except ImportError:
        return dict.fromkeys((FIRST, MEMORY, LATER), "not installed")
    for _ in itertools.islice(begin(1000), 3):  # what is imported late is imported by now
        pass
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on that of what follows
    before = _peak()
    began = time.perf_counter()
    batches = begin(n)
    next(batches)
    first = time.perf_counter() - began
    memory_then = _peak()
    began = time.perf_counter()
    count = sum(len(batch) for batch in itertools.islice(batches, 100))
    later = (time.perf_counter() - began) / count if count else None
    return {FIRST: 1e3 * first, MEMORY: (memory_then - before) / 1e6} | ({LATER: 1e6 * later} if later else {})


# The rivals: each gives a function from the number of samples to the batches of an epoch


def stoker() -> Callable[[int], Iterator[Any]]:
    DataLoader = method.data_loader("stoker")
    return lambda n: iter(DataLoader(range(n), BATCH, shuffle=True))


def stoker_distributed() -> Callable[[int], Iterator[Any]]:
    DataLoader = method.data_loader("stoker")
    place = {"distributed": "pad", "num_replicas": RANKS, "rank": RANKS - 1}
    return lambda n: iter(DataLoader(range(n), BATCH, shuffle=True, **place))


def torch() -> Callable[[int], Iterator[Any]]:
    DataLoader = method.data_loader("torch")
    return lambda n: iter(DataLoader(range(n), BATCH, shuffle=True))


def torch_distributed() -> Callable[[int], Iterator[Any]]:
    from torch.utils.data import DistributedSampler

    DataLoader = method.data_loader("torch")
    return lambda n: iter(DataLoader(range(n), BATCH, sampler=DistributedSampler(range(n), RANKS, RANKS - 1)))


def torchdata() -> Callable[[int], Iterator[Any]]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return lambda n: iter(StatefulDataLoader(range(n), BATCH, shuffle=True))


def grain() -> Callable[[int], Iterator[Any]]:
    from grain import MapDataset

    def batches(n: int) -> Iterator[Any]:
        shuffled = MapDataset.range(n).seed(0).shuffle().batch(BATCH)
        return (shuffled[number] for number in range(len(shuffled)))  # without the threads of its iterator

    return batches


RIVALS = {
    "stoker": stoker,
    "torch": torch,
    "torchdata": torchdata,
    "Grain": grain,
    "stoker distributed": stoker_distributed,
    "torch DistributedSampler": torch_distributed,
}


def _peak() -> int:
    """The most bytes that this process has had in memory at once."""
    most = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert most is not None
    return 1024 * int(most[1])


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
