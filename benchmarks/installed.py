"""What does `stoker.install()` cost beside `stoker.DataLoader`, and where is it slower than torch's loader?

The same script in three ways, with torch's `DataLoader` and `shuffle=True`: *installed* (after `stoker.install()`),
*torch* (without it), and *stoker* (`stoker.DataLoader` with torch's `RandomSampler`). Two workers, new ones for each
epoch, or none. Counted are the CPU-seconds of the training process for each epoch, from `iter()` to the end, and the
time of the epoch. The first epoch is not counted: it imports and compiles.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from typing import Any

import method
from method import Case, Figures, Goal

RIVALS = ("installed", "stoker", "torch")
CPU, SECONDS = "trainer's CPU-seconds per epoch", "seconds per epoch"
BATCH, WORKERS = 32, 2
WORKLOADS = {
    "integers, no worker": 40_000,
    "integers": 40_000,
    "integers, workers kept": 40_000,
    "rows of 16 kB": 12_000,
    "pictures of 588 kB": 512,
    "dictionaries of 6 fields": 9_600,
    "a stream of rows": 12_800,
}
"""Samples in an epoch, by workload."""


def cases(options: argparse.Namespace) -> list[Case]:
    epochs = 1 if options.quick else 6
    return [
        Case(
            name,
            {rival: {"rival": rival, "workload": name, "epochs": epochs} for rival in RIVALS},
            [Goal(CPU, "stoker", at_most=1.02), Goal(SECONDS, "torch", at_most=1, headline=False)],
        )
        for name in WORKLOADS
    ]


def measure(rival: str, workload: str, epochs: int) -> Figures:
    import torch.utils.data

    import stoker

    if rival == "installed":
        stoker.install(images=False)
    dataset = dataset_of(workload, WORKLOADS[workload])
    given: dict[str, Any] = {"batch_size": BATCH, "num_workers": 0 if workload.endswith("no worker") else WORKERS}
    given["persistent_workers"] = workload.endswith("kept")
    is_stream = isinstance(dataset, torch.utils.data.IterableDataset)
    torch.manual_seed(0)
    if rival != "stoker":
        loader: Any = torch.utils.data.DataLoader(dataset, shuffle=None if is_stream else True, **given)
    elif is_stream:
        loader = stoker.DataLoader(dataset, shard="none", **given)
    else:
        loader = stoker.DataLoader(dataset, sampler=torch.utils.data.RandomSampler(dataset), **given)
    assert (stoker.loader_of(loader) is None) is (rival == "torch")
    batches = sum(1 for _ in loader)
    assert batches == WORKLOADS[workload] // BATCH
    cpu, began = _cpu(), time.perf_counter()
    for _ in range(epochs):
        for _ in loader:
            pass
    return {CPU: (_cpu() - cpu) / epochs, SECONDS: (time.perf_counter() - began) / epochs}


def _cpu() -> float:
    """The processor time of this process and its threads, without its workers'."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def dataset_of(workload: str, samples: int) -> Any:
    """A dataset of torch's of so many samples."""
    import torch

    class Made(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return samples

        def __getitem__(self, index: int) -> Any:
            if workload.startswith("integers"):
                return index
            if workload.startswith("rows"):
                return row, index
            if workload.startswith("pictures"):
                return picture, index
            return {f"field {k}": short + k for k in range(6)}

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = torch.utils.data.get_worker_info()
            per_worker = samples // BATCH // info.num_workers * BATCH
            return ((row, index) for index in range(info.id * per_worker, (info.id + 1) * per_worker))

    row, picture, short = torch.rand(4096), torch.rand(3, 224, 224), torch.rand(8)
    return Stream() if workload.startswith("a stream") else Made()


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
