"""How much memory do workers take beside the dataset?

Four workers and an array of 1 GB (2^28 float32); four and eight workers (sixteen where objects can be shared) and a
list of 5 million tuples (path, label), also as `stoker.columns`; a list of one million beside them. The figure is the
memory of all processes (PSS: a page that n of them share counts 1/n in each) when nine tenths of a shuffled epoch
have been read, so that each worker has touched the records everywhere, minus the same with a tiny dataset in the same
program before. The trainer's own copy is in it: "the list alone" is what it takes without a loader. Once more in a
second epoch, for which there are new workers. The time is that of the whole first epoch, a full pass, without the
looks at the memory.

A Python object that a forked worker looks at is copied with its page, because the look changes its reference count.
Where Python can be kept from counting (3.12 and 3.13), Stoker does so, and `stoker.freeze` does so for certain: these
cases are measured where `--python312` names such an interpreter. It needs Stoker, but no torch.
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from typing import Any

import method
from method import Case, Figures, Goal

method.LONGEST = 900.0
BATCH = 1000
ALL = "GB, all processes"
AGAIN = "GB, all processes, second epoch"
ALONE = "GB, dataset alone"
PASS = "seconds for a full pass"
LIST = "the list alone"


def cases(options: argparse.Namespace) -> list[Case]:
    def rivals(workers: int, python: str | None = None, **by_name: tuple[str, str, str]) -> dict[str, dict[str, Any]]:
        common = {"workers": workers, "quick": options.quick, **({"python": python} if python else {})}
        return {
            name.replace("_", " "): {"rival": rival, "start": start, "dataset": dataset, **common}
            for name, (rival, start, dataset) in by_name.items()
        }

    def within(times: float) -> list[Goal]:
        return [Goal(name, LIST, at_most=times) for name in (ALL, AGAIN)]

    array, tuples = ("fork", "array"), ("fork", "tuples")
    result = [
        Case(
            "array of 1 GB, forked",
            rivals(4, stoker=("stoker", *array), torch_fork=("torch", *array)),
            [Goal(ALL, at_most=1.2), Goal(AGAIN, at_most=1.2)],
        ),
        Case(
            "array of 1 GB, clean",
            rivals(4, stoker=("stoker", "spawn", "array"), torch_forkserver=("torch", "forkserver", "array")),
            [Goal(ALL, at_most=2.2), Goal(AGAIN, at_most=2.2)],
        ),
    ]
    million = {"stoker": ("stoker", "fork", "million"), "torch_fork": ("torch", "fork", "million")}
    result.append(
        Case("1 million tuples, 4 workers", rivals(4, **million, **{LIST.replace(" ", "_"): ("", "", "million")}))
    )
    columns, alone = {"columns": ("stoker", "fork", "columns")}, {LIST.replace(" ", "_"): ("", "", "tuples")}
    for workers in (4, 8, 16):
        name = f"5 million tuples, {workers} workers"
        if workers < 16:
            untouched = {"stoker": ("stoker", *tuples), "torch_fork": ("torch", *tuples), **alone}
            result += [
                Case(name, rivals(workers, **untouched)),
                Case(f"{name}, as columns", rivals(workers, **columns, **alone), within(0.5)),
            ]
        if options.python312:
            name, ours = f"{name}, without torch, Python 3.12", {"stoker": ("stoker", *tuples), **alone}
            frozen = {"stoker_freeze": ("stoker", "fork", "frozen"), **alone}
            result += [
                Case(name, rivals(workers, options.python312, **ours), within(2.2)),
                Case(f"{name}, frozen", rivals(workers, options.python312, **frozen), within(1.3)),
            ]
    return [
        case for case in result if not (options.quick and case.name.partition(", ")[2].startswith(("8", "16", "clean")))
    ]


def measure(rival: str, start: str, dataset: str, quick: bool, workers: int) -> Figures:

    import numpy  # noqa: F401 (before the first look, so that it is not taken for the dataset)

    warnings.simplefilter("ignore")  # of more workers than processors
    without = with_workers(rival, start, Items([(0, 0)] * (2 * workers * BATCH)), workers)[0] if rival else 0
    gc.collect()
    before = method.memory_of_all()
    items = make(dataset, quick)
    gc.collect()
    alone = method.memory_of_all() - before
    if not rival:
        return {ALL: alone / 1e9, AGAIN: alone / 1e9, ALONE: alone / 1e9}
    used, again, seconds = with_workers(rival, start, Items(items), workers)
    return {ALL: (used - without) / 1e9, AGAIN: (again - without) / 1e9, ALONE: alone / 1e9, PASS: seconds}


def with_workers(rival: str, start: str, dataset: Items, workers: int) -> tuple[int, int, float]:
    """Memory of all processes when the workers of a first and a second epoch have seen nine tenths of the dataset, and
    the seconds for all of it, once."""
    DataLoader = method.data_loader(rival)
    options = {"batch_size": BATCH, "shuffle": True, "num_workers": workers, "collate_fn": len}
    loader = DataLoader(dataset, multiprocessing_context=start, **options)
    used, seconds = [0, 0], [0.0, 0.0]
    for epoch in range(2):
        began = time.perf_counter()
        for count, _ in enumerate(loader, 1):
            if count == len(loader) * 9 // 10:
                looking = time.perf_counter()
                used[epoch] = method.memory_of_all()
                began += time.perf_counter() - looking
        seconds[epoch] = time.perf_counter() - began
    return *used, seconds[0]


def make(dataset: str, quick: bool) -> Any:
    import numpy as np

    if dataset == "array":
        return np.ones(((1 << 24 if quick else 1 << 28) // 1024, 1024), np.float32)
    count = (1_000_000 if dataset == "million" else 5_000_000) // (100 if quick else 1)
    records = ((f"train/{i % 1000:03d}/{i:08d}.jpg", i % 1000) for i in range(count))
    if dataset in ("tuples", "million"):
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
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--python312", help="another interpreter, 3.12 or later, for more cases")
    method.main(arguments, cases, measure)
