"""What does a loader give where it matters: photographs, decoded, cropped and mirrored by the workers?

The dataset, the network and the training step are those of `examples/train_images.py`, on the photographs that
`make demo` builds (`--data`). Two workers make batches of 64 in shuffled order: once the trainer trains on them,
once it only reads a byte of every page. Counting begins after some batches, so that the start is left out; it is told
apart as the time to the first batch. The processor time is that of all processes while it is counted.

Whether it is faster than torch's loader, and takes less processor time, is asked by by_turns.py: with a decoder that
takes nine tenths of the time, rounds cannot tell a hundredth.

Without the step all that a user could pick is beside it, each with the same dataset, which decodes by Pillow: torch's
loader; torchdata's nodes with processes and with threads; Grain's processes; SPDL's threads and processes, in order of
completion, which is its default. tf.data runs where `--tensorflow` names an interpreter that has it, with decoder and
resizing of its own, which do less: it is shown, and no goal. DALI is made for GPUs, and is not measured. The limit is
the faster of two bare threads and two bare processes: they do not collate, hand over or keep an order.

Once more with a decoder made for speed (simplejpeg: libjpeg-turbo alone), a random crop of 224, mirrored or not, as
uint8: crops.py. Such a decoder releases the interpreter's lock, so ours is first with threads, as its guide says.
Beside it is torch's loader with the same dataset, where Pillow decodes. All of them decode the whole photograph.

The memory is that of all processes together (PSS, and batches on their way) when the trainer pauses after the counting,
and all that may be made ahead is there. The trainer's allocator gives back what is free before: how much of a training
step it still holds is chance, and more than the loaders differ by. For the same reason it gives nothing back while the
trainer trains: else it is chance whether each step's memory is mapped anew, which took from none to 7,000 page faults a
step, with any loader, and up to a tenth of all processor time. Once more after a pause of some seconds, as training
makes when it evaluates: workers that idle may have given back what they need no more.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crops
import method
import rivals
from method import Case, Figures, Goal

EXAMPLES = Path(__file__).parents[1] / "examples"
method.LONGEST = 90.0  # seconds: some of the rivals hang now and then
WORKERS = 2
BATCH = 64
SIDE = 128  # of the images, for tf.data, which runs where the example does not
WARM_UP = 4  # batches
RATE, FIRST, CPU, MEMORY = "images/s", "seconds to the first batch", "CPU-s per 1,000 images", "MB, all processes"
IDLE = "MB, all processes, after a pause"
PAUSE = 5.0  # seconds
FIGURES = (RATE, FIRST, CPU, MEMORY, IDLE)
PILLOW = "torch, Pillow"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LIMITS = ("bare threads", "bare processes")
OTHERS = ("nodes, processes", "nodes, threads", "Grain", "SPDL, threads", "SPDL, processes")


def cases(options: argparse.Namespace) -> list[Case]:
    if not options.data.is_dir():
        raise SystemExit(f"no photographs in {options.data}: `python examples/make_photos.py --data {options.data}`")

    def measurements(*names: str, train: bool, fast: bool = False) -> dict[str, dict[str, Any]]:
        batches = 6 if options.quick else 36
        how = {"data": str(options.data), "train": train, "fast": fast, "batches": batches}
        how["pause"] = 0 if options.quick else PAUSE
        return {name: {"rival": name, **how} for name in names}

    beside_torch = [Goal(name, "torch", at_most=1) for name in (FIRST, MEMORY, IDLE)]
    faster_than_torch = [Goal(RATE, "torch", at_least=1), Goal(CPU, "torch", at_most=1)]
    others = measurements("stoker, threads", *OTHERS, "tf.data", "DALI", train=False)
    if options.tensorflow:
        others["tf.data"]["python"] = options.tensorflow
    beside_limits = [Goal(RATE, limit, at_least=0.95) for limit in LIMITS]
    beside_others = [
        Goal(name, other, headline=name == RATE, **({"at_least": 1} if name == RATE else {"at_most": 1}))
        for other in OTHERS
        for name in (RATE, CPU, MEMORY)
    ]
    result = [
        Case("photographs, with the training step", measurements("stoker", "torch", train=True), beside_torch),
        Case(
            "photographs, no step",
            {**measurements("stoker", "torch", *LIMITS, train=False), **others},
            [*beside_torch, *beside_limits, *beside_others],
        ),
        Case(
            "photographs, by a fast decoder",
            measurements(
                *("stoker, threads", "torch", PILLOW, *LIMITS, "stoker, processes", *OTHERS), train=False, fast=True
            ),
            [*beside_torch, *faster_than_torch, Goal(RATE, PILLOW, at_least=2), *beside_limits, *beside_others],
        ),
    ]
    if not options.quick:
        return result
    return rivals.left_out(result[:2]) + rivals.left_out(result[2:], PILLOW, "bare processes", "stoker, processes")


def measure(rival: str, data: str, train: bool, batches: int, pause: float = PAUSE, fast: bool = False) -> Figures:
    if rival == "DALI":
        return dict.fromkeys(FIGURES, "needs a GPU")
    try:
        step = Step(Path(data)) if train else Look()
        loader = tf_data(Path(data)) if rival == "tf.data" else loaded(rival, Path(data), 1 + batches, fast)
        began = time.perf_counter()
        iterator = iter(loader)
        batch = next(iterator)
    except ImportError:
        return dict.fromkeys(FIGURES, rivals.NOT_INSTALLED)
    first, used = time.perf_counter() - began, 0.0
    libc = ctypes.CDLL(None)
    if train:
        keep_freed_memory()
    for count in range(batches):
        if count == WARM_UP:
            began, used = time.perf_counter(), method.cpu_seconds()
        step(batch)
        batch = next(iterator)
    seconds, used = time.perf_counter() - began, method.cpu_seconds() - used
    libc.malloc_trim(0)
    memory = method.memory_when_full()
    time.sleep(pause)
    idle = method.memory_of_all()
    if hasattr(iterator, "close"):
        iterator.close()
    del iterator
    return {
        RATE: (batches - WARM_UP) * BATCH / seconds,
        FIRST: first,
        CPU: 1e3 * used / ((batches - WARM_UP) * BATCH),
        MEMORY: memory / 1e6,
        IDLE: idle / 1e6,
    }


# What the trainer does with a batch


def keep_freed_memory() -> None:
    """From now on the allocator gives nothing back of itself."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
    libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)


