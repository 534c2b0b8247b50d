"""Do batches reach a GPU as fast as memory can be copied, and does the step notice?

Batches of 4, 38 and 256 MB of uint8, made by 8 workers from rows of zeros that hold their index. The loop takes each
batch and, behind it, a step of matrix products (or none).

- `stoker, device=`: `DataLoader(device="cuda")`.
- `stoker, pin_memory` and `torch, pin_memory`: `batch.to("cuda", non_blocking=True)` in the loop.
- `torch, prefetcher`: NVIDIA's pattern, in which a class copies the next batch on a side stream while the last one
  computes, with `record_stream`.
- `DALI` and `turboloader`, where they are installed: `external_source` with worker processes, and `MapDataLoader` with
  its `CudaPrefetcher`. The lines of DALI were never run.
- `bare copy`: from registered memory that is there, on a side stream: the limit.

`GB/s of batches that are there` is that of 16 batches, which the workers had made before the first was taken: the copy
is what is measured. `GB/s beside workers` is that of a long loop, in which workers write the next batches meanwhile.
`ms a step` is the time of a step beside copies, and `no copy` that of the step alone. `random orders` counts wrong
bytes in loops that keep, drop and skip batches and change their stream, while kernels hold the copies back.
`pin_memory` is that of 16 workers and float32 images of 154 MB. `augmented` is crop, flip, colours and normalisation of
256 x 256 images by two workers, or by the device with images of uint8.

It needs a CUDA device; `--quick` takes some minutes. `--accelerator fake` runs the same lines on the CPU with small
batches, so that none is run on a GPU for the first time: its figures say nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import random
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import method
import rivals
from method import Case, Figures, Goal

THERE, RATE, STEP, WRONG = "GB/s of batches that are there", "GB/s beside workers", "ms a step", "wrong batches"
SPEED = "images/s"
ROWS, WORKERS, AHEAD = 64, 8, 16
RIVALS = ("stoker, device=", "stoker, pin_memory", "torch, pin_memory", "torch, prefetcher")
PACKAGES = {"DALI": "nvidia.dali.plugin.pytorch", "turboloader": "turboloader"}
COPIED = (*RIVALS, *PACKAGES)
AUGMENTED = ("on the device", "in the samples", "in the worker, whole batch")


def cases(options: argparse.Namespace) -> list[Case]:
    fake = options.accelerator == "fake"
    batches = 40 if fake else 2_000 if options.quick else 100_000
    common = {"quick": options.quick, "fake": fake}
    return [
        *(
            Case(
                f"rate, {size} MB",
                {
                    kind: {"what": "rate", "kind": kind, "size": size, **common}
                    for kind in (*RIVALS, *PACKAGES, "bare copy")
                },
                [Goal(THERE, "bare copy", at_least=0.94)],
            )
            for size in (4, 38, 256)
        ),
        *(
            Case(
                f"step, {size} MB",
                {kind: {"what": "step", "kind": kind, "size": size, **common} for kind in (*RIVALS, "no copy")},
                [Goal(STEP, "no copy", at_most=1.02)],
            )
            for size in (4, 38)
        ),
        Case(
            f"random orders, {batches} batches",
            {RIVALS[0]: {"what": "orders", "kind": RIVALS[0], "size": 4, "batches": batches, **common}},
            [Goal(WRONG, at_most=0)],
        ),
        Case(
            "pin_memory, 16 workers, 154 MB",
            {kind: {"what": "rate", "kind": kind, "size": 154, "workers": 16, **common} for kind in RIVALS[1:3]},
            [Goal(RATE, "torch, pin_memory", at_least=1.5)],
        ),
        Case(
            "augmented, two workers",
            {kind: {"what": "augmented", "kind": kind, "size": 0, **common} for kind in AUGMENTED},
            [Goal(SPEED, "in the samples", at_least=2.8)],
        ),
    ]


class Gpu:
    """What is used of `torch.cuda`."""

    name, unit = "cuda", 1 << 20

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda
        torch.ones(1, device="cuda")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cuda, name)

    def moved(self, batch: Any) -> Any:
        return batch.to("cuda", non_blocking=True)

    def register(self, memory: Any) -> None:
        if int(self.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)):
            raise RuntimeError("cudaHostRegister failed")


class Fake:
    """The same names on the CPU, in order. Batches are 256 times as small."""

    name, unit = "cpu", 1 << 12

    def __init__(self) -> None:
        import torch

        from stoker.device import accelerator

        torch.set_num_threads(1)
        accelerator.accelerator_of = lambda _: accelerator.InOrderDevice(torch.device("cpu"))  # type: ignore[assignment]
        accelerator.numbered = lambda device: device  # type: ignore[assignment]
        self.at = 0.0

    def Stream(self) -> Fake:
        return self

    def Event(self, enable_timing: bool) -> Fake:
        return Fake()

    current_stream = Stream

    def stream(self, _: Any) -> Any:
        return contextlib.nullcontext()

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Fake) -> float:
        return (end.at - self.at) * 1e3

    def moved(self, batch: Any) -> Any:
        return batch.clone()

    def nothing(self, *_: Any) -> None: ...

    synchronize = wait_stream = register = _sleep = nothing


class Rows:
    """Samples of a 64th of a batch, whose first eight bytes are their index."""

    def __init__(self, width: int, batches: int) -> None:
        self.width, self.length = width, batches * ROWS

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        import torch

        row = torch.zeros(self.width, dtype=torch.uint8)
        row[:8] = torch.tensor(list(index.to_bytes(8, "little")), dtype=torch.uint8)
        row[-1] = index % 251
        return row


def loader_of(card: Any, kind: str, rows: Rows, workers: int, **options: Any) -> Any:
    import torch

    import stoker

    if kind == "stoker, device=":
        return stoker.DataLoader(rows, ROWS, num_workers=workers, device="cuda", **options)
    if kind == "DALI":
        return by_dali(rows, workers)
    if kind == "turboloader":
        from turboloader import CudaPrefetcher, MapDataLoader

        made = MapDataLoader(rows, ROWS, num_workers=workers, collate_fn=torch.utils.data.default_collate)
        return made if card.name == "cpu" else CudaPrefetcher(made)
    module = stoker if kind.startswith("stoker") else torch.utils.data
    return module.DataLoader(rows, ROWS, num_workers=workers, pin_memory=card.name == "cuda", **options)


def by_dali(rows: Rows, workers: int) -> Iterator[Any]:
    """DALI's batches on the device, of samples from processes of its own."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=ROWS, num_threads=4, device_id=0, py_num_workers=workers, py_start_method="spawn")
    def made() -> Any:
        return fn.external_source(source=DaliRows(rows), parallel=True, batch=False, dtype=types.UINT8).gpu()

    for (batch,) in DALIGenericIterator([made()], ["rows"], size=len(rows)):
        yield batch["rows"]


