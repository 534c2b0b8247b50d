"""What do births cost: first batches, later loaders, and loaders that only wait?

Thirty first batches: thirty times `iter(loader)`, one batch of 64 samples of a small dataset of tensors, and the end of
the iterator, with two forked workers, as programs do that make many short-lived loaders.

Later loaders: the first batch of a second and a third loader with eight clean workers, while the first is still there,
as of one that validates. The dataset holds tensors, so that each rival's workers need torch; the figure is the larger
of both. The first loader's is shown beside.

Idle loaders: the memory of ten loaders with a persistent forked worker each, when each has delivered one epoch.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import method
from method import Case, Figures, Goal

THIRTY, LATER, FIRST = "seconds for thirty", "seconds to a later loader's first batch", "seconds to the first loader's"
MEMORY = "MB, all processes"


def cases(options: argparse.Namespace) -> list[Case]:
    def rivals(start: str, **arguments: Any) -> dict[str, dict[str, Any]]:
        return {
            "stoker" if rival == "stoker" else f"torch, {start}": {"rival": rival, "start": start, **arguments}
            for rival in ("stoker", "torch")
        }

    clean = [
        Case(f"later loaders, {start}, 8 workers", rivals(start, workers=8), [Goal(LATER, at_most=0.3)])
        for start in ("forkserver", "spawn")
    ]
    return [
        Case("thirty first batches", rivals("fork", times=30), [Goal(THIRTY, "torch, fork", at_most=1)]),
        *([] if options.quick else clean),
        Case("ten idle loaders", rivals("fork", idle=10), [Goal(MEMORY, "torch, fork", at_most=1.1)]),
    ]


def measure(rival: str, start: str, times: int = 0, workers: int = 2, idle: int = 0) -> Figures:
    import warnings

    import torch

    warnings.simplefilter("ignore")  # of more workers than processors
    kind, dataset = method.data_loader(rival), Rows(torch.ones(20 * 64, 8))

    def loader(**settings: Any) -> Any:
        return kind(dataset, batch_size=64, multiprocessing_context=start, **settings)

    def first_batch(loader: Any) -> float:
        began = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        seconds = time.perf_counter() - began
        del iterator
        return seconds

    if idle:
        loaders = [loader(num_workers=1, persistent_workers=True) for _ in range(idle)]
        for each in loaders:
            assert sum(1 for _ in each) == 20
        return {MEMORY: method.memory_of_all() / 1e6}
    if times:
        began = time.perf_counter()
        for _ in range(times):
            first_batch(loader(num_workers=workers))
        return {THIRTY: time.perf_counter() - began}
    loaders = [loader(num_workers=workers) for _ in range(3)]
    first, *later = [first_batch(each) for each in loaders]
    return {LATER: max(later), FIRST: first}


class Rows:
    """Samples are rows of a tensor."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=7), cases, measure)
