"""What do augmentations of whole batches cost beside the same augmentations of each sample?

Samples are uint8 images of 256 x 256 in memory, batches have 64. They are cropped to 224, mirrored and normalised, with
and without changes of their colours. Rivals in workers: `batch_transform=` with the operations of `stoker.device`;
`stoker.images` in each sample; torchvision's v2 in each sample. With a GPU, the operations on batches that lie there.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import method
from method import Case, Figures, Goal

SIDE, CROP, BATCH = 256, 224, 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OURS, EACH, THEIRS = "batch_transform", "stoker.images in each sample", "torchvision v2 in each sample"
RATE = "images/s"


def cases(options: argparse.Namespace) -> list[Case]:
    batches = 4 if options.quick else 24
    made = []
    for colours in (False, True):
        shared = {"colours": colours, "batches": batches}
        rivals = {kind: {"kind": kind, **shared} for kind in (OURS, EACH, THEIRS)}
        what = "crop, flip, normalise" + ", colours" * colours
        made.append(Case(f"{what}: 2 workers", rivals, [Goal(RATE, EACH, at_least=1.0)]))
        if has_gpu():
            on_gpu = {"on the GPU": {"kind": "gpu", **shared}}
            made.append(Case(f"{what}: batches on the GPU", on_gpu, [Goal(RATE, at_least=20_000)]))
    return made


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def of_batches(colours: bool) -> Any:
    from stoker import device

    jitter = [device.ColorJitter(0.4, 0.4, 0.4)] if colours else []
    return device.Compose(
        [device.RandomResizedCrop(CROP), device.RandomHorizontalFlip(), *jitter, device.Normalize(MEAN, STD)]
    )


def of_samples(colours: bool) -> Any:
    from stoker import images

    jitter = [images.ColorJitter(0.4, 0.4, 0.4)] if colours else []
    tail = [images.ToTensor(), images.Normalize(MEAN, STD)]
    return images.Compose([images.RandomResizedCrop(CROP), images.RandomHorizontalFlip(), *jitter, *tail])


def of_torchvision(colours: bool) -> Any:
    import torch

    global library  # which lives as long as its operators: those of torchvision do not load beside another torch
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision.transforms import v2

    jitter = [v2.ColorJitter(0.4, 0.4, 0.4)] if colours else []
    tail = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([v2.ToImage(), v2.RandomResizedCrop(CROP), v2.RandomHorizontalFlip(), *jitter, *tail])


class Images:
    """uint8 images, transformed one by one or as they are."""

    def __init__(self, transform: Any, length: int) -> None:
        import numpy as np

        self.pixels = np.random.default_rng(0).integers(0, 256, (BATCH, SIDE, SIDE, 3), np.uint8)
        self.transform, self.length = transform, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        image = self.pixels[index % BATCH]
        return (image if self.transform is None else self.transform(image)), index


def measure(kind: str, colours: bool, batches: int) -> Figures:
    if kind == "gpu":
        return on_gpu(colours, batches)
    import stoker

    transform = {OURS: lambda _: None, EACH: of_samples, THEIRS: of_torchvision}[kind](colours)
    options = {"batch_transform": of_batches(colours)} if kind == OURS else {}
    dataset = Images(transform, BATCH * (batches + 4))
    loader = iter(stoker.DataLoader(dataset, BATCH, shuffle=True, seed=0, num_workers=2, **options))
    for _ in range(4):
        next(loader)
    began, used, count = time.perf_counter(), method.cpu_seconds(), 0
    for pixels, _ in loader:
        assert tuple(pixels.shape[1:]) == (3, CROP, CROP)
        count += len(pixels)
    seconds = time.perf_counter() - began
    return {RATE: count / seconds, "CPU-ms an image": 1e3 * (method.cpu_seconds() - used) / count}


def on_gpu(colours: bool, batches: int) -> Figures:
    import torch

    transform = of_batches(colours)
    held = torch.from_numpy(Images(None, BATCH).pixels).cuda()
    for _ in range(4):
        transform(held)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(batches):
        transform(held)
    torch.cuda.synchronize()
    return {RATE: batches * BATCH / (time.perf_counter() - began)}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
