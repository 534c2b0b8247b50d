"""How fast are JPEGs cropped and resized, beside Pillow, other decoders and a bare loop in C?

The photographs are those that `make demo` builds (`--data`), 500 x 375 pixels, without the truncated ones. `large` are
12 megapixels: parts of the photographs, enlarged, with noise as a camera's, so that a file has over 2 MB.

*Kernel* cases give the same boxes to each rival, from two threads: `stoker.images.decode` into an array, the compiled
decoder in a C loop that reads the same files (`bare C`), Pillow as torchvision uses it, and simplejpeg with OpenCV,
which decodes whole photographs and resizes without antialiasing. *Loader* cases run torchvision's `ImageFolder` and
transforms, unmodified, with two workers and batches of 64: over torch's loader with Pillow as it is, and after
`stoker.images.register()`; after `stoker.install()`; and over Stoker's loader (`import change`), whose workers read
JPEGs by Stoker's reader unless `STOKER_IMAGES=0` leaves them to Pillow (`stoker, Pillow`). PNG and WebP are always
decoded by Pillow: there, `decode` must not be slower.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import method
import rivals
from method import Case, Figures, Goal

SIDE, BATCH, WORKERS, THREADS, WARM_UP = 224, 64, 2, 2, 4
RATE, CPU = "images/s", "CPU-ms per image"
LARGE, LARGE_SIZE = 24, (4000, 3000)
TORCH, OURS = "torch, Pillow", "import change"
LOADERS = (OURS, "install()", "stoker, Pillow", "torch, registered", TORCH)
KERNELS = ("stoker", "bare C", "Pillow", "simplejpeg + OpenCV")


class Box(NamedTuple):
    """What is made of a file: its crop (left, upper, right, lower), mirrored or not, resized to SIDE or not."""

    path: str
    corners: tuple[int, int, int, int]
    flip: bool
    resized: bool


def cases(options: argparse.Namespace) -> list[Case]:
    folders = prepare(options.data, 8 if options.quick else LARGE)

    def kernel(work: str, names: tuple[str, ...] = KERNELS, of: str = "photographs") -> dict[str, dict[str, Any]]:
        images = {"large": 24, "photographs": 400}[of] if options.quick else {"large": 96, "photographs": 3000}[of]
        return {n: {"rival": n, "work": work, "folder": str(folders[of]), "count": images} for n in names}

    def loaders(work: str, of: str = "photographs") -> dict[str, dict[str, Any]]:
        batches = {"large": 4, "photographs": 6}[of] if options.quick else {"large": 24, "photographs": 30}[of]
        return {n: {"rival": n, "work": work, "folder": str(folders[of]), "count": batches} for n in LOADERS}

    def goals(least: float) -> list[Goal]:
        return [Goal(RATE, TORCH, at_least=least), Goal(RATE, "stoker, Pillow", at_least=1, headline=False)]

    others = [
        Case(f"kernel: {format}", kernel(format, ("stoker", "Pillow")), [Goal(RATE, "Pillow", at_least=0.98)])
        for format in ("PNG", "WebP")
    ]
    return [
        Case("kernel: random crop, resized", kernel("resized"), [Goal(RATE, "bare C", at_least=0.95)]),
        Case("kernel: random crop", kernel("cropped"), [Goal(RATE, "bare C", at_least=0.92)]),
        Case(
            "kernel: large, random crop, resized", kernel("resized", of="large"), [Goal(RATE, "bare C", at_least=0.95)]
        ),
        *others,
        Case("loader: random crop, resized, uint8", loaders("resized"), goals(1.9)),
        Case("loader: random crop, resized, normalised", loaders("normalised"), goals(1.8)),
        Case("loader: random crop", loaders("cropped"), goals(1.8)),
        Case("loader: validation", loaders("validation"), goals(2.5)),
        Case("loader: large, random crop, resized", loaders("resized", "large"), goals(3.5)),
    ]


def measure(rival: str, work: str, folder: str, count: int) -> Figures:
    try:
        return (by_loader if rival in LOADERS else by_threads)(rival, work, Path(folder), count)
    except ImportError:
        return dict.fromkeys((RATE, CPU), rivals.NOT_INSTALLED)


# The files


def prepare(data: Path, large: int) -> dict[str, Path]:
    """Folders of sound photographs: hard links to those of `make demo`, and large ones, made once."""
    if not data.is_dir():
        raise SystemExit(f"no photographs in {data}: `python examples/make_photos.py --data {data}`")
    folders = {name: data.with_name(f"{data.name}-{name}") for name in ("photographs", "large")}
    with closing(sqlite3.connect(data / "samples.sqlite")) as table:
        query = "SELECT file_path FROM samples WHERE is_verified = 1 ORDER BY sample_id"
        paths = [data / path for (path,) in table.execute(query)]
    for path in paths:
        link = folders["photographs"] / path.relative_to(data)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            os.link(path, link)
    for number in range(large):
        target = folders["large"] / "all" / f"{number:03}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_bytes(enlarged(paths[number * 31 % len(paths)], number))
    return folders


def enlarged(path: Path, seed: int) -> bytes:
    """A photograph of 12 megapixels with the noise of a camera, quality 90, 4:2:0."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB").resize(LARGE_SIZE, Image.Resampling.BICUBIC)).astype(np.float32)
    pixels += np.random.default_rng(seed).normal(0, 4, pixels.shape).astype(np.float32)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90, subsampling=2)
    return file.getvalue()


