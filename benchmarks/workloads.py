"""Is any workload of users slower with Stoker's loader than with torch's?

Workloads as users have them, small enough for the loader to matter, with the same dataset under both loaders. They run
in two workers or in the training process, as the name says. Each measurement is a process of its own: the loader is
made, some batches are read, and then as many as take a second or more. Shown are the time and the processor time of all
processes for a batch. The goal is 1.1 times torch's processor time: on a machine with other work it says what the time
says on a quiet one.

Python objects: batches of 256 that a `collate_fn` leaves as they are: NumPy numbers, dataclasses, named tuples, dates,
lists of 32 integers, dicts. Ready batches: a dataset whose items are batches (`batch_size=None`) of 33 kB. Streams that
draw: groups of 512 rows in a shuffled order, where the stream draws once for a group, and a shuffle buffer, where it
draws for each sample; and one of integers, which draws nothing. Noise: ten numbers of torch's global generator for each
sample. Rows at once: `__getitems__` of an array, 64 small rows each. A classic: images of 28 x 28 with a
label, as tensors, and dicts of text and numbers.

The first loader: the processor time of a program that imports torch and reads a batch of eight integers from its first
loader.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import method
from method import Case, Figures, Goal

CPU, TIME = "CPU-us a batch", "us a batch"
FIRST = "CPU-s until the first batch"
WARM_UP = 40  # batches
RIVALS = ("stoker", "torch")


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.2 if options.quick else 1.0
    return [
        *(
            Case(
                name,
                {rival: {"rival": rival, "workload": name, "seconds": seconds} for rival in RIVALS},
                [Goal(CPU, "torch", at_most=1.1, headline=False)],
            )
            for name in WORKLOADS
        ),
        Case(
            "the first loader",
            {rival: {"rival": rival, "workload": "", "seconds": 0} for rival in RIVALS},
            [Goal(FIRST, "torch", at_most=1.1, headline=False)],
        ),
    ]


def measure(rival: str, workload: str, seconds: float) -> Figures:
    import torch

    torch.set_num_threads(1)
    if not workload:
        return first_loader(rival)
    make, settings = WORKLOADS[workload]
    loader = method.data_loader(rival)(make(), **settings)
    iterator = again(loader)
    for _ in range(WARM_UP):
        next(iterator)
    used, began, count = spent(), time.perf_counter(), 0
    while (now := time.perf_counter()) - began < seconds:
        for _ in range(20):
            next(iterator)
        count += 20
    return {CPU: 1e6 * (spent() - used) / count, TIME: 1e6 * (now - began) / count}


def again(loader: Any) -> Iterator[Any]:
    """The batches of one epoch after the other."""
    while True:
        yield from loader


def spent() -> float:
    """Processor seconds of this process and its descendants, those that have ended too."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in method.family() - {os.getpid()}:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):  # the process's own has its first thread alone
            with contextlib.suppress(OSError):
                used += int(thread.read_text().split()[0]) / 1e9
    return used


def first_loader(rival: str) -> Figures:
    loader = method.data_loader(rival)(range(64), batch_size=8)
    next(iter(loader))
    return {FIRST: time.process_time()}


class Made:
    """A dataset by index whose samples a function makes."""

    def __init__(self, make: Callable[[int], Any], length: int = 1 << 24) -> None:
        self._make = make
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


@dataclasses.dataclass
class Record:
    number: int
    weight: float
    name: str


Pair = collections.namedtuple("Pair", "index weight")
DAY = datetime.datetime(2026, 1, 1)


def ready() -> Any:
    import torch

    batch = torch.rand(64, 129)
    return Made(lambda index: (batch, index))


def rows_at_once() -> Any:
    import numpy as np

    class Rows:
        table = np.random.default_rng(0).random((1 << 16, 8), np.float32)

        def __len__(self) -> int:
            return len(self.table)

        def __getitem__(self, index: int) -> Any:
            return self.table[index]

        def __getitems__(self, indices: list[int]) -> Any:
            return [*self.table[indices]]

    return Rows()


def digits() -> Any:
    import torch

    images, labels = torch.randint(0, 256, (4096, 28, 28), dtype=torch.uint8), torch.randint(0, 10, (4096,))
    return Made(lambda index: (images[index % 4096].float().div(255)[None], int(labels[index % 4096])), 1 << 20)


def stream(samples: Callable[[], Iterator[Any]]) -> Any:
    import torch.utils.data

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return samples()

    return Stream()


def shuffled_groups() -> Any:
    import numpy as np

    table = np.random.default_rng(0).random((256, 512, 8), np.float32)

    def samples() -> Iterator[Any]:
        groups = list(range(len(table)))
        random.shuffle(groups)
        for group in groups:
            order = list(range(512))
            random.shuffle(order)
            rows = table[group]
            for row in order:
                yield rows[row]

    return stream(samples)


def shuffle_buffer() -> Any:
    def samples() -> Iterator[Any]:
        buffer = list(range(1000))
        for number in range(1000, 1 << 24):
            place = random.randrange(1000)
            yield buffer[place]
            buffer[place] = number

    return stream(samples)


def integers() -> Any:
    return stream(lambda: iter(range(1 << 24)))


def noise() -> Any:
    import torch

    return Made(lambda index: torch.rand(10), 1 << 20)


def numbers() -> Any:
    import numpy as np

    return Made(np.float32)


OBJECTS = {"batch_size": 256, "num_workers": 2, "collate_fn": list}
WORKLOADS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "NumPy numbers, 2 workers": (numbers, OBJECTS),
    "dataclasses, 2 workers": (lambda: Made(lambda index: Record(index, 0.5, "a name")), OBJECTS),
    "named tuples, 2 workers": (lambda: Made(lambda index: Pair(index, 0.5)), OBJECTS),
    "dates, 2 workers": (lambda: Made(lambda index: DAY + datetime.timedelta(index % 4096)), OBJECTS),
    "lists of integers, 2 workers": (lambda: Made(lambda index: list(range(index % 7, 32))), OBJECTS),
    "dicts, 2 workers": (lambda: Made(lambda index: {"text": f"text {index}", "length": index}), OBJECTS),
    "ready batches of 33 kB, in process": (ready, {"batch_size": None}),
    "shuffled groups of a stream, in process": (shuffled_groups, {"batch_size": 64}),
    "a shuffle buffer, in process": (shuffle_buffer, {"batch_size": 64}),
    "integers of a stream, in process": (integers, {"batch_size": 64}),
    "noise, in process": (noise, {"batch_size": 64, "shuffle": True}),
    "rows at once, in process": (rows_at_once, {"batch_size": 64, "shuffle": True}),
    "digits with labels, in process": (digits, {"batch_size": 64, "shuffle": True}),
    "digits with labels, 2 workers": (digits, {"batch_size": 64, "shuffle": True, "num_workers": 2}),
}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=7), cases, measure)
