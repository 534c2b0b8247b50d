"""How much memory do workers take beside the dataset?

Four workers, and a dataset that is large: an array of 1 GB (2^28 float32), a list of a million tuples (path, label,
weight), and the same records as `stoker.columns`. The figure is the memory of all processes (PSS: a page that n of them
share counts 1/n in each) when nine tenths of a shuffled epoch have been read, so that each worker has touched the
records everywhere, minus the same with a tiny dataset in the same program before. The trainer's own copy is in it: what
the workers add is the difference from "dataset alone".

A Python object that a forked worker looks at is copied with its page, because the look changes its reference count.
Where Python can be kept from counting (3.12 and 3.13), Stoker does so, and `stoker.freeze` does so for certain: that
case is measured where `--python312` names such an interpreter. It needs Stoker, but no torch.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import method
from method import Case, Figures, Goal

WORKERS = 4
BATCH = 1000
ALL = "GB, all processes"
ALONE = "GB, dataset alone"


def cases(options: argparse.Namespace) -> list[Case]:
    def rivals(**by_name: tuple[str, str, str]) -> dict[str, dict[str, Any]]:
        return {
            name.replace("_", " "): {"rival": rival, "start": start, "dataset": dataset, "quick": options.quick}
            for name, (rival, start, dataset) in by_name.items()
        }

    result = [
        Case(
            "array of 1 GB, forked",
            rivals(stoker=("stoker", "fork", "array"), torch_fork=("torch", "fork", "array")),
            [Goal(ALL, at_most=1.2)],
        ),
        Case(
            "array of 1 GB, clean",
            rivals(stoker=("stoker", "spawn", "array"), torch_forkserver=("torch", "forkserver", "array")),
            [Goal(ALL, at_most=2.2)],
        ),
        Case(
            "a million tuples, forked",
            rivals(
                stoker=("stoker", "fork", "tuples"),
                torch_fork=("torch", "fork", "tuples"),
                stoker_columns=("stoker", "fork", "columns"),
            ),
        ),
    ]
    if options.python312:
        newer = rivals(
            stoker=("stoker", "fork", "tuples"),
            stoker_freeze=("stoker", "fork", "frozen"),
            stoker_columns=("stoker", "fork", "columns"),
        )
        newer = {name: {**arguments, "python": options.python312} for name, arguments in newer.items()}
        result.append(Case("a million tuples, forked, without torch, Python 3.12", newer))
    return result


def measure(rival: str, start: str, dataset: str, quick: bool) -> Figures:
    without = with_workers(rival, start, Items([(0, 0, 0)] * (2 * WORKERS * BATCH)))
    gc.collect()
    before = method.memory_of_all()
    items = make(dataset, quick)
    gc.collect()
    alone = method.memory_of_all() - before
    return {ALL: (with_workers(rival, start, Items(items)) - without) / 1e9, ALONE: alone / 1e9}


def with_workers(rival: str, start: str, dataset: Items) -> int:
    """Memory of all processes when the workers have seen nine tenths of the dataset."""
    DataLoader = method.data_loader(rival)
    options = {"batch_size": BATCH, "shuffle": True, "num_workers": WORKERS, "collate_fn": len}
    loader = DataLoader(dataset, multiprocessing_context=start, **options)
    iterator = iter(loader)
    for _ in range(len(loader) * 9 // 10):
        next(iterator)
    used = method.memory_of_all()
    del iterator
    return used


def make(dataset: str, quick: bool) -> Any:
    import numpy as np

    if dataset == "array":
        return np.ones(((1 << 24 if quick else 1 << 28) // 1024, 1024), np.float32)
    records = ((f"train/{i % 1000:03d}/{i:08d}.jpg", i % 1000, i / 7) for i in range(50_000 if quick else 1_000_000))
    if dataset == "tuples":
        return list(records)
    import stoker

    if dataset == "columns":
        return stoker.columns(records)
    return stoker.freeze(list(records))


class Items:
    """Samples are single numbers, for which a whole item of the dataset was read."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        item = self.items[index]
        return item[1] if isinstance(item, tuple) else float(item.sum())


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=1)
    arguments.add_argument("--python312", help="another interpreter, 3.12 or later, for one more case")
    method.main(arguments, cases, measure)