def boxes(folder: Path, work: str, count: int) -> list[Box]:
    """Random crops as torchvision draws them, the same for each rival."""
    from PIL import Image

    rng, paths = random.Random(7), sorted(folder.rglob("*.jpg"))
    sizes = {}
    result = []
    for number in range(count):
        path = paths[number % len(paths)]
        if path not in sizes:
            with Image.open(path) as image:
                sizes[path] = image.size
        width, height = sizes[path]
        across = down = SIDE
        if work == "resized":
            area, ratio = width * height * rng.uniform(0.08, 1), rng.uniform(0.75, 4 / 3)
            across, down = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
        left, upper = rng.randint(0, width - across), rng.randint(0, height - down)
        corners = (left, upper, left + across, upper + down)
        result.append(Box(str(path), corners, rng.random() < 0.5, work == "resized"))
    return result


# From two threads


def by_threads(rival: str, work: str, folder: Path, count: int) -> Figures:
    decode: Callable[[list[Box]], None]
    wanted = boxes(folder, "resized" if work in ("PNG", "WebP") else work, count)
    if work in ("PNG", "WebP"):
        wanted = [box._replace(path=converted(box.path, work, folder)) for box in wanted[: count // 8]]
    decode = {"stoker": by_stoker, "bare C": by_bare_c, "Pillow": by_pillow}.get(rival, by_opencv)
    decode(wanted[:THREADS])
    shares = [wanted[number::THREADS] for number in range(THREADS)]
    threads = [threading.Thread(target=decode, args=(share,)) for share in shares]
    began, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, used = time.perf_counter() - began, time.process_time() - used
    return {RATE: len(wanted) / seconds, CPU: 1e3 * used / len(wanted)}


def converted(path: str, format: str, folder: Path) -> str:
    """The photograph in another format, made once."""
    from PIL import Image

    target = folder.with_name(f"{folder.name}-{format}") / Path(path).with_suffix(f".{format.lower()}").name
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        with Image.open(path) as image:
            image.save(target)
    return str(target)


def by_stoker(wanted: list[Box]) -> None:
    import numpy as np

    from stoker import images

    out = np.empty((SIDE, SIDE, 3), np.uint8)
    for box in wanted:
        images.decode(box.path, box.corners, (SIDE, SIDE), box.flip, out=out)


def by_bare_c(wanted: list[Box]) -> None:
    import numpy as np

    from stoker.images import kernel

    found = kernel.bound()
    if found is None:
        raise SystemExit(kernel.backend())
    out = np.empty((SIDE, SIDE, 3), np.uint8)
    jobs = (kernel.jpeg.DecodeJob * len(wanted))()
    for number, box in enumerate(wanted):
        left, upper, right, lower = box.corners
        place = (left, upper, right - left, lower - upper)
        jobs[number] = kernel.Request(place, (SIDE, SIDE), (0, 0, SIDE, SIDE), flip=box.flip).job(found, out)
    paths = (ctypes.c_char_p * len(wanted))(*(os.fsencode(box.path) for box in wanted))
    missed = found.functions.decode_files(jobs, paths, len(wanted))
    assert missed == 0


def by_pillow(wanted: list[Box]) -> None:
    for box in wanted:
        pixels_by_pillow(box)


def pixels_by_pillow(box: Box) -> Any:
    """As a dataset's `__getitem__` does it: images are freed before the next one is opened."""
    import numpy as np
    from PIL import Image

    with Image.open(box.path) as file:
        image = file.convert("RGB").crop(box.corners).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if box.flip else image)


def by_opencv(wanted: list[Box]) -> None:
    import cv2
    import numpy as np
    import simplejpeg

    cv2.setNumThreads(0)
    for box in wanted:
        with open(box.path, "rb") as file:
            whole = simplejpeg.decode_jpeg(file.read())
        left, upper, right, lower = box.corners
        part = whole[upper:lower, left:right]
        part = cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR) if box.resized else part
        np.ascontiguousarray(part[:, ::-1] if box.flip else part)


# Over a loader


def by_loader(rival: str, work: str, folder: Path, count: int) -> Figures:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # its compiled operators are not needed
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import datasets, transforms

    import stoker
    from stoker import images

    if rival == "install()":
        stoker.install()
    if rival == "stoker, Pillow":
        os.environ["STOKER_IMAGES"] = "0"
    if rival == "torch, registered":
        images.register()
    random_crop = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
    steps = {
        "resized": [*random_crop, transforms.PILToTensor()],
        "normalised": [*random_crop, transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.2] * 3)],
        "cropped": [transforms.RandomCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()],
        "validation": [transforms.Resize(256), transforms.CenterCrop(SIDE), transforms.PILToTensor()],
    }[work]
    batch = BATCH if "large" not in folder.name else 8
    warm_up = WARM_UP if batch == BATCH else 2
    dataset = datasets.ImageFolder(str(folder), transforms.Compose(steps))
    samples = batch * (count + warm_up + 2 * WORKERS)
    sampler = [number % len(dataset) for number in random.Random(3).sample(range(10 * samples), samples)]
    make = stoker.DataLoader if rival in (OURS, "stoker, Pillow") else torch.utils.data.DataLoader
    torch.set_num_threads(1)
    iterator = iter(make(dataset, batch_size=batch, sampler=sampler, num_workers=WORKERS))
    for _ in range(warm_up):
        next(iterator)
    began, used = time.perf_counter(), method.cpu_seconds()
    for _ in range(count):
        next(iterator)
    seconds, used = time.perf_counter() - began, method.cpu_seconds() - used
    del iterator
    return {RATE: count * batch / seconds, CPU: 1e3 * used / (count * batch)}


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs of `make demo`")
    method.main(arguments, cases, measure)
