"""Pictures for the tests, made from a seed: like photographs, with edges, gradients and noise."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

FILES = sorted((Path(__file__).parent / "files").glob("*.jpg"))
BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR
FILTERS = {"bilinear": BILINEAR, "bicubic": BICUBIC}
FLIP = Image.Transpose.FLIP_LEFT_RIGHT
KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "grey": {"mode": "L"},
    "progressive": {"progressive": True, "subsampling": 2},
    "progressive 4:4:4": {"progressive": True, "subsampling": 0},
    "grey progressive": {"progressive": True, "mode": "L"},
    "restart blocks": {"restart_marker_blocks": 3, "subsampling": 2},
    "restart rows": {"restart_marker_rows": 1, "subsampling": 1},
    "optimised": {"optimize": True, "quality": 40, "subsampling": 2},
    "quality 100": {"quality": 100, "subsampling": 2},
}
"""Kinds of JPEG that Pillow writes. `files/` has those that it does not write."""


def photo(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """An image with edges, gradients, saturated areas and noise."""
    rng = np.random.default_rng([width, height, seed])
    y, x = np.mgrid[:height, :width]
    wave = 95 * np.sin(x / rng.uniform(3, 30) + y / rng.uniform(3, 30))
    edges = 60 * ((x // rng.integers(3, 40) + y // rng.integers(3, 40)) % 2)
    planes = [100 + wave + edges, 150 - wave + 0.3 * y, 60 + edges + 0.4 * x]
    values = np.stack(planes, axis=-1) + rng.normal(0, 9, (height, width, 3))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    mode = options.pop("mode", image.mode)
    image.convert(mode).save(file, format, **options)
    return file.getvalue()


def jpeg(kind: str, width: int, height: int, seed: int = 0) -> bytes:
    """A JPEG of one of the kinds."""
    return encoded(photo(width, height, seed), **KINDS[kind])


def some_jpegs() -> Iterator[tuple[str, bytes]]:
    """A JPEG of each kind and of each sampling, in odd sizes, by name."""
    rng = random.Random(5)
    for kind in KINDS:
        width, height = rng.randint(9, 150), rng.randint(9, 150)
        yield kind, jpeg(kind, width, height)
    for path in FILES:
        yield path.stem, path.read_bytes()


class Case:
    """A crop, a size, a window, a mirror, a mode and a filter for a picture of `size`."""

    def __init__(self, rng: random.Random, size: tuple[int, int]) -> None:
        width, height = rng.randint(1, size[0]), rng.randint(1, size[1])
        left, upper = rng.randint(0, size[0] - width), rng.randint(0, size[1] - height)
        self.crop = (left, upper, left + width, upper + height)
        sizes = [(width, height), (rng.randint(1, 90), rng.randint(1, 90)), (width, rng.randint(1, 60)), (33, height)]
        self.size = rng.choice(sizes)
        x, y = rng.randint(0, self.size[0] - 1), rng.randint(0, self.size[1] - 1)
        corners = (x, y, rng.randint(x + 1, self.size[0]), rng.randint(y + 1, self.size[1]))
        self.window = rng.choice([None, None, corners])
        self.flip = rng.random() < 0.5
        self.mode = rng.choice(["RGB", "RGB", "L"])
        self.resample = rng.choice(["bilinear", "bicubic"])

    def by_pillow(self, image: Image.Image) -> np.ndarray:
        """What Pillow makes of it."""
        image = image.convert(self.mode).crop(self.crop).resize(self.size, FILTERS[self.resample])
        if self.window is not None:
            image = image.crop(self.window)
        return np.asarray(image.transpose(FLIP) if self.flip else image)

    def arguments(self) -> dict[str, Any]:
        """Of `decode`."""
        return vars(self)

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