class Look:
    """Reads a byte of every page."""

    def __call__(self, batch: Any) -> None:
        import numpy as np

        np.asarray(batch if isinstance(batch, np.ndarray) else batch[0]).reshape(-1)[::4096].max()


class Step:
    """Trains the example's network."""

    def __init__(self, data: Path) -> None:
        train_images = example()
        import torch

        torch.manual_seed(0)
        self.network = train_images.make_network(1 + max(train_images.Photos(data, "train").labels))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-3)

    def __call__(self, batch: Any) -> None:
        from torch.nn.functional import cross_entropy

        images, labels = batch
        loss = cross_entropy(self.network(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


# The rivals


def loaded(rival: str, data: Path, count: int, fast: bool) -> Any:
    """Batches of a loader: `count` of them at least, from one epoch."""
    train_images = example()
    import bare
    import torch

    torch.set_num_threads(train_images.threads_left(train_images.Backend.process, WORKERS))
    photos = train_images.Photos(data, "train")
    epochs = 2 + count * BATCH // len(photos)
    photos.paths, photos.labels = photos.paths * epochs, photos.labels * epochs  # so that it goes on till the end
    if fast:
        __import__("simplejpeg")  # else each worker would say that it is missing
        photos = crops.Crops(photos.paths, photos.labels, pillow=rival == PILLOW)
    if rival == PILLOW:
        rival = "torch"
    if rival in LIMITS:
        return bare.batches(photos, BATCH, count, WORKERS, processes=rival == "bare processes")
    if rival.startswith("nodes"):
        return rivals.nodes(photos, BATCH, WORKERS, "process" if rival == "nodes, processes" else "thread")
    if rival == "Grain":
        return rivals.grain(photos if fast else Arrays(photos), BATCH, WORKERS)
    if rival.startswith("SPDL"):
        of_spdl = rivals.spdl_threads if rival == "SPDL, threads" else rivals.spdl_processes
        return of_spdl(photos, BATCH, WORKERS)
    name, _, backend = rival.partition(", ")
    kind = train_images.Backend.thread if backend == "threads" else train_images.Backend.process
    return train_images.make_loaders(train_images.Loader(name), photos, photos, BATCH, kind, WORKERS)[0]


class Arrays:
    """The photographs as NumPy arrays, as Grain wants them."""

    def __init__(self, photos: Any) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> Any:
        image, label = self.photos[index]
        return image.numpy(), label


def example() -> Any:
    sys.path.insert(0, str(EXAMPLES))
    import train_images

    return train_images


def tf_data(data: Path) -> Iterator[Any]:
    import tf_data as tensorflows

    return tensorflows.batches(data, BATCH, WORKERS, SIDE)


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs")
    arguments.add_argument("--tensorflow", help="another interpreter, which has TensorFlow, for tf.data")
    method.main(arguments, cases, measure)
