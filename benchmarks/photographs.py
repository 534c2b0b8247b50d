"""How fast are photographs loaded with Stoker's transforms, beside other loaders and decoders?

The photographs are those that `make demo` builds (`--data`), 500 x 375 pixels. Each rival makes batches of 64 images,
uint8: a random part of 0.08 to 1 of the area, resized to 224 x 224, mirrored or not. Two workers, shuffled order.

Stoker is `stoker.ImageFolder` with `RandomResizedCrop` and `RandomHorizontalFlip` of `stoker.images`, with processes
and with threads. torch is its loader with torchvision's `ImageFolder` and transforms; `torch, simplejpeg` has a dataset
that decodes by simplejpeg and resizes by OpenCV, as torchdata's nodes, Grain and SPDL have: the whole photograph is
decoded, and nothing smooths an image that is made smaller. tf.data and DALI run where `--tensorflow` and `--dali` name
interpreters that have them, each with its own decoder of a part: without the smoothing, and with it (`antialias`),
which Pillow, torchvision and Stoker always do. turboloader has one too (`train_aug=True`): it reads a tar file of the
photographs with as many threads as there are CPUs, and its batches are float32 from 0 to 1.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import method
import rivals
from jpeg import prepare
from method import Case, Figures, Goal

SIDE, BATCH, WORKERS, WARM_UP = 224, 64, 2, 4
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
RATE, CPU, MEMORY = "images/s", "CPU-ms per image", "MB, all processes"
OPENCV = ("torch, simplejpeg", "nodes, processes", "nodes, threads", "Grain", "SPDL, threads", "SPDL, processes")
TENSORFLOW, DALI = ("tf.data", "tf.data, antialias"), ("DALI", "DALI, antialias")
TURBO = ("turboloader", "turboloader, antialias")


def cases(options: argparse.Namespace) -> list[Case]:
    folder = prepare(options.data, 0)["photographs"]
    how = {"folder": str(folder), "batches": 8 if options.quick else 60}
    names = ("stoker", "stoker, threads", "torch, Pillow", *OPENCV, *TENSORFLOW, *DALI, *TURBO)
    measured: dict[str, dict[str, Any]] = {name: {"rival": name, **how} for name in names}
    for others, python in ((TENSORFLOW, options.tensorflow), (DALI, options.dali)):
        for name in others if python else ():
            measured[name]["python"] = python
    goals = [
        Goal(RATE, "torch, Pillow", at_least=2.7),
        *(Goal(RATE, name, at_least=1, headline=name in TENSORFLOW) for name in (*OPENCV, *TENSORFLOW, *DALI, *TURBO)),
        Goal(MEMORY, "torch, Pillow", at_most=1, headline=False),
    ]
    return [Case("photographs, Stoker's transforms", measured, goals)]


def measure(rival: str, folder: str, batches: int) -> Figures:
    try:
        made = loader(rival, Path(folder), BATCH * (batches + WARM_UP + 8 * WORKERS))
        iterator = iter(made)
        for _ in range(WARM_UP):
            check(next(iterator), "float32" if rival in TURBO else "uint8")
    except ImportError:
        return dict.fromkeys((RATE, CPU, MEMORY), rivals.NOT_INSTALLED)
    began, used = time.perf_counter(), method.cpu_seconds()
    for _ in range(batches):
        next(iterator)
    seconds, used = time.perf_counter() - began, method.cpu_seconds() - used
    memory = method.memory_when_full()
    if hasattr(iterator, "close"):
        iterator.close()
    images = batches * BATCH
    return {RATE: images / seconds, CPU: 1e3 * used / images, MEMORY: memory / 1e6}


def check(batch: Any, dtype: str) -> None:
    """Refuses a batch that is not what all rivals are to make."""
    import numpy as np

    images = np.asarray(batch if isinstance(batch, np.ndarray) else batch[0])
    assert images.size == BATCH * SIDE * SIDE * 3 and images.dtype == dtype, (images.shape, images.dtype)


def loader(rival: str, folder: Path, samples: int) -> Any:
    if rival.startswith("tf.data"):
        import tf_data

        return tf_data.crops(listed(folder, 1), BATCH, WORKERS, SIDE, (SCALE, RATIO), antialias="antialias" in rival)
    if rival.startswith("DALI"):
        return by_dali(listed(folder, 1), antialias="antialias" in rival)
    if rival in TURBO:
        return by_turboloader(folder, antialias="antialias" in rival)
    import torch

    torch.set_num_threads(1)
    if rival.startswith("stoker"):
        return by_stoker(folder, samples, rival.endswith("threads"))
    if rival == "torch, Pillow":
        return by_torchvision(folder, samples)
    dataset = OpenCVCrops(listed(folder, 1))
    if rival == "torch, simplejpeg":
        order = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=samples)
        return torch.utils.data.DataLoader(dataset, BATCH, sampler=order, num_workers=WORKERS)
    if rival.startswith("nodes"):
        return rivals.nodes(dataset, BATCH, WORKERS, "process" if rival.endswith("processes") else "thread")
    if rival == "Grain":
        return rivals.grain(dataset, BATCH, WORKERS)
    return (rivals.spdl_threads if rival.endswith("threads") else rivals.spdl_processes)(dataset, BATCH, WORKERS)


def listed(folder: Path, times: int) -> list[tuple[str, int]]:
    """The files, and the numbers of their classes."""
    classes = sorted(path.name for path in folder.iterdir())
    return [(str(p), number) for number, name in enumerate(classes) for p in sorted((folder / name).iterdir())] * times


def by_stoker(folder: Path, samples: int, threads: bool) -> Any:
    import stoker
    from stoker.images import Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop

    steps = Compose([RandomResizedCrop(SIDE), RandomHorizontalFlip(), PILToTensor()])
    dataset = stoker.ImageFolder(folder, steps)
    order = stoker.RandomSampler(dataset, replacement=True, num_samples=samples)
    kind: Any = "thread" if threads else "process"
    return stoker.DataLoader(dataset, BATCH, sampler=order, num_workers=WORKERS, worker_method=kind)


def by_torchvision(folder: Path, samples: int) -> Any:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # its compiled operators are not needed
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import datasets, transforms

    steps = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    dataset = datasets.ImageFolder(str(folder), transforms.Compose(steps))
    order = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=samples)
    return torch.utils.data.DataLoader(dataset, BATCH, sampler=order, num_workers=WORKERS)


class OpenCVCrops:
    """Samples `(image, label)`: decoded by simplejpeg, cropped and resized by OpenCV, (SIDE, SIDE, 3), uint8."""

    def __init__(self, files: list[tuple[str, int]]) -> None:
        self.files = files
        __import__("simplejpeg"), __import__("cv2")  # else each worker would say that it is missing

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        import cv2
        import numpy as np
        import simplejpeg

        cv2.setNumThreads(0)
        path, label = self.files[index]
        with open(path, "rb") as file:
            whole = simplejpeg.decode_jpeg(file.read())
        height, width, _ = whole.shape
        area, ratio = height * width * random.uniform(*SCALE), random.uniform(*RATIO)
        across, down = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
        left, top = random.randint(0, width - across), random.randint(0, height - down)
        part = cv2.resize(whole[top : top + down, left : left + across], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        return np.ascontiguousarray(part[:, ::-1] if random.random() < 0.5 else part), label


def by_dali(files: list[tuple[str, int]], antialias: bool) -> Any:
    """DALI's pipeline on the CPU, with its fused decoder of a random part."""
    from nvidia.dali import fn, pipeline_def, types

    paths, labels = [path for path, _ in files], [label for _, label in files]

    @pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None, prefetch_queue_depth=2)
    def photographs() -> Any:
        encoded, classes = fn.readers.file(files=paths, labels=labels, random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(
            encoded, device="cpu", output_type=types.RGB, random_area=list(SCALE), random_aspect_ratio=list(RATIO)
        )
        images = fn.resize(images, resize_x=SIDE, resize_y=SIDE, antialias=antialias)
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        return images, classes

    made = photographs()
    made.build()

    def batches() -> Any:
        while True:
            images, classes = made.run()
            yield images.as_array(), classes.as_array()

    return batches()


def by_turboloader(folder: Path, antialias: bool) -> Iterator[Any]:
    """turboloader's fused pass over a tar file of the photographs, which is made once."""
    from turboloader import DataLoader

    path = folder.with_suffix(".tar")
    if not path.exists():
        with tarfile.open(part := path.with_suffix(".part"), "w") as tar:
            for number, (file, _) in enumerate(listed(folder, 1)):
                tar.add(file, f"{number:05}.jpg")
        part.replace(path)
    how: dict[str, Any] = {"output_format": "pytorch", "train_aug": True, "antialias": antialias}
    made = DataLoader(str(path), BATCH, image_size=SIDE, shuffle=True, drop_last=True, **how)
    for epoch in itertools.count():
        made.set_epoch(epoch)
        yield from made


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs of `make demo`")
    arguments.add_argument("--tensorflow", help="an interpreter that has TensorFlow, for tf.data")
    arguments.add_argument("--dali", help="an interpreter that has DALI")
    method.main(arguments, cases, measure)
