"""How long until a large batch is there, and what is under way with more workers?

One batch of 1,024 photographs, decoded, cropped and mirrored by two workers: from `iter(loader)` until the first
`next()` has returned. The limit are two bare processes, forked from one that has imported all there is, each of which
makes half of the samples and writes them into memory that both share.

More workers: samples of 600 kB that wait 10 ms for something that needs no processor (as a file server does), batches
of 64, 2 and 8 workers. The memory is that of all processes and batches on their way (PSS), when the trainer has taken
12 batches and rests.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import time
from pathlib import Path
from typing import Any

import method
from method import Case, Figures, Goal

EXAMPLES = Path(__file__).parents[1] / "examples"
WORKERS = 2
FIRST, MEMORY = "seconds to the first batch", "MB, all processes"


def cases(options: argparse.Namespace) -> list[Case]:
    if not options.data.is_dir():
        raise SystemExit(f"no photographs in {options.data}: `python examples/make_photos.py --data {options.data}`")
    count = 128 if options.quick else 1024
    photographs = {
        rival: {"rival": rival, "data": str(options.data), "count": count}
        for rival in ("stoker", "torch", "two bare processes")
    }
    return [
        Case(
            f"one batch of {count:,} photographs",
            photographs,
            [Goal(FIRST, "two bare processes", at_most=1.2), Goal(FIRST, "torch", at_most=1)],
        ),
        *(
            Case(
                f"samples that wait, {workers} workers",
                {rival: {"rival": rival, "workers": workers} for rival in ("stoker", "torch")},
                [Goal(FIRST, "torch", at_most=1), Goal(MEMORY, "torch", at_most=1)],
            )
            for workers in ((8,) if options.quick else (2, 8))
        ),
    ]


def measure(rival: str, data: str = "", count: int = 0, workers: int = WORKERS) -> Figures:
    return waiting(rival, workers) if not data else photographs(rival, data, count)


def photographs(rival: str, data: str, count: int) -> Figures:
    sys.path.insert(0, str(EXAMPLES))
    import torch
    from train_images import Photos

    torch.set_num_threads(1)
    photos = Photos(Path(data), "train")
    times = 1 + count // len(photos)
    photos.paths, photos.labels = photos.paths * times, photos.labels * times
    if rival == "two bare processes":
        return bare(photos, count)
    loader = method.data_loader(rival)(photos, batch_size=count, shuffle=True, num_workers=WORKERS, prefetch_factor=1)
    began = time.perf_counter()
    iterator = iter(loader)
    images, _ = next(iterator)
    seconds = time.perf_counter() - began
    assert len(images) == count
    del iterator
    return {FIRST: seconds}


def bare(photos: Any, count: int) -> Figures:
    """Two processes, and nothing between them and the samples."""
    import numpy as np

    size = photos[0][0].nbytes
    began = time.perf_counter()
    memory = mmap.mmap(-1, size * count)
    children = []
    for worker in range(WORKERS):
        child = os.fork()
        if child == 0:
            rows = np.frombuffer(memory, np.uint8).reshape(count, size)
            for row in range(worker, count, WORKERS):
                rows[row] = photos[row % len(photos)][0].numpy().reshape(-1)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return {FIRST: time.perf_counter() - began}


def waiting(rival: str, workers: int) -> Figures:
    import warnings

    warnings.simplefilter("ignore")  # of more workers than processors: they wait
    loader = method.data_loader(rival)(Waiting(), batch_size=64, num_workers=workers)
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    seconds = time.perf_counter() - began
    for _ in range(11):
        next(iterator)
    time.sleep(2)
    memory = method.memory_of_all()
    del iterator
    return {FIRST: seconds, MEMORY: memory / 1e6}


class Waiting:
    """Samples that come from far away."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        time.sleep(0.01)
        return np.full((3, 224, 224), index, np.float32)


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs")
    method.main(arguments, cases, measure)
