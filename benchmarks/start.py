"""How long until training has its first batch, and what do short epochs cost?

Time to the first batch: from `iter(loader)` until the first `next()` has returned, with two workers and batches of 64,
in a process that has made its dataset and has not used a loader before. The second loader is made in the same process
when the first is gone, as a run makes one to validate. Forked workers are compared with torch's under fork, clean ones
(a new interpreter that is sent the dataset) with torch's under forkserver and under spawn. The datasets: a small one,
a NumPy array of 1 GB, a list of 1.2 million paths, and tensors, for which a clean worker has to import torch. That is
most of what torch's workers do then, each for itself, and all that a zygote does, once for all of its workers: so these
are also measured with eight.

Import: `import stoker`, which loads neither torch nor NumPy, and then its `DataLoader`, which loads both.

Short epochs: ten times an epoch of 20 batches of 64 small samples, whose workers are started anew each time.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import method
from method import Case, Figures, Goal

WORKERS = 2
FIRST, SECOND = "seconds to the first batch", "seconds to that of a second loader"
IMPORT, IMPORT_ALL = "ms to import stoker", "ms to import its DataLoader too"
EPOCHS = "seconds for 10 epochs"
DATASETS = {"small": "a small dataset", "array": "an array of 1 GB", "paths": "1.2 million paths"}


def cases(options: argparse.Namespace) -> list[Case]:
    def rivals(*methods: tuple[str, str], **arguments: Any) -> dict[str, dict[str, Any]]:
        common = {"quick": options.quick, **arguments}
        return {
            rival if rival == "stoker" else f"torch, {start}": {"rival": rival, "start": start, **common}
            for rival, start in methods
        }

    forked = [("stoker", "fork"), ("torch", "fork")]
    clean = [("stoker", "spawn"), ("torch", "forkserver"), ("torch", "spawn")]
    at_most_forked, at_most_clean = Goal(FIRST, "torch, fork", at_most=1), Goal(FIRST, "torch, forkserver", at_most=0.5)
    at_most_spawned = Goal(FIRST, "torch, spawn", at_most=0.5, headline=False)
    result = [
        Case("import", rivals(("stoker", ""), dataset="")),
        *(
            Case(f"first batch, forked, {name}", rivals(*forked, dataset=dataset), [at_most_forked])
            for dataset, name in DATASETS.items()
        ),
        *(
            Case(f"first batch, clean, {name}", rivals(*clean, dataset=dataset), [at_most_clean, at_most_spawned])
            for dataset, name in {**DATASETS, "tensors": "a small dataset of tensors"}.items()
        ),
        Case(
            "first batch, clean, a small dataset of tensors, 8 workers",
            rivals(*clean, dataset="tensors", workers=8),
            [at_most_clean, at_most_spawned],
        ),
        Case(
            "ten short epochs, forked",
            rivals(*forked, dataset="small", epochs=10),
            [Goal(EPOCHS, "torch, fork", at_most=1)],
        ),
    ]
    if options.quick:
        result = [case for case in result if not any(name in case.name for name in ("1 GB", "clean, a small"))]
    return result


def measure(rival: str, start: str, dataset: str, quick: bool, epochs: int = 0, workers: int = WORKERS) -> Figures:
    if not dataset:
        return imports()
    DataLoader = method.data_loader(rival)
    items = make(dataset, quick)
    loader = DataLoader(items, batch_size=64, num_workers=workers, multiprocessing_context=start)
    began = time.perf_counter()
    if epochs:
        batches = sum(1 for _ in range(epochs) for _ in loader)
        assert batches == 20 * epochs
        return {EPOCHS: time.perf_counter() - began}
    figures = {}
    for name in (FIRST, SECOND):
        iterator = iter(loader)
        next(iterator)
        figures[name] = time.perf_counter() - began
        del iterator, loader
        began = time.perf_counter()
        loader = DataLoader(items, batch_size=64, num_workers=workers, multiprocessing_context=start)
    del loader
    return figures


def imports() -> Figures:
    began = time.perf_counter()
    import stoker

    alone = time.perf_counter() - began
    _ = stoker.DataLoader
    return {IMPORT: 1e3 * alone, IMPORT_ALL: 1e3 * (time.perf_counter() - began)}


def make(dataset: str, quick: bool) -> Any:
    """20 batches of 64 at least."""
    import numpy as np

    if dataset == "array":
        return Rows(np.ones(((1 << 24 if quick else 1 << 28) // 1024, 1024), np.float32))
    if dataset == "paths":
        return Paths([f"train/{i % 1000:03d}/{i:08d}.jpg" for i in range(60_000 if quick else 1_200_000)])
    rows = np.ones((20 * 64, 8), np.float32)  # above 64 kB its pipes would make torch start one worker after the other
    if dataset == "tensors":
        import torch

        return Rows(torch.from_numpy(rows))
    return Rows(rows)


class Rows:
    """Samples are rows of an array, or of a tensor."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Paths:
    """Samples are what is known from their paths alone."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return int(self.paths[index].split("/")[1])


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
