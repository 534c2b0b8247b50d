"""Crops, flips and erased boxes of batches, each image with random numbers of its own."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.device.transforms.operation import BatchOperation, back_to, on, pair, probability, sent
from stoker.errors import ImageArgumentError
from stoker.loader._random.batch_draws import BatchDraws, batch_draws

TRIES = 10
"""Boxes that are drawn for an image at most, as in torchvision."""

Boxes = NDArray[np.int64]
"""top, left, height, width of a box in each image: (N, 4)."""

FILTERS = {"bilinear": 1.0, "bicubic": 2.0}
"""Interpolations, and how far their filters reach, in pixels."""


class RandomHorizontalFlip(BatchOperation):
    """Mirrors each image left to right, with a given probability.

    Args:
        p: the probability, from 0 to 1.
        field: see `BatchOperation`.
    """

    def __init__(self, p: float = 0.5, field: Hashable | None = None) -> None:
        super().__init__(field)
        self.p = probability(p)

    def apply(self, images: Any) -> Any:
        import torch

        places = np.flatnonzero(batch_draws(len(images)).uniform() < self.p)
        flipped = images.clone()
        if images.device.type == "cpu":
            for place in places:
                flipped[place] = images[place].flip(-1)
            return flipped
        at = sent(torch.from_numpy(places), images.device)
        flipped[at] = images[at].flip(-1)
        return flipped


class RandomResizedCrop(BatchOperation):
    """Crops a random box of each image, of random area and aspect ratio, and resizes it.

    Args:
        size: height and width of the result; one number for a square.
        scale: least and greatest area of the box, as shares of the image's.
        ratio: least and greatest ratio of the box's width to its height.
        interpolation: "bilinear" or "bicubic", or torchvision's `InterpolationMode`.
        antialias: True gives torchvision's pixels: on the CPU image by image, on a device by two products of matrices.
            False is one `grid_sample` of the batch ("bilinear" alone), in which pixels between those that are sampled
            do not count; on the CPU it takes longer.
        field: see `BatchOperation`.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Any = "bilinear",
        antialias: bool = True,
        field: Hashable | None = None,
    ) -> None:
        super().__init__(field)
        sides = (size, size) if isinstance(size, int) else tuple(size) * (2 // max(1, len(size)))
        if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
            raise ImageArgumentError(f"size={size!r} is neither a positive integer nor a pair (height, width) of them")
        self.size = (sides[0], sides[1])
        self.scale = pair("scale", scale, 0, 1)
        self.ratio = pair("ratio", ratio, 1e-6, 1e6)
        self.interpolation = str(getattr(interpolation, "value", interpolation))
        if self.interpolation not in FILTERS or not (antialias or self.interpolation == "bilinear"):
            raise ImageArgumentError(
                f"interpolation={interpolation!r} with antialias={antialias}: it must be 'bilinear', or 'bicubic' with "
                "antialias=True"
            )
        self.antialias = bool(antialias)

    def apply(self, images: Any) -> Any:
        height, width = images.shape[2:]
        boxes = drawn_boxes(batch_draws(len(images)), height, width, self.scale, self.ratio)
        if not self.antialias:
            return sampled(images, boxes, self.size)
        if images.device.type == "cpu":
            return resized(images, boxes, self.size, self.interpolation)
        return multiplied(images, boxes, self.size, self.interpolation)


class RandomErasing(BatchOperation):
    """Erases a random box of each image, with a given probability. It stands behind `Normalize`, or takes uint8.

    Args:
        p: the probability, from 0 to 1.
        scale: least and greatest area of the box, as shares of the image's.
        ratio: least and greatest ratio of the box's height to its width.
        value: what the box is filled with: a number, one for each channel, or "random" for normal noise.
        field: see `BatchOperation`.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: Any = 0,
        field: Hashable | None = None,
    ) -> None:
        super().__init__(field)
        self.p, self.scale, self.ratio = probability(p), pair("scale", scale, 0, 1), pair("ratio", ratio, 1e-6, 1e6)
        if isinstance(value, str) and value != "random":
            raise ImageArgumentError(f"value={value!r} is neither a number, nor numbers, nor 'random'")
        self.value = value

    def apply(self, images: Any) -> Any:
        import torch

        count, channels, height, width = images.shape
        draws = batch_draws(count)
        chosen = draws.uniform() < self.p
        boxes = erased_boxes(draws, height, width, self.scale, self.ratio)
        erased = images.clone()
        random = isinstance(self.value, str)
        if random and not images.is_floating_point():
            raise ImageArgumentError(f"value='random' draws normal numbers, and the images are {images.dtype}")
        filling = None if random else np.atleast_1d(np.asarray(self.value, np.float64))
        if filling is not None and filling.shape not in ((1,), (channels,)):
            raise ImageArgumentError(f"value={self.value!r} has {filling.size} numbers for {channels} channels")
        for place in np.flatnonzero(chosen & (boxes[:, 2] > 0)).tolist():
            top, left, h, w = boxes[place].tolist()
            if filling is None:
                noise = torch.from_numpy(draws.generator(place).standard_normal((channels, h, w), np.float32))
            else:
                noise = torch.from_numpy(filling)[:, None, None]
            erased[place, :, top : top + h, left : left + w] = sent(noise.to(images.dtype), images.device)
        return erased


def drawn_boxes(
    draws: BatchDraws, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Boxes:
    """Returns a box in each image, drawn as by torchvision's `RandomResizedCrop`: the first that fits, or the largest
    one in the middle."""
    w, h = _sides(draws, height, width, scale, ratio)
    fits = np.asarray((w > 0) & (w <= width) & (h > 0) & (h <= height))
    rows, first = np.arange(len(draws)), fits.argmax(1)
    w, h = w[rows, first], h[rows, first]
    top = np.floor(draws.uniform(0, height - h + 1)).astype(np.int64)
    left = np.floor(draws.uniform(0, width - w + 1)).astype(np.int64)
    whole_w, whole_h = width, height
    if width / height < ratio[0]:
        whole_h = min(height, max(1, round(width / ratio[0])))
    elif width / height > ratio[1]:
        whole_w = min(width, max(1, round(height * ratio[1])))
    middle = ((height - whole_h) // 2, (width - whole_w) // 2, whole_h, whole_w)
    return np.where(np.any(fits, axis=1, keepdims=True), np.stack([top, left, h, w], 1), np.array(middle, np.int64))


def erased_boxes(
    draws: BatchDraws, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Boxes:
    """Returns a box in each image, drawn as by torchvision's `RandomErasing`; of height 0 where none was smaller than
    the image."""
    h, w = _sides(draws, height, width, scale, ratio)
    fits = np.asarray((h < height) & (w < width))
    rows, first = np.arange(len(draws)), fits.argmax(1)
    h, w = h[rows, first], w[rows, first]
    top = np.floor(draws.uniform(0, height - h + 1)).astype(np.int64)
    left = np.floor(draws.uniform(0, width - w + 1)).astype(np.int64)
    return np.where(np.any(fits, axis=1, keepdims=True), np.stack([top, left, h, w], 1), 0)


def _sides(
    draws: BatchDraws, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Boxes, Boxes]:
    """Returns the sides of `TRIES` boxes for each image, the one that `ratio` divides first: two of (N, TRIES)."""
    areas = height * width * draws.uniform(*scale, size=(TRIES,))
    ratios = np.exp(draws.uniform(math.log(ratio[0]), math.log(ratio[1]), size=(TRIES,)))
    long, short = np.sqrt(areas * ratios), np.sqrt(areas / ratios)
    return np.round(long).astype(np.int64), np.round(short).astype(np.int64)


def resized(images: Any, boxes: Boxes, size: tuple[int, int], interpolation: str) -> Any:
    """Returns the boxes of the images resized as torchvision does, antialiased: (N, C, *size)."""
    import torch
    from torch.nn.functional import interpolate

    layout = torch.channels_last if _is_channels_last(images) else torch.contiguous_format
    out = torch.empty(*images.shape[:2], *size, dtype=images.dtype, memory_format=layout)
    takes_bytes = interpolation == "bicubic" or torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    converts = images.dtype == torch.uint8 and not takes_bytes
    for place, (top, left, h, w) in enumerate(boxes.tolist()):
        box = images[place : place + 1, :, top : top + h, left : left + w]
        box = box.to(torch.float32) if converts else box
        done = interpolate(box, size, mode=interpolation, align_corners=False, antialias=True)
        out[place : place + 1] = back_to(images.dtype, done)
    return out


def multiplied(images: Any, boxes: Boxes, size: tuple[int, int], interpolation: str) -> Any:
    """Returns what `resized` does, for the whole batch by two products of matrices: weights for rows and columns."""
    import torch

    down = _weights(images, boxes[:, 0], boxes[:, 2], images.shape[2], size[0], interpolation)
    across = _weights(images, boxes[:, 1], boxes[:, 3], images.shape[3], size[1], interpolation)
    values = images if images.dtype == torch.float32 else images.to(torch.float32)
    done = torch.einsum("nih,nchw,njw->ncij", down, values, across)
    done = back_to(images.dtype, done)
    return done.contiguous(memory_format=torch.channels_last) if _is_channels_last(images) else done.contiguous()


def _weights(images: Any, begin: Boxes, length: Boxes, pixels: int, count: int, interpolation: str) -> Any:
    """Returns how much each pixel of a row counts in each pixel of the result, for each image: (N, count, pixels)."""
    import torch

    start, step = on(images, begin, 3), on(images, length / count, 3)
    at = torch.arange(pixels, device=images.device, dtype=torch.float32)
    center = start + (torch.arange(count, device=images.device, dtype=torch.float32)[:, None] + 0.5) * step
    wide = step.clamp(min=1.0)
    distance = ((at + 0.5 - center) / wide).abs()
    if interpolation == "bilinear":
        weight = (1 - distance).clamp_(min=0)
    else:
        a = -0.5
        near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        far = (((distance - 5) * distance + 8) * distance - 4) * a
        weight = torch.where(distance < 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))
    weight = weight * ((at >= start) & (at < start + on(images, length, 3)))
    return weight / weight.sum(-1, keepdim=True)


def sampled(images: Any, boxes: Boxes, size: tuple[int, int]) -> Any:
    """Returns the boxes of the images resized by one `grid_sample`, not antialiased: (N, C, *size)."""
    import torch
    from torch.nn.functional import grid_sample

    values = images if images.is_floating_point() else images.to(torch.float32)
    rows = _places(images, boxes[:, 0], boxes[:, 2], images.shape[2], size[0])[:, :, None].expand(-1, *size)
    columns = _places(images, boxes[:, 1], boxes[:, 3], images.shape[3], size[1])[:, None, :].expand(-1, *size)
    grid = torch.stack([columns, rows], -1).to(values.dtype)
    done = back_to(images.dtype, grid_sample(values, grid, "bilinear", "border", align_corners=True))
    return done.contiguous(memory_format=torch.channels_last) if _is_channels_last(images) else done.contiguous()


def _places(images: Any, begin: Boxes, length: Boxes, pixels: int, count: int) -> Any:
    """Returns where the pixels of the result lie in a row, from -1 (the first pixel) to 1 (the last): (N, count)."""
    inside = (np.arange(count) + 0.5) * (length[:, None] / count) - 0.5
    inside = np.clip(inside, 0, length[:, None] - 1)  # a crop has no pixels beyond its edge
    return on(images, (begin[:, None] + inside) * 2 / max(1, pixels - 1) - 1, 1).reshape(-1, count)


def _is_channels_last(images: Any) -> bool:
    import torch

    return bool(images.is_contiguous(memory_format=torch.channels_last)) and not images.is_contiguous()