class DaliRows:
    """Samples as DALI asks for them."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __call__(self, sample: Any) -> Any:
        if sample.idx_in_epoch >= len(self.rows):
            raise StopIteration
        return self.rows[sample.idx_in_epoch].numpy()


def on_device(card: Any, kind: str, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields batches on the device."""
    if kind == "stoker, device=" or (kind in PACKAGES and card.name == "cuda"):
        yield from batches
        return
    if kind != "torch, prefetcher":
        for batch in batches:
            yield card.moved(batch)
        return
    side, iterator = card.Stream(), iter(batches)

    def ahead() -> Any:
        batch = next(iterator, None)
        if batch is None:
            return None
        with card.stream(side):
            return card.moved(batch)

    upcoming = ahead()
    while upcoming is not None:
        card.current_stream().wait_stream(side)
        if upcoming.is_cuda:
            upcoming.record_stream(card.current_stream())
        batch = upcoming
        upcoming = ahead()
        yield batch


def bare(card: Any, size: int) -> Iterator[Any]:
    """Yields one memory of the device, copied anew each time from registered memory."""
    import torch

    memory = torch.zeros(size, dtype=torch.uint8)
    ctypes.memset(memory.data_ptr(), 1, memory.nbytes)
    card.register(memory)
    target, side = torch.empty(size, dtype=torch.uint8, device=card.name), card.Stream()
    while True:
        with card.stream(side):
            target.copy_(memory, non_blocking=True)
        card.current_stream().wait_stream(side)
        yield target


def nothing() -> Iterator[None]:
    while True:
        yield None


