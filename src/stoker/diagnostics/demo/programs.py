"""The programs that the demo compares. Each runs in a process of its own: python -m stoker.diagnostics.demo.programs.

1. `torch`: torch's loader, as tutorials write it: a dataset of class folders, opened by Pillow, with torchvision's
   transforms where torchvision can be imported, else the same crop by Pillow alone.
2. `install`: the same, behind `stoker.install()`.
3. `stoker`: `stoker.ImageFolder`, the transforms of `stoker.images`, `stoker.DataLoader`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

PROGRAMS = "torch", "install", "stoker"
SIDE, BATCH = 224, 64
_COMPARED = 24
"""Pictures whose pixels are compared with Pillow's."""


class PillowFolder:
    """Class folders as map-style dataset: a random part of each picture, (SIDE, SIDE, 3), uint8, and its class."""

    def __init__(self, folder: str) -> None:
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        self.samples = [
            (str(path), number)
            for number, name in enumerate(classes)
            for path in sorted((Path(folder) / name).glob("*.jpg"))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import numpy as np

        path, label = self.samples[index]
        return np.array(random_crop(path)), label


def random_crop(path: str) -> Any:
    """Returns a random part of a picture, resized and mirrored or not, as by `RandomResizedCrop` and a flip."""
    from PIL import Image

    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    area, ratio = width * height * random.uniform(0.08, 1), random.uniform(3 / 4, 4 / 3)
    across, down = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
    left, top = random.randint(0, width - across), random.randint(0, height - down)
    box = (left, top, left + across, top + down)
    image = image.crop(box).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def usual_dataset(folder: str) -> tuple[Any, str]:
    """Returns the dataset of a tutorial, and the name of the library that makes its crops."""
    try:
        from torchvision import datasets, transforms
    except (ImportError, RuntimeError):  # not installed, or built for another torch
        return PillowFolder(folder), "Pillow"
    steps = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return datasets.ImageFolder(folder, transforms.Compose(steps)), "torchvision"


def loader_of(program: str, folder: str, workers: int) -> tuple[Any, str]:
    """Returns the loader of a program, and the name of the library that makes its crops."""
    import torch.utils.data

    from stoker import DataLoader, ImageFolder, install

    if program == "stoker":
        from stoker.images import Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop

        crops = Compose([RandomResizedCrop(SIDE), RandomHorizontalFlip(), PILToTensor()])
        pictures = ImageFolder(folder, crops)
        return DataLoader(pictures, batch_size=BATCH, shuffle=True, num_workers=workers), "stoker.images"
    if program == "install":
        install()
    dataset, crops_of = usual_dataset(folder)
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers), crops_of


def measure(program: str, folder: str, workers: int) -> dict[str, Any]:
    """Runs an epoch; returns its figures.

    Returns:
        `images_per_second` behind the first batch, `first_batch_seconds`, `cpu_seconds_per_1000` of all processes,
        `crops`: the library that makes them; and of the program `stoker`, `equal_pixels`.
    """
    loader, crops = loader_of(program, folder, workers)
    began, used = time.perf_counter(), _cpu_seconds()
    first, images = 0.0, 0
    for batch in loader:
        if not first:
            first = time.perf_counter() - began
            skipped = len(batch[1])
        images += len(batch[1])
    seconds, used = time.perf_counter() - began, _cpu_seconds() - used
    result = {
        "images_per_second": (images - skipped) / max(seconds - first, 1e-9),
        "first_batch_seconds": first,
        "cpu_seconds_per_1000": 1e3 * used / images,
        "crops": crops,
    }
    return result | {"equal_pixels": equal_pixels(folder)} if program == "stoker" else result


def equal_pixels(folder: str) -> bool:
    """Returns whether crops of the first pictures are Pillow's when Stoker's reader is registered, value for value."""
    from stoker import images

    samples = PillowFolder(folder).samples
    paths = [path for path, _ in samples[:: max(1, len(samples) // _COMPARED)]]

    def crops() -> list[bytes]:
        random.seed(0)
        return [random_crop(path).tobytes() for path in paths]

    expected = crops()
    with images.register():
        return crops() == expected


def _cpu_seconds() -> float:
    import resource

    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))) + "\n")
