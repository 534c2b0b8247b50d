"""Trains a small network to recognise photographs, with three ways to load them.

    python examples/train_images.py --data data/photos                    # all three, one after the other, side by side
    python examples/train_images.py --data data/photos --loader stoker    # one of them
    python examples/train_images.py --data my/photographs                 # your own: one folder for each class

- `torch`: torch's loader; Pillow opens, crops and resizes the photographs.
- `stoker`: the same data set over Stoker's loader, and `stoker.images.register()`: Pillow decodes only the crop.
- `images`: `stoker.ImageFiles` with the transforms of `stoker.images`.

Four parts, from top to bottom: the data set, the loaders, the network, the training.
"""

from __future__ import annotations

import ctrl_c  # first, so that Ctrl-C is answered while the rest is imported

# isort: split

import json
import math
import os
import random
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import torch
import torch.utils.data
import typer
from cpus import cpus
from figures import Clock, Figures, table
from live_line import LiveLine
from PIL import Image, ImageOps
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import stoker
from stoker.images import CenterCrop, Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop, Resize

SIDE = 128  # pixels, of the square images that the network sees
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
VAL_SHARE = 0.15  # of photographs that come without a table


# 1. The data set


class Photos(stoker.Dataset):
    """Photographs on disk. What describes them is read once, here; a photograph is read when its sample is asked for.

    A sample is the image, as bytes of shape (3, SIDE, SIDE), and the number of its class. To train, the image is a
    random part of the photograph, mirrored or not; to validate, it is the middle.
    """

    def __init__(self, folder: Path, split: str) -> None:
        has_table = (folder / "samples.sqlite").is_file()
        self.paths, self.labels = (read_table if has_table else walk_folders)(folder, split)
        self.augment = split == "train"

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        try:
            with Image.open(self.paths[index]) as file:
                photograph = file.convert("RGB")
        except OSError as error:  # which does not say of which file it speaks
            raise OSError(f"{self.paths[index]}: {error}") from error
        chance = generator()
        box = random_part(photograph, chance) if self.augment else middle(photograph)
        image = photograph.crop(box).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        if self.augment and chance.random() < 0.5:
            image = ImageOps.mirror(image)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), self.labels[index]


def read_table(folder: Path, split: str) -> tuple[list[Path], list[int]]:
    """Returns paths and classes, by one query. The connection is closed again: none ever reaches a worker."""
    query = "SELECT file_path, label_id FROM samples WHERE split_tag = ? AND is_verified ORDER BY sample_id"
    with closing(sqlite3.connect((folder / "samples.sqlite").resolve().as_uri() + "?mode=ro", uri=True)) as database:
        rows = database.execute(query, (split,)).fetchall()
    return [folder / path for path, _ in rows], [label for _, label in rows]


def walk_folders(folder: Path, split: str) -> tuple[list[Path], list[int]]:
    """Returns paths and classes, which are the folders. Which photographs validate is drawn, always the same."""
    found = [
        (path, label)
        for label, subfolder in enumerate(sorted(path for path in folder.glob("[!.]*") if path.is_dir()))
        for path in sorted(subfolder.rglob("*"))
        if path.suffix.lower() in SUFFIXES and not is_hidden(path.relative_to(folder))
    ]
    val = set(random.Random(0).sample(found, round(len(found) * VAL_SHARE)))
    rows = [row for row in found if (row in val) == (split == "val")]
    return [path for path, _ in rows], [label for _, label in rows]


def is_hidden(path: Path) -> bool:
    """Whether it is another program's: a thumbnail, a copy of an editor's."""
    return any(part.startswith(".") for part in path.parts)


def generator() -> random.Random:
    """Returns the generator that Stoker's loader seeds for each sample."""
    return stoker.sample_rng().random_generator


def random_part(image: Image.Image, chance: random.Random) -> tuple[int, int, int, int]:
    """Returns the box of a part that is at least a third as wide and high as it could be."""
    side = min(image.size) * chance.uniform(0.4, 1.0)
    width, height = (max(1, int(side * chance.uniform(0.8, 1.0))) for _ in range(2))
    left, top = chance.randint(0, image.width - width), chance.randint(0, image.height - height)
    return left, top, left + width, top + height


def middle(image: Image.Image) -> tuple[int, int, int, int]:
    """Returns the box of the largest square in the middle."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return left, top, left + side, top + side


def image_files(folder: Path, split: str) -> stoker.ImageFiles:
    """Returns the same photographs as a data set of Stoker's, whose transforms decode only the crop."""
    listing = Photos(folder, split)
    augment: list[Any] = [RandomResizedCrop(SIDE, scale=(0.1, 1.0), ratio=(0.8, 1.25)), RandomHorizontalFlip()]
    steps = augment if split == "train" else [Resize(SIDE), CenterCrop(SIDE)]
    return stoker.ImageFiles(listing.paths, listing.labels, transform=Compose([*steps, PILToTensor()]))


# 2. The loaders


class Loader(StrEnum):
    images = "images"
    stoker = "stoker"
    torch = "torch"


class Backend(StrEnum):
    serial = "serial"
    thread = "thread"
    process = "process"


