"""How busy does a GPU get, training ResNet-50 on photographs, under torch's loader and under Stoker's?

ResNet-50 in bfloat16, channels last, SGD, batches of 256 photographs of 500 x 375 pixels, pinned, with 4, 8 or 16
workers. Each sample is a random part of 0.08 to 1 of the area, resized to 224 x 224, mirrored or not. The network's
weights do not matter here: only time does.

`torch` is the usual program: torchvision's `ImageFolder`, `ToTensor` and `Normalize` in the workers. `install()` is
that program after `stoker.install()`. In `torch, uint8` and `stoker` samples are uint8, and the GPU normalises them;
`stoker` is `stoker.ImageFolder` with the transforms of `stoker.images`. `a held batch` has no loader: the same batch,
on the GPU, again and again, which no loader can exceed.

GPU busy is the mean of what NVIDIA's driver tells. It needs a GPU, torchvision, and the photographs of `make demo`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import method
from jpeg import prepare
from method import Case, Figures, Goal

BATCH, SIDE, CLASSES, WARM_UP = 256, 224, 1000, 15
RATE, BUSY, WAITED = "images/s", "GPU busy, %", "waited, %"
CPU, MEMORY = "CPU-ms per image", "MB, all processes"
RIVALS = ("stoker", "install()", "torch", "torch, uint8", "a held batch")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def cases(options: argparse.Namespace) -> list[Case]:
    folder = prepare(options.data, 0)["photographs"]
    how = {"folder": str(folder), "seconds": 3.0 if options.quick else 8.0}
    return [
        Case(
            f"ResNet-50 on one GPU, {workers} workers",
            {name: {"rival": name, "workers": workers, **how} for name in RIVALS},
            [Goal(RATE, "torch", at_least=1), Goal(RATE, "torch, uint8", at_least=1, headline=False)],
        )
        for workers in options.workers
    ]


def measure(rival: str, folder: str, workers: int, seconds: float) -> Figures:
    import torch
    import torchvision

    from stoker._core.machine.gpu_activity import GpuActivity, busy_between

    gpus = GpuActivity()
    gpus.sample_if_due()  # what was in use before
    torch.backends.cudnn.benchmark = True
    network = torchvision.models.resnet50(num_classes=CLASSES).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    mean, std = (torch.tensor(values, device="cuda").view(1, 3, 1, 1) * 255 for values in (MEAN, STD))

    def step(images: Any, labels: Any) -> None:
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        images = images.contiguous(memory_format=torch.channels_last)
        if images.dtype == torch.uint8:
            images = (images.float() - mean) / std
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    batches = batches_of(rival, Path(folder), workers)
    for _ in range(WARM_UP):
        step(*next(batches))
    torch.cuda.synchronize()
    waited, count, used, begun = 0.0, 0, method.cpu_seconds(), time.perf_counter()
    while time.perf_counter() < begun + seconds:
        asked = time.perf_counter()
        images, labels = next(batches)
        waited += time.perf_counter() - asked
        step(images, labels)
        count += len(images)
        if count % (4 * BATCH) == 0:  # else the queue of the GPU hides how long steps take
            torch.cuda.synchronize()
        gpus.sample_if_due()
    torch.cuda.synchronize()
    until, memory = time.perf_counter(), method.memory_of_all()
    used = method.cpu_seconds() - used
    busy = busy_between(gpus.samples, begun, until)
    gpus.close()
    batches.close()
    return {
        RATE: count / (until - begun),
        BUSY: "not told" if busy is None else 100 * busy,
        WAITED: 100 * waited / (until - begun),
        CPU: 1e3 * used / count,
        MEMORY: memory / 1e6,
    }


def batches_of(rival: str, folder: Path, workers: int) -> Generator[Any]:
    """Yields batches without an end. The order is random, with repetition, so that there is one epoch."""
    import torch

    if rival == "a held batch":
        images = torch.randint(0, 256, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8, device="cuda")
        labels = torch.randint(0, CLASSES, (BATCH,), device="cuda")
        while True:
            yield images, labels
    how: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "pin_memory": True, "drop_last": True}
    if rival == "stoker":
        import stoker
        from stoker import images as ours

        steps = ours.Compose([ours.RandomResizedCrop(SIDE), ours.RandomHorizontalFlip(), ours.PILToTensor()])
        dataset = stoker.ImageFolder(folder, steps)
        order = stoker.RandomSampler(dataset, replacement=True, num_samples=10**7)
        yield from stoker.DataLoader(dataset, sampler=order, **how)
        return
    from torchvision import datasets, transforms

    if rival == "install()":
        import stoker

        stoker.install()
    last: list[Any] = [transforms.PILToTensor()]
    if rival != "torch, uint8":
        last = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    crop = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
    theirs = datasets.ImageFolder(str(folder), transforms.Compose([*crop, *last]))
    drawn = torch.utils.data.RandomSampler(theirs, replacement=True, num_samples=10**6)
    yield from torch.utils.data.DataLoader(theirs, sampler=drawn, **how)


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=3)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs of `make demo`")
    arguments.add_argument("--workers", type=int, nargs="+", default=[4, 8, 16])
    method.main(arguments, cases, measure)
