"""Photographs by a decoder that is made for speed, as one who wants it writes the dataset."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

SIDE = 224


class Crops:
    """Samples are `(image, label)`: a random part of the photograph, uint8, (SIDE, SIDE, 3), mirrored or not.

    Args:
        paths: the JPEG files; none is smaller than a part.
        labels: their classes.
        pillow: whether Pillow decodes, else simplejpeg, which is libjpeg-turbo and nothing around it.
    """

    def __init__(self, paths: list[Path], labels: list[int], pillow: bool = False) -> None:
        self.paths, self.labels, self.pillow = [*map(str, paths)], labels, pillow

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        photograph = (by_pillow if self.pillow else by_simplejpeg)(self.paths[index])
        height, width, _ = photograph.shape
        top, left = random.randint(0, height - SIDE), random.randint(0, width - SIDE)
        image = photograph[top : top + SIDE, left : left + SIDE]
        if random.random() < 0.5:
            image = image[:, ::-1]
        return np.ascontiguousarray(image), self.labels[index]


def by_pillow(path: str) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(path) as file:
        return np.asarray(file.convert("RGB"))


def by_simplejpeg(path: str) -> Any:
    import simplejpeg

    with open(path, "rb") as file:
        return simplejpeg.decode_jpeg(file.read())