def measure(
    what: str, kind: str, size: int, batches: int = 0, workers: int = WORKERS, quick: bool = False, fake: bool = False
) -> Figures:
    try:
        importlib.import_module(PACKAGES.get(kind, "torch"))
    except ImportError:
        return {RATE: rivals.NOT_INSTALLED}
    card: Any = Fake() if fake else Gpu()
    workers = min(workers, 2) if fake else workers
    size *= card.unit
    number = 24 if quick else max(24, min(200, (6 << 30) // max(1, size)))
    if what == "rate":
        # Of batches that are there: these two make none before they are asked for
        figures = {} if kind in PACKAGES else {THERE: there(card, kind, size, workers, 3 if quick else 6)}
        if kind != "bare copy":
            figures[RATE] = beside_workers(card, kind, size, workers, number)
        return figures
    if what == "step":
        return {STEP: step(card, kind, size, workers, number)}
    if what == "orders":
        return {WRONG: orders(card, kind, size, workers, batches)}
    return {SPEED: augmented(card, kind, 4 if fake else 40 if quick else 200)}


def there(card: Any, kind: str, size: int, workers: int, epochs: int) -> float:
    """Returns the rate of batches that are there, in the best of the epochs: the first ones register slots."""
    if kind == "bare copy":
        source = bare(card, size)
        next(source)
        rates = []
        for _ in range(epochs):
            card.synchronize()
            begun = time.perf_counter()
            for _ in range(AHEAD):
                next(source)
            card.synchronize()
            rates.append(AHEAD * size / (time.perf_counter() - begun) / 1e9)
        return max(rates)
    factor = AHEAD // workers
    loader = loader_of(
        card, kind, Rows(size // ROWS, AHEAD), workers, persistent_workers=True, prefetch_factor=max(1, factor)
    )
    rates = []
    for _ in range(epochs):
        iterator = iter(loader)
        time.sleep(0.3 + AHEAD * size / 2e9)  # until the workers have made all
        card.synchronize()
        begun = time.perf_counter()
        for batch in on_device(card, kind, iterator):
            del batch
        card.synchronize()
        rates.append(AHEAD * size / (time.perf_counter() - begun) / 1e9)
    return max(rates)


def beside_workers(card: Any, kind: str, size: int, workers: int, number: int) -> float:
    begun, taken = 0.0, 0
    for place, _ in enumerate(on_device(card, kind, loader_of(card, kind, Rows(size // ROWS, number), workers))):
        if place == 7:  # slots are registered and workers have begun by then
            card.synchronize()
            begun = time.perf_counter()
        taken += place > 7
    card.synchronize()
    return taken * size / (time.perf_counter() - begun) / 1e9


def step(card: Any, kind: str, size: int, workers: int, number: int) -> float:
    import torch

    side = 8 if card.name == "cpu" else 8192
    weights = torch.randn(side, side, device=card.name, dtype=torch.bfloat16)
    rows = Rows(size // ROWS, number)
    source = nothing() if kind == "no copy" else on_device(card, kind, loader_of(card, kind, rows, workers))
    times = []
    for place, _ in enumerate(source):
        begin, end = (card.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(8):
            weights @ weights
        end.record()
        times.append((begin, end))
        if place == number - 1:
            break
    card.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in times[8:])


def orders(card: Any, kind: str, size: int, workers: int, batches: int) -> int:
    """Returns the batches with wrong bytes in random loops."""

    chance, wrong, seen = random.Random(0), 0, 0
    default, other = card.current_stream(), card.Stream()
    while seen < batches:
        found, kept = [], []
        loader = loader_of(card, kind, Rows(size // ROWS, 500), workers)
        iterator, end = iter(loader), chance.randrange(100, 600)
        for number in range(min(end, batches - seen)):
            stream = other if chance.random() < 0.3 else default
            stream.wait_stream(default if stream is other else other)
            with card.stream(stream):
                batch = next(iterator, None)
                if batch is None:
                    break
                if chance.random() < 0.3:
                    card._sleep(chance.randrange(4_000_000))
                found.append(differs(batch, number))
            (default if stream is other else other).wait_stream(stream)
            if chance.random() < 0.02:
                kept.append((batch, number))
            del batch
            seen += 1
        card.synchronize()
        wrong += sum(map(bool, found)) + sum(bool(differs(batch, number)) for batch, number in kept)
        kept.clear()
        del iterator
        loader.close()
    card.synchronize()
    return wrong


def differs(batch: Any, number: int) -> Any:
    """Queues the comparison of a batch with what it should hold; the result is on the device."""
    import torch

    first = batch[:, 0].long() + 256 * batch[:, 1].long() + 65536 * batch[:, 2].long()
    wanted = torch.arange(ROWS * number, ROWS * number + ROWS, device=batch.device)
    return ((first != wanted) | (batch[:, -1].long() != wanted % 251) | batch[:, 8:-1].any(1)).any()


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pictures:
    """Images of uint8 (256, 256, 3), by turns some that are held in memory."""

    def __init__(self, count: int, transform: Any = None) -> None:
        import numpy as np

        rng = np.random.default_rng(0)
        self.images = [rng.integers(0, 256, (256, 256, 3), np.uint8) for _ in range(16)]
        self.count, self.transform = count, transform

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        image = self.images[index % len(self.images)]
        return image if self.transform is None else self.transform(image)


def augmented(card: Any, kind: str, number: int) -> float:
    """Returns images in a second."""
    import stoker
    from stoker import device, images

    size = 8 if card.name == "cpu" else 128
    in_samples = images.Compose(
        [
            *(images.RandomResizedCrop(224), images.RandomHorizontalFlip(), images.ColorJitter(0.4, 0.4, 0.4)),
            *(images.ToTensor(), images.Normalize(MEAN, STD)),
        ]
    )
    of_batch = device.Compose(
        [
            *(device.RandomResizedCrop(224), device.RandomHorizontalFlip(), device.ColorJitter(0.4, 0.4, 0.4)),
            device.Normalize(MEAN, STD, dtype="bfloat16"),
        ]
    )
    dataset = Pictures(size * number, in_samples if kind == "in the samples" else None)
    transform = None if kind == "in the samples" else of_batch
    options = {"num_workers": 2, "seed": 1, "batch_transform": transform}
    on_it = kind == "on the device"
    loader = stoker.DataLoader(dataset, size, device="cuda" if on_it else None, **options)
    begun = 0.0
    for place, batch in enumerate(loader):
        if not on_it:
            card.moved(batch)
        if place == 1:
            card.synchronize()
            begun = time.perf_counter()
    card.synchronize()
    return size * (number - 2) / (time.perf_counter() - begun)


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=3)
    arguments.add_argument("--accelerator", choices=["cuda", "fake"], default="cuda", help="fake: a dry run on the CPU")
    method.main(arguments, cases, measure)
