"""The demo's comparison: its pictures, and its programs by turns, each time in a fresh process.

1. `torch`: torch's loader, as tutorials write it: a dataset of class folders, opened by Pillow, with torchvision's
   transforms where torchvision can be imported, else the same crop by Pillow alone.
2. `install`: the same, behind `stoker.install()`.
3. `stoker`: `stoker.ImageFolder`, the transforms of `stoker.images`, `stoker.DataLoader`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from stoker.errors import MissingExtraError

LONGEST = 600.0
"""Seconds after which a program is ended."""


class DemoError(RuntimeError):
    """A program of the demo fails: the message has its last line."""


@dataclass(frozen=True)
class ProgramFigures:
    """The medians of a program's runs.

    Attributes:
        images_per_second: behind the first batch.
        first_batch_seconds: from the loader to its first batch.
        cpu_seconds_per_1000: processor time of all processes for 1,000 images.
        crops: the library that makes the crops.
        equal_pixels: whether all pixels compared are Pillow's; None if the program does not compare them.
    """

    program: str
    images_per_second: float
    first_batch_seconds: float
    cpu_seconds_per_1000: float
    crops: str
    equal_pixels: bool | None


def compare(folder: str, workers: int, rounds: int, on_run: Callable[[str, int], object]) -> list[ProgramFigures]:
    """Runs each program `rounds` times, by turns, and returns their figures.

    Args:
        folder: of the pictures.
        workers: of each loader.
        rounds: the second one runs them in the opposite order, and so on.
        on_run: is called before each run with the program's name and the number of runs done.

    Raises:
        DemoError: a program fails, or takes longer than `LONGEST`.
    """
    runs: dict[str, list[dict[str, Any]]] = {program: [] for program in PROGRAMS}
    for number in range(rounds):
        for program in PROGRAMS[:: -1 if number % 2 else 1]:
            on_run(program, sum(map(len, runs.values())))
            runs[program].append(_run(program, folder, workers))
    return [_figures(program, found) for program, found in runs.items()]


def _run(program: str, folder: str, workers: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "stoker.diagnostics.demo", program, folder, str(workers)]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired as error:
        raise DemoError(
            f"the program {program!r} of the demo took longer than {LONGEST:.0f} s, and was ended"
        ) from error
    if ended.returncode:
        last = (ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1]
        raise DemoError(f"the program {program!r} of the demo failed: {last}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _figures(program: str, runs: list[dict[str, Any]]) -> ProgramFigures:
    names = "images_per_second", "first_batch_seconds", "cpu_seconds_per_1000"
    rate, first, used = (median(run[name] for run in runs) for name in names)
    equal = [run["equal_pixels"] for run in runs if "equal_pixels" in run]
    return ProgramFigures(program, rate, first, used, runs[0]["crops"], all(equal) if equal else None)


SIZE = 500, 375
"""Width and height, as of most photographs of ImageNet."""

CLASSES = "circles", "stripes", "squares", "plain"
_TEXTURES = 8
_QUALITY = 88


def make_pictures(folder: Path, count: int, on_progress: Callable[[int, int], object]) -> int:
    """Writes pictures into class folders; those that exist are kept. Repeats: picture `n` is always the same.

    Args:
        folder: is made if it does not exist.
        on_progress: is called with the number of pictures that are there, and of all.

    Returns:
        The bytes of all.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            "the demo needs Pillow, which is not installed: pip install 'stoker[images]'"
        ) from error
    textures: dict[int, Any] = {}
    written = 0
    for number in range(count):
        name = CLASSES[number % len(CLASSES)]
        path = folder / name / f"{number:06d}.jpg"
        if not path.exists():
            seed = number // len(CLASSES) % _TEXTURES
            if seed not in textures:
                textures[seed] = _texture(seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            Image.fromarray(_picture(textures[seed], name, number)).save(partial, "JPEG", quality=_QUALITY)
            partial.replace(path)
        written += path.stat().st_size
        on_progress(number + 1, count)
    return written


def _texture(seed: int) -> Any:
    """Returns noise of twice the size whose spectrum falls with the frequency, as a photograph's: float32, 0 to 1."""
    rng = np.random.default_rng(seed)
    width, height = 2 * SIZE[0], 2 * SIZE[1]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1.0
    layers = []
    for _ in range(3):
        waves = np.fft.rfft2(rng.standard_normal((height, width))) / frequency**1.2
        layer = np.fft.irfft2(waves, (height, width))
        layers.append((layer - layer.min()) / np.ptp(layer))
    return np.stack(layers, -1).astype(np.float32)


def _picture(texture: Any, name: str, number: int) -> Any:
    """Returns a part of the texture with the figure of its class, (height, width, 3), uint8."""
    rng = np.random.default_rng([7, number])
    width, height = SIZE
    left, top = int(rng.integers(width)), int(rng.integers(height))
    pixels = 255 * texture[top : top + height, left : left + width]
    across, down = np.arange(width)[None], np.arange(height)[:, None]
    x, y, radius = rng.integers(100, width - 100), rng.integers(80, height - 80), rng.integers(40, 80)
    shape = {
        "circles": (across - x) ** 2 + (down - y) ** 2 < radius**2,
        "stripes": (across + down) // (radius // 3) % 4 == 0,
        "squares": (abs(across - x) < radius) & (abs(down - y) < radius),
        "plain": np.zeros((height, width), np.bool_),
    }[name]
    pixels = np.where(shape[..., None], 0.5 * pixels + rng.integers(0, 128, 3), pixels)
    return (pixels + rng.normal(0, 3, pixels.shape)).clip(0, 255).astype(np.uint8)


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