def make_loaders(
    loader: Loader, train: Any, val: Any, batch_size: int, backend: Backend, workers: int
) -> tuple[Iterable[Any], Iterable[Any]]:
    """Returns what the training and the validation iterate over."""
    DataLoader = torch.utils.data.DataLoader if loader is Loader.torch else stoker.DataLoader
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": 0 if backend is Backend.serial else workers}
    if backend is Backend.thread:
        options["worker_method"] = "thread"  # the one argument here that torch's loader has not
    return DataLoader(train, shuffle=True, **options), DataLoader(val, **options)


# 3. The network


def make_network(classes: int) -> nn.Module:
    """Returns a network of three convolutions that takes images as bytes, of shape (N, 3, SIDE, SIDE)."""
    layers: list[nn.Module] = [Centred()]
    for inputs, outputs, stride in [(3, 16, 4), (16, 32, 2), (32, 64, 2)]:
        layers += [nn.Conv2d(inputs, outputs, 4, stride, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class Centred(nn.Module):
    """Turns bytes into numbers around zero: here and not in the workers, so that batches travel as bytes."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float().div_(127.5).sub_(1)


# 4. The training


def train(
    data: Path, loader: Loader, backend: Backend, workers: int, epochs: int, batch_size: int, line: LiveLine
) -> Figures:
    """Trains for some epochs, each with a validation at its end, and returns what was measured."""
    if loader is Loader.stoker:
        stoker.images.register()  # workers, which are forked, have it too
    data_set = image_files if loader is Loader.images else Photos
    train_set, val_set = data_set(data, "train"), data_set(data, "val")
    if not len(train_set) or not len(val_set):
        raise SystemExit(f"{data} has too few photographs: it takes some 10, in one folder for each class.")
    name = f"{loader.value}, " + (f"{workers} x {backend.value}" if backend is not Backend.serial else "serial")
    line.print(f"{name}: {len(train_set):,} photographs to train, {len(val_set):,} to validate")
    torch.manual_seed(0)
    torch.set_num_threads(threads_left(backend, workers))
    network = make_network(1 + max(*labels_of(train_set), *labels_of(val_set)))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    train_loader, val_loader = make_loaders(loader, train_set, val_set, batch_size, backend, workers)
    with line:
        alone = Clock()
        for batch, _ in enumerate(alone.batches(train_loader), 1):
            line.show("loading alone", batch, len(train_loader), alone, math.nan)
        line.print(f"{name}: loading alone: {alone.rate:,.0f} images/s")
        clock = Clock()
        for epoch in range(1, epochs + 1):
            network.train()
            for batch, (images, labels) in enumerate(clock.batches(train_loader), 1):
                loss = cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                line.show(f"epoch {epoch} of {epochs}", batch, len(train_loader), clock, loss.item())
            accuracy = validate(network, val_loader)
            line.print(
                f"{name}: epoch {epoch} of {epochs}: {clock.rate:,.0f} images/s, waited {clock.wait_share:.0%}, "
                f"loss {loss.item():.2f}, accuracy {accuracy:.0%}"
            )
    return clock.figures(name, accuracy, alone)


def labels_of(data_set: Any) -> Iterable[int]:
    """Returns the classes of all photographs of a data set."""
    return data_set.labels if isinstance(data_set, Photos) else data_set.targets


def threads_left(backend: Backend, workers: int) -> int:
    """Returns how many CPUs the workers leave to the network, one at least: threads that share a CPU only wait."""
    return max(1, cpus() - (0 if backend is Backend.serial else workers))


@torch.no_grad()
def validate(network: nn.Module, loader: Iterable[Any]) -> float:
    """Returns the part of the images that the network recognises."""
    network.eval()
    right = [network(images).argmax(1) == labels for images, labels in loader]
    return torch.cat(right).float().mean().item()


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    data: Annotated[Path, typer.Option(help="The photographs: one folder for each class.")] = Path("data/photos"),
    loader: Annotated[Loader | None, typer.Option(help="The way to load; without it all three, side by side.")] = None,
    backend: Annotated[Backend, typer.Option(help="Who makes the batches.")] = Backend.process,
    workers: Annotated[int, typer.Option(min=1, help="How many threads or processes.")] = 2,
    epochs: Annotated[int, typer.Option(min=1)] = 2,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    json_file: Annotated[Path | None, typer.Option("--json", hidden=True)] = None,
) -> None:
    """Trains a small network to recognise photographs."""
    if not data.is_dir():
        raise SystemExit(f"{data} is no folder: `python examples/make_photos.py --data {data}` makes one.")
    if loader is None:
        compare_loaders()
    if loader is Loader.torch and backend is Backend.thread:
        print("torch's loader has no thread workers: it gets processes")
        backend = Backend.process
    line = LiveLine()
    with ctrl_c.answered(lambda: str(line)):
        figures = train(data, loader, backend, workers, epochs, batch_size, line)
        if json_file is None:
            Console().print(table([figures]))
        else:
            json_file.write_text(json.dumps(asdict(figures)))


def compare_loaders() -> NoReturn:
    """Becomes another program, which runs this one once with each loader and measures its processes from outside."""
    program = Path(__file__).with_name("compare_loaders.py")
    with ctrl_c.held_back():
        os.execv(sys.executable, [sys.executable, str(program), *sys.argv[1:]])


if __name__ == "__main__":
    app()
