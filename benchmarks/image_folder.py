"""How long until an image folder is ready and gives its first batch, and what do its workers take?

Class folders with hard links to some hundred photographs: 1.2 million files in 1,000 classes, or `--files`. They lie
beside the photographs and are removed at the end. Torchvision's `ImageFolder` in torch's loader, and
`stoker.ImageFolder` in Stoker's: without a cached listing, and with one. The kernel's cache holds the folders in each
case, since they were just made.

Construction is the time of the constructor. The first batch is that of 64 photographs from four workers, shuffled,
decoded by Pillow and resized to 64 x 64: from `iter()` on, and with the construction. Memory is that of all processes
when four workers have looked up a tenth of the paths, in a shuffled order, less the same with a dataset of a few
samples: what they take for the listing.

A listing of 5 million files: written to a file as a first start does, of 1,000 folders that are there and empty, since
an unchanged folder is not read. Memory for each further worker is the difference between two and six of them.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import shutil
import sys
import tempfile
import time
import warnings
from itertools import cycle
from pathlib import Path
from typing import Any

import method
from method import Case, Figures, Goal

CLASSES = 1_000
WORKERS, BATCH = 4, 64
CONSTRUCTION, CPU = "seconds, construction", "CPU-seconds, construction"
FIRST, BOTH = "seconds, iter() to the first batch", "seconds, construction and first batch"
MEMORY, FURTHER, ONE = "MB, all processes, for the listing", "MB, each further worker", "MB, the dataset alone"
TORCHVISION, CACHED, OURS = "torchvision and torch", "stoker, cached listing", "stoker"


def cases(options: argparse.Namespace) -> list[Case]:
    if not options.data.is_dir():
        raise SystemExit(f"no photographs in {options.data}: `python examples/make_photos.py --data {options.data}`")
    files = options.files or (20_000 if options.quick else 1_200_000)
    listed = 100_000 if options.quick else 5_000_000
    place = Path(tempfile.mkdtemp(prefix="image_folder.", dir=options.data.parent))
    atexit.register(shutil.rmtree, place)
    uncached, cached = f"{files:,} files, no listing", f"{files:,} files, cached listing"
    folder = place / "files"
    if options.case in uncached or options.case in cached:
        make_folder(options.data, folder, files)
    listing = {"root": str(make_empty(place / "listed")), "cache": str(place / "listed.cache"), "files": listed}
    rivals = {
        rival: {"rival": rival, "root": str(folder), "cache": str(place / "cache"), "files": files}
        for rival in (OURS, CACHED, TORCHVISION)
    }
    return [
        Case(
            uncached,
            {name: rivals[name] for name in (OURS, TORCHVISION)},
            [Goal(name, TORCHVISION, at_most=1) for name in (CONSTRUCTION, FIRST, BOTH, MEMORY)],
        ),
        Case(
            cached,
            {name: rivals[name] for name in (CACHED, TORCHVISION)},
            [Goal(name, TORCHVISION, at_most=1) for name in (CONSTRUCTION, FIRST, BOTH, MEMORY)],
        ),
        *(
            Case(
                f"a listing of {listed:,} files, {start}",
                {OURS: {"rival": OURS, "start": start, **listing}},
                [Goal(CONSTRUCTION, at_most=5), Goal(FURTHER, at_most=20)],
            )
            for start in ("fork", "spawn")
        ),
    ]


def make_folder(data: Path, folder: Path, files: int) -> None:
    """Makes class folders of hard links, and leaves no listing."""
    sound = [path for path in sorted(data.glob("*/*.jpg")) if is_whole(path)][:400]
    print(f"{folder}: {files:,} links to {len(sound)} photographs", file=sys.stderr)
    photographs = cycle(sound)
    classes = min(CLASSES, files)
    for number in range(classes):
        name = folder / f"n{number:08d}"
        name.mkdir(parents=True)
        for file in range(number * files // classes, (number + 1) * files // classes):
            os.link(next(photographs), f"{name}/{name.name}_{file}.JPEG")
    os.sync()


def is_whole(path: Path) -> bool:
    """Some of the photographs are truncated on purpose."""
    return path.read_bytes().endswith(b"\xff\xd9")


def make_empty(folder: Path) -> Path:
    for number in range(CLASSES):
        (folder / f"n{number:08d}").mkdir(parents=True)
    return folder


def measure(rival: str, root: str, cache: str, files: int, start: str = "") -> Figures:
    warnings.simplefilter("ignore")  # of more workers than processors
    import torch

    torch.set_num_threads(1)
    if start:
        return from_listing(root, Path(cache), files, start)
    kind, options = constructor(rival, cache)
    if rival == CACHED:
        kind(root, **options)  # the first start, which writes the listing
    began, used = time.perf_counter(), method.cpu_seconds()
    dataset = kind(root, transform=as_tensor, **options)
    seconds, used = time.perf_counter() - began, method.cpu_seconds() - used
    assert len(dataset) == files
    loader = method.data_loader("torch" if rival == TORCHVISION else "stoker")
    began = time.perf_counter()
    iterator = iter(loader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS))
    images, _ = next(iterator)
    first = time.perf_counter() - began
    assert images.shape == (BATCH, 64, 64, 3)
    del iterator, dataset, images
    gc.collect()
    few = min(files // 10, 200_000)
    without = memory(loader, Few(), few, WORKERS)[0]
    before = method.memory_of_all()
    dataset = kind(root, loader=len, **options)
    gc.collect()
    alone = method.memory_of_all() - before
    return {
        CONSTRUCTION: seconds,
        CPU: used,
        FIRST: first,
        BOTH: seconds + first,
        MEMORY: (memory(loader, dataset, few, WORKERS)[0] - without) / 1e6,
        ONE: alone / 1e6,
    }


def constructor(rival: str, cache: str) -> tuple[Any, dict[str, Any]]:
    if rival == TORCHVISION:
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")  # its compiled part may be of another torch
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from torchvision.datasets import ImageFolder

        return ImageFolder, {}
    import stoker

    return stoker.ImageFolder, {"cache": cache if rival == CACHED else False}


def from_listing(root: str, cache: Path, files: int, start: str) -> Figures:
    import stoker

    write_listing(root, cache, files)
    before = method.memory_of_all()
    began, used = time.perf_counter(), method.cpu_seconds()
    dataset = stoker.ImageFolder(root, loader=len, cache=cache)
    seconds, used = time.perf_counter() - began, method.cpu_seconds() - used
    assert len(dataset) == files
    gc.collect()
    alone = method.memory_of_all() - before
    several = {
        workers: memory(stoker.DataLoader, dataset, files // 10, workers, multiprocessing_context=start)[0]
        - memory(stoker.DataLoader, Few(), files // 10, workers, multiprocessing_context=start)[0]
        for workers in (2, 6)
    }
    return {
        CONSTRUCTION: seconds,
        CPU: used,
        FURTHER: (several[6] - several[2]) / 4 / 1e6,
        ONE: alone / 1e6,
    }


def write_listing(root: str, cache: Path, files: int) -> None:
    """Writes the cached listing that a first start would have written, were the files there."""
    from stoker.sources import listing, read_image

    if cache.exists():
        return
    folders = []
    for number in range(CLASSES):
        name = f"n{number:08d}"
        status = os.stat(f"{root}/{name}")
        some = range(number * files // CLASSES, (number + 1) * files // CLASSES)
        names = "".join(sorted(f"{name}_{file}.JPEG\0" for file in some)).encode()
        stamp = status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        folders.append(listing.ListedFolder(name, stamp, len(some), names))
    key = {"root": os.path.realpath(root), "extensions": list(read_image.EXTENSIONS)}
    listing.save(cache, key, folders)


def memory(loader: Any, dataset: Any, samples: int, workers: int, **options: Any) -> tuple[int, int]:
    """Bytes of all processes when workers have made nine tenths of so many samples, and these samples."""
    import torch

    places = torch.randperm(len(dataset))[:samples] if len(dataset) > samples else torch.zeros(samples, dtype=int)
    sampler = places.tolist()
    iterator = iter(loader(dataset, batch_size=256, sampler=sampler, num_workers=workers, **options))
    for _ in range(samples // 256 * 9 // 10):
        next(iterator)
    used = method.memory_of_all()
    del iterator
    return used, samples


def as_tensor(image: Any) -> Any:
    import numpy as np
    import torch

    return torch.from_numpy(np.array(image.resize((64, 64))))


class Few:
    """A dataset that takes no memory."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return index, index


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=3)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="photographs, see make_photos.py")
    arguments.add_argument("--files", type=int, help="number of files; without it 1,200,000, quick 20,000")
    method.main(arguments, cases, measure)
