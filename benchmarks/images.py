"""What does a loader give where it matters: photographs, decoded, cropped and mirrored by the workers?

The dataset, the network and the training step are those of `examples/train_images.py`, on the photographs that
`make demo` builds (`--data`). Two workers make batches of 64 in shuffled order: once the trainer trains on them,
once it only counts them. Counting begins after some batches, so that the start is left out; it is told apart as the
time to the first batch. The processor time is that of all processes from start to end.

The memory is that of all processes together (PSS, and batches on their way), the largest at five batches after the
counting. The trainer's allocator gives back what is free before each look: how much of a training step it still holds
is chance, and more than the loaders differ by.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from pathlib import Path

import method
from method import Case, Figures, Goal

EXAMPLES = Path(__file__).parents[1] / "examples"
WORKERS = 2
BATCH = 64
WARM_UP = 4  # batches
SAMPLES = 5  # batches at which the memory is looked at
RATE, FIRST, CPU, MEMORY = "images/s", "seconds to the first batch", "CPU-ms per image", "MB, all processes"


def cases(options: argparse.Namespace) -> list[Case]:
    if not options.data.is_dir():
        raise SystemExit(f"no photographs in {options.data}: `python examples/make_photos.py --data {options.data}`")
    batches = 6 if options.quick else 36
    goals = [Goal(RATE, "torch", at_least=1), *(Goal(name, "torch", at_most=1) for name in (FIRST, CPU, MEMORY))]
    return [
        Case(
            name,
            {
                rival: {"rival": rival, "data": str(options.data), "train": train, "batches": batches}
                for rival in ("stoker", "torch")
            },
            goals,
        )
        for name, train in (("photographs, with the training step", True), ("photographs, no step", False))
    ]


def measure(rival: str, data: str, train: bool, batches: int) -> Figures:
    sys.path.insert(0, str(EXAMPLES))
    import torch
    from torch.nn.functional import cross_entropy
    from train_images import Backend, Loader, Photos, make_loaders, make_network, threads_left

    torch.manual_seed(0)
    torch.set_num_threads(threads_left(Backend.process, WORKERS))
    photos = Photos(Path(data), "train")
    epochs = 2 + (batches + SAMPLES) * BATCH // len(photos)
    photos.paths, photos.labels = photos.paths * epochs, photos.labels * epochs  # so that it goes on till the end
    loader, _ = make_loaders(Loader(rival), photos, photos, BATCH, Backend.process, WORKERS)
    network = make_network(1 + max(photos.labels))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    used, began = method.cpu_seconds(), time.perf_counter()
    iterator = iter(loader)
    images, labels = next(iterator)
    first = time.perf_counter() - began
    for count in range(batches):
        if count == WARM_UP:
            began = time.perf_counter()
        if train:
            loss = cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        images, labels = next(iterator)
    seconds = time.perf_counter() - began
    memory = 0
    for _ in range(SAMPLES):
        ctypes.CDLL(None).malloc_trim(0)
        memory = max(memory, method.memory_of_all())
        next(iterator)
    del iterator
    return {
        RATE: (batches - WARM_UP) * BATCH / seconds,
        FIRST: first,
        CPU: 1e3 * (method.cpu_seconds() - used) / ((batches + SAMPLES) * BATCH),
        MEMORY: memory / 1e6,
    }


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=3)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs")
    method.main(arguments, cases, measure)
