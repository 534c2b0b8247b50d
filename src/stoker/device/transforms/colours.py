"""Colours of batches: normalisation, and random changes of each image."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from stoker.device.transforms.operation import BatchOperation, is_last, on, pair, sent, swapped
from stoker.errors import ImageArgumentError
from stoker.loader._random.batch_draws import batch_draws


class Normalize(BatchOperation):
    """Subtracts a mean from each channel and divides by a standard deviation; the result is (N, C, H, W).

    uint8 images become values from 0 to 1 first, so they travel as a quarter of the bytes. The float32 values are those
    of torchvision's `ToTensor` and `Normalize`, bit for bit on the CPU; other dtypes are rounded from them.

    Args:
        mean: of each channel, for values from 0 to 1.
        std: likewise; not 0.
        dtype: name of the result's: "float32", "bfloat16" or "float16".
        channels_last: whether the result has torch's memory format `channels_last`; None for the format of the images,
            which is `channels_last` for images (N, H, W, C).
        field: see `BatchOperation`.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: Any = "float32",
        channels_last: bool | None = None,
        field: Hashable | None = None,
    ) -> None:
        super().__init__(field)
        self.mean, self.std = (tuple(float(value) for value in values) for values in (mean, std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise ImageArgumentError(f"mean={mean!r} and std={std!r} must have as many numbers, one per channel")
        if not all(self.std):
            raise ImageArgumentError(f"std={std!r} has a 0, and each channel is divided by it")
        self.dtype = str(dtype).removeprefix("torch.")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise ImageArgumentError(f"dtype={dtype!r} is none of 'float32', 'bfloat16' and 'float16'")
        self.channels_last = channels_last

    def __call__(self, batch: Any) -> Any:
        images = self._images(batch)
        return swapped(batch, {id(images): self.apply(images.permute(0, 3, 1, 2) if is_last(images) else images)})

    def apply(self, images: Any) -> Any:
        import torch

        if images.shape[1] != len(self.mean):
            raise ImageArgumentError(f"{self!r} was given images of {images.shape[1]} channels: {tuple(images.shape)}")
        values = images.to(torch.float32, copy=True)
        if images.dtype == torch.uint8:
            values.div_(255)
        mean, std = (sent(torch.tensor(each), images.device)[:, None, None] for each in (self.mean, self.std))
        values = values.sub_(mean).div_(std).to(getattr(torch, self.dtype))
        if self.channels_last is None:
            return values
        return values.contiguous(memory_format=torch.channels_last if self.channels_last else torch.contiguous_format)


class ColorJitter(BatchOperation):
    """Changes brightness, contrast, saturation and hue of each image by random factors, in a random order.

    Args:
        brightness: greatest change of the factor from 1, or its least and greatest value.
        contrast: likewise.
        saturation: likewise.
        hue: greatest turn of the circle of colours, up to 0.5 (half of it), or the least and greatest turn.
        field: see `BatchOperation`.
    """

    def __init__(
        self,
        brightness: float | Sequence[float] = 0,
        contrast: float | Sequence[float] = 0,
        saturation: float | Sequence[float] = 0,
        hue: float | Sequence[float] = 0,
        field: Hashable | None = None,
    ) -> None:
        super().__init__(field)
        self.brightness = _around("brightness", brightness, 1.0, 0.0, math.inf)
        self.contrast = _around("contrast", contrast, 1.0, 0.0, math.inf)
        self.saturation = _around("saturation", saturation, 1.0, 0.0, math.inf)
        self.hue = _around("hue", hue, 0.0, -0.5, 0.5)

    def apply(self, images: Any) -> Any:
        if images.shape[1] not in (1, 3):
            raise ImageArgumentError(f"ColorJitter was given images of {images.shape[1]} channels: it takes 1 or 3")
        draws = batch_draws(len(images))
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [None if limits is None else draws.uniform(*limits) for limits in ranges]
        return changed(images, np.argsort(draws.uniform(size=(len(ranges),)), 1), factors)


def changed(images: Any, order: Any, factors: Sequence[Any]) -> Any:
    """Returns the images with each change made in each image's own order.

    Args:
        images: (N, C, H, W).
        order: numbers of changes in the order in which they are made, (N, 4).
        factors: of brightness, contrast, saturation and hue: (N,) each, or None for no change.
    """
    import torch

    images = images.clone()
    for turn in range(order.shape[1]):
        for number, change in enumerate(CHANGES):
            places = np.flatnonzero(order[:, turn] == number)
            factor = factors[number]
            if factor is None or not len(places):
                continue
            at = sent(torch.from_numpy(places), images.device)
            images[at] = change(images[at], factor[places])
    return images


def _brightness(images: Any, factor: Any) -> Any:
    return _bounded(images, images * on(images, factor))


def _contrast(images: Any, factor: Any) -> Any:
    return _blended(images, _grey(images).mean(-1, keepdim=True).mean(-2, keepdim=True), factor)


def _saturation(images: Any, factor: Any) -> Any:
    return images if images.shape[1] == 1 else _blended(images, _grey(images), factor)


def _hue(images: Any, turn: Any) -> Any:
    import torch

    if images.shape[1] == 1:
        return images
    values = images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images
    hue, saturation, value = _to_hsv(values)
    turned = _to_rgb((hue + on(images, turn, 3)).remainder_(1.0), saturation, value)
    return turned.mul_(256 - 1e-3).to(torch.uint8) if images.dtype == torch.uint8 else turned.to(images.dtype)


CHANGES: tuple[Callable[[Any, Any], Any], ...] = (_brightness, _contrast, _saturation, _hue)
"""In the order in which torchvision numbers them."""


def _grey(images: Any) -> Any:
    """Returns the grey values (N, 1, H, W), whole numbers for uint8 images."""
    if images.shape[1] == 1:
        return images if images.is_floating_point() else images.float()
    red, green, blue = images.unbind(1)
    grey = red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(1)
    return grey if images.is_floating_point() else grey.floor_()


def _blended(images: Any, others: Any, factor: Any) -> Any:
    """Returns `factor` of the images, and what is left of 1 of the others."""
    return _bounded(images, images * on(images, factor) + others * on(images, 1.0 - factor))


def _bounded(images: Any, values: Any) -> Any:
    return values.clamp_(0, 1 if images.is_floating_point() else 255).to(images.dtype)


def _to_hsv(images: Any) -> tuple[Any, Any, Any]:
    """Returns hue, saturation and value, from 0 to 1, each (N, H, W), as Pillow computes them."""
    import torch

    red, green, _ = images.unbind(1)
    least, value = torch.aminmax(images, dim=1)
    span, one = value - least, torch.ones_like(value)
    is_grey = value == least
    saturation = span / torch.where(is_grey, one, value)
    rc, gc, bc = ((value.unsqueeze(1) - images) / torch.where(is_grey, one, span).unsqueeze(1)).unbind(1)
    is_red, is_green = value == red, value == green
    hue = torch.where(is_red, bc - gc, torch.where(is_green, rc + 2.0 - bc, gc + 4.0 - rc))
    return (hue / 6.0 + 1.0).fmod_(1.0), saturation, value


def _to_rgb(hue: Any, saturation: Any, value: Any) -> Any:
    """Returns images (N, 3, H, W) from 0 to 1."""
    import torch

    sixths = hue * 6
    part = torch.floor(sixths)
    rest = sixths - part
    p = ((1.0 - saturation) * value).clamp_(0, 1)
    q = ((1.0 - saturation * rest) * value).clamp_(0, 1)
    t = ((1.0 - saturation + saturation * rest) * value).clamp_(0, 1)
    choices = torch.stack([value, p, q, t], 1)
    table = sent(torch.tensor([[0, 2, 1, 1, 3, 0], [3, 0, 0, 2, 1, 1], [1, 1, 3, 0, 0, 2]]), hue.device)
    return choices.gather(1, table[:, part.to(torch.int64).remainder_(6)].movedim(0, 1))


def _around(name: str, value: float | Sequence[float], middle: float, least: float, most: float) -> Any:
    """Returns the limits of a number that is drawn around `middle`; None if it is always that."""
    if not isinstance(value, Sequence):
        if value < 0:
            raise ImageArgumentError(f"{name}={value!r} is neither a number from 0 on nor a pair (least, greatest)")
        value = (max(middle - value, 0.0) if middle else middle - value, middle + value)
    limits = pair(name, value, least, most)
    return None if limits == (middle, middle) else limits
