"""Does `num_workers="auto"` find the best number of workers?

Each workload of the other scripts, with the number that `"auto"` finds and with 0, 1, 2 and 4 workers. The training
loop reads one byte of every page and has no work of its own, so it always waits: that is where the number matters most.
Batches are counted after a warm-up of 20, with `"auto"` also after it has decided; how many batches that took is told,
and at what rate they came. The goal is nine tenths of the best of each round, whichever that was. Processor time and
memory are those of all processes, while they work.

Samples that only wait need no CPUs: there `"auto"` may take more workers than these, up to four for each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import method
from method import Case, Figures, Goal

NUMBERS = {"no workers": 0, "1 worker": 1, "2 workers": 2, "4 workers": 4}
BEST = "the best of them"
WARM_UP = 20
LONGEST = 30.0
"""Seconds that it may take to decide."""

CPU, MEMORY = "CPU-ms per batch", "MB, all processes"
RATE, FOUND, AFTER, MEANWHILE = "batches/s", "workers", "batches until decided", "batches/s until decided"


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.3 if options.quick else 1.2
    workloads = [*WORKLOADS]
    if options.data.is_dir():
        workloads.append("photographs")
    else:
        print(f"no photographs in {options.data}: that case is left out", file=sys.stderr)

    def rival(workload: str, workers: str) -> dict[str, Any]:
        return {"workload": workload, "workers": workers, "seconds": seconds, "data": str(options.data)}

    return [
        Case(
            workload,
            {"auto": rival(workload, "auto"), **{number: rival(workload, number) for number in NUMBERS}},
            [Goal(RATE, against=BEST, at_least=0.9)],
            {BEST: lambda found: {RATE: max(found[number][RATE] for number in NUMBERS)}},
        )
        for workload in workloads
    ]


def measure(workload: str, workers: str, seconds: float, data: str) -> Figures:
    import torch

    import stoker

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        make = photographs(Path(data)) if workload == "photographs" else WORKLOADS[workload](Path(folder))
        number = NUMBERS.get(workers, "auto")
        events: list[Any] = []  # one of them tells that it has decided
        loader: Any = stoker.DataLoader(num_workers=number, shuffle=True, on_event=events.append, **make)
        return counted(loader, events, workers == "auto", seconds)


def counted(loader: Any, events: list[Any], decides: bool, seconds: float) -> Figures:
    began, first, start, used = 0.0, 0.0, 0, 0.0
    batches = epochs(loader)
    for count, batch in enumerate(batches, 1):
        read(batch)
        now = time.perf_counter()
        first = first or now
        if began and now - began > seconds:
            break
        if not began and count >= WARM_UP and (not decides or events or now - first > LONGEST):
            used = method.cpu_seconds()
            began, start = time.perf_counter(), count
    made, used = count - start, method.cpu_seconds() - used
    figures: Figures = {
        RATE: made / (now - began),
        FOUND: str(loader.num_workers),
        CPU: 1e3 * used / made,
        MEMORY: method.memory_of_all() / 1e6,
    }
    batches.close()
    if decides:
        figures |= {AFTER: start, MEANWHILE: (start - 1) / (began - first)}
    return figures


def epochs(loader: Any) -> Generator[Any]:
    while True:
        yield from loader


def read(batch: Any) -> None:
    """A byte of every page of the large leaves."""
    import torch

    for leaf in batch.values() if isinstance(batch, dict) else [batch] if torch.is_tensor(batch) else batch:
        if torch.is_tensor(leaf) and leaf.nbytes >= 4096:
            leaf.reshape(-1).view(torch.uint8)[::4096].max()


# Workloads: the arguments of a loader


def tensors(*shape: int, samples: int) -> Callable[[Path], dict[str, Any]]:
    def make(folder: Path) -> dict[str, Any]:
        import torch
        from transport import BATCH

        return {"dataset": Held(torch.rand(samples, *shape).unbind()), "batch_size": BATCH}

    return make


class Held:
    """Tensors in memory, again and again."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


def rows(folder: Path) -> dict[str, Any]:
    import torch
    from rows import BATCH, WIDTH

    import stoker

    return {"dataset": stoker.TensorDataset(torch.rand(1_000_000, WIDTH)), "batch_size": BATCH}


def tokens(folder: Path) -> dict[str, Any]:
    import numpy as np
    from tokens import BATCH, LENGTH

    from stoker.datasets.tokens import TokenWindows

    path = folder / "tokens.bin"
    np.random.default_rng(0).integers(0, 50_000, 100_000_000, np.uint16).tofile(path)
    return {"dataset": TokenWindows(path, LENGTH), "batch_size": BATCH}


def dicts(folder: Path) -> dict[str, Any]:
    from dicts import BATCH, Dicts

    return {"dataset": Dicts(), "batch_size": BATCH}


def ragged(folder: Path) -> dict[str, Any]:
    import numpy as np
    from ragged import BATCH

    from stoker import PadCollator

    random = np.random.default_rng(0)
    texts = [random.integers(0, 50_000, length).tolist() for length in random.integers(20, 401, 100_000)]
    return {"dataset": texts, "batch_size": BATCH, "collate_fn": PadCollator()}


def uneven(folder: Path) -> dict[str, Any]:
    from latency import Waits

    return {"dataset": Waits(0), "batch_size": 64}


def photographs(data: Path) -> dict[str, Any]:
    from images import BATCH, EXAMPLES

    sys.path.insert(0, str(EXAMPLES))
    from train_images import Photos

    return {"dataset": Photos(data, "train"), "batch_size": BATCH}


WORKLOADS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "tensors, 38 MB": tensors(3, 224, 224, samples=128),
    "tensors, 3 MB": tensors(3, 64, 64, samples=1024),
    "tensors, 128 kB": tensors(512, samples=4096),
    "rows": rows,
    "tokens": tokens,
    "dicts": dicts,
    "ragged texts": ragged,
    "uneven samples that wait": uneven,
}


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs")
    method.main(arguments, cases, measure)
