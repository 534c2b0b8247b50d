"""Transforms of colours, rotations, erased boxes, and policies that draw one of many, with torchvision's parameters.

Pixels are those of torchvision on Pillow images, for equal parameters. The parameters are drawn from
`stoker.sample_rng()`, as those of `transforms.py`. In a `Compose` the steps before one of these are made while the
image is decoded; it then works on the pixels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.errors import ImageArgumentError
from stoker.extend import sample_rng
from stoker.images.pillow import Image, ImageEnhance, ImageOps
from stoker.images.scaling import PendingImage
from stoker.images.transforms import TRIES, ImageTransform, filter_of

Change = Callable[[Image.Image], Image.Image]
Fill = float | Sequence[float] | None


class ColorJitter(ImageTransform):
    """Changes brightness, contrast, saturation and hue by random factors, in a random order.

    Args:
        brightness: greatest change of the factor from 1, or its least and greatest value.
        contrast: likewise.
        saturation: likewise.
        hue: greatest turn of the circle of colours, up to 0.5 (half of it), or the least and greatest turn.
    """

    _shown = ("brightness", "contrast", "saturation", "hue")

    def __init__(
        self,
        brightness: float | Sequence[float] = 0,
        contrast: float | Sequence[float] = 0,
        saturation: float | Sequence[float] = 0,
        hue: float | Sequence[float] = 0,
    ) -> None:
        self.brightness = _around("brightness", brightness, 1.0, 0.0, math.inf)
        self.contrast = _around("contrast", contrast, 1.0, 0.0, math.inf)
        self.saturation = _around("saturation", saturation, 1.0, 0.0, math.inf)
        self.hue = _around("hue", hue, 0.0, -0.5, 0.5)

    def note(self, picture: PendingImage) -> None:
        rng = sample_rng().random_generator
        ranges = {"Brightness": self.brightness, "Contrast": self.contrast, "Color": self.saturation, "Hue": self.hue}
        for name in rng.sample(list(ranges), len(ranges)):
            limits = ranges[name]
            if limits is not None:
                picture.change(_with_colours(name, rng.uniform(*limits)))


class Grayscale(ImageTransform):
    """Makes the image grey.

    Args:
        num_output_channels: 1 for a result of one channel, (height, width, 1); 3 for three equal channels.
    """

    _shown = ("num_output_channels",)

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels not in (1, 3):
            raise ImageArgumentError(f"num_output_channels={num_output_channels!r} is neither 1 nor 3")
        self.num_output_channels = num_output_channels

    def note(self, picture: PendingImage) -> None:
        picture.change(lambda image: image.convert("L").convert("RGB"))
        picture.channels = self.num_output_channels


class RandomRotation(ImageTransform):
    """Rotates the image by a random angle.

    Args:
        degrees: greatest angle to both sides, or the least and greatest angle; counter-clockwise.
        interpolation: "nearest", "bilinear" or "bicubic", or torchvision's `InterpolationMode`.
        expand: whether the result is as large as the rotated image; otherwise it has the image's size.
        center: x and y of the point around which it is rotated. None for the middle.
        fill: value of the pixels outside the image: a number, or three.
    """

    _shown = ("degrees", "interpolation", "expand", "fill")

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Any = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
    ) -> None:
        limits = _around("degrees", degrees, 0.0, -math.inf, math.inf)
        self.degrees = (0.0, 0.0) if limits is None else limits
        self.interpolation = filter_of(interpolation, FILTERS)
        self.expand = bool(expand)
        if center is not None and len(center) != 2:
            raise ImageArgumentError(f"center={center!r} is not a pair (x, y)")
        self.center = None if center is None else (center[0], center[1])
        self.fill = _colour(fill)

    def note(self, picture: PendingImage) -> None:
        angle = sample_rng().random_generator.uniform(*self.degrees)
        how = FILTERS[self.interpolation]
        picture.change(lambda image: image.rotate(angle, how, self.expand, self.center, fillcolor=self.fill))


class RandomErasing:
    """Erases a random box of an image, with a given probability. It stands behind `ToTensor`, or takes uint8 pixels.

    Args:
        p: the probability, from 0 to 1.
        scale: least and greatest area of the box, as shares of the image's.
        ratio: least and greatest ratio of the box's height to its width.
        value: what the box is filled with: a number, one for each channel, or "random" for normal noise.
        inplace: whether the image that it is given is changed.
    """

    reads_files = False

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: Any = 0,
        inplace: bool = False,
    ) -> None:
        if not 0 <= p <= 1:
            raise ImageArgumentError(f"p={p} is no probability: it must be from 0 to 1")
        if len(scale) != 2 or not 0 <= scale[0] <= scale[1] <= 1:
            raise ImageArgumentError(f"scale={scale!r} is no pair (least, greatest) of shares from 0 to 1")
        if len(ratio) != 2 or not 0 < ratio[0] <= ratio[1]:
            raise ImageArgumentError(f"ratio={ratio!r} is no pair (least, greatest) of positive numbers")
        if isinstance(value, str) and value != "random":
            raise ImageArgumentError(f"value={value!r} is neither a number, nor numbers, nor 'random'")
        self.p, self.value, self.inplace = p, value, bool(inplace)
        self.scale, self.ratio = (scale[0], scale[1]), (ratio[0], ratio[1])

    def __call__(self, image: Any) -> Any:
        """Returns the image with a box erased, of the same type and shape.

        Args:
            image: a tensor or array (..., channels, height, width), or a uint8 array (height, width, channels).

        Raises:
            ImageArgumentError: it is neither, `value` has another number of channels, or is "random" for integers.

        Thread safe.
        """
        shape = tuple(getattr(image, "shape", ()))
        if len(shape) < 3:
            raise ImageArgumentError(f"RandomErasing was given {type(image).__name__}: put ToTensor before it")
        is_last = isinstance(image, np.ndarray) and image.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3)
        height, width, channels = shape if is_last else (*shape[-2:], shape[-3])
        rng = sample_rng()
        if rng.random_generator.random() >= self.p or (box := self._box(rng.random_generator, height, width)) is None:
            return image
        upper, left, h, w = box
        erased = image if self.inplace else image.copy() if isinstance(image, np.ndarray) else image.clone()
        rows, columns = slice(upper, upper + h), slice(left, left + w)
        place = (rows, columns) if is_last else (..., rows, columns)
        erased[place] = self._filling(rng, image, channels, h, w, is_last)
        return erased

    def _box(self, rng: Any, height: int, width: int) -> tuple[int, int, int, int] | None:
        """Returns upper, left, height and width, drawn as in torchvision; None if no box was smaller than the image."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(TRIES):
            area, ratio = height * width * rng.uniform(*self.scale), math.exp(rng.uniform(low, high))
            h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if h < height and w < width:
                return rng.randint(0, height - h), rng.randint(0, width - w), h, w
        return None

    def _filling(self, rng: Any, image: Any, channels: int, height: int, width: int, is_last: bool) -> Any:
        """Returns what the box is filled with, of the image's kind."""
        if isinstance(self.value, str):
            if "float" not in str(image.dtype):
                raise ImageArgumentError(f"value='random' draws normal numbers, and the image is {image.dtype}")
            values = rng.numpy_generator.standard_normal((channels, height, width), np.float32)
        else:
            values = np.atleast_1d(np.asarray(self.value))
            if values.shape not in ((1,), (channels,)):
                raise ImageArgumentError(f"value={self.value!r} has {values.size} numbers for {channels} channels")
            values = values if is_last else values[:, None, None]
        return values if isinstance(image, np.ndarray) else image.new_tensor(values)

    def __repr__(self) -> str:
        return f"RandomErasing(p={self.p}, scale={self.scale}, ratio={self.ratio}, value={self.value!r})"


class _Policy(ImageTransform):
    """What policies share: one of many operations is drawn, and its direction."""

    _shown: tuple[str, ...] = ("num_magnitude_bins", "interpolation", "fill")

    def __init__(self, num_magnitude_bins: int, interpolation: Any, fill: Fill) -> None:
        if num_magnitude_bins < 2:
            raise ImageArgumentError(f"num_magnitude_bins={num_magnitude_bins} is too small: it must be at least 2")
        self.num_magnitude_bins = num_magnitude_bins
        self.interpolation = filter_of(interpolation, FILTERS)
        self.fill = _colour(fill)

    def _apply(self, picture: PendingImage, ranges: Mapping[str, tuple[float, float]], place: int | None) -> None:
        """Draws an operation, its magnitude unless it is given, and its direction, and applies it."""
        rng = sample_rng().random_generator
        name = rng.choice(OPERATIONS)
        limits, bins = ranges.get(name), self.num_magnitude_bins
        magnitude = 0.0
        if limits is not None:
            place = rng.randrange(bins) if place is None else place
            magnitude = _steps(*limits, bins)[place]
            if name == "Posterize":
                magnitude = 8 - round(place / ((bins - 1) / (8 - limits[1])))
            if name in SIGNED and rng.random() < 0.5:
                magnitude = -magnitude
        if name != "Identity":
            picture.change(operation(name, magnitude, self.interpolation, self.fill))


class RandAugment(_Policy):
    """Applies random operations, one after another, of one magnitude.

    Args:
        num_ops: number of operations.
        magnitude: from 0 (no change) to `num_magnitude_bins - 1`.
        num_magnitude_bins: number of magnitudes.
        interpolation: "nearest", "bilinear" or "bicubic", or torchvision's `InterpolationMode`.
        fill: value of the pixels outside the image: a number, or three; None for 0.
    """

    _shown = ("num_ops", "magnitude", *_Policy._shown)

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: Fill = None,
    ) -> None:
        super().__init__(num_magnitude_bins, interpolation, fill)
        if not 0 <= magnitude < num_magnitude_bins:
            raise ImageArgumentError(f"magnitude={magnitude} is not from 0 to {num_magnitude_bins - 1}")
        self.num_ops, self.magnitude = num_ops, magnitude

    def note(self, picture: PendingImage) -> None:
        for _ in range(self.num_ops):
            ranges = _ranges(0.3, 150 / 331 * picture.width, 150 / 331 * picture.height, 30.0, 0.9, 4)
            self._apply(picture, ranges, self.magnitude)


class TrivialAugmentWide(_Policy):
    """Applies one random operation of a random magnitude.

    Args:
        num_magnitude_bins: number of magnitudes.
        interpolation: "nearest", "bilinear" or "bicubic", or torchvision's `InterpolationMode`.
        fill: value of the pixels outside the image: a number, or three; None for 0.
    """

    def __init__(self, num_magnitude_bins: int = 31, interpolation: Any = "nearest", fill: Fill = None) -> None:
        super().__init__(num_magnitude_bins, interpolation, fill)

    def note(self, picture: PendingImage) -> None:
        self._apply(picture, _ranges(0.99, 32.0, 32.0, 135.0, 0.99, 2), None)


# The operations of the policies, by torchvision's names.


SIGNED = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness")
OPERATIONS = ("Identity", *SIGNED, "Posterize", "Solarize", "AutoContrast", "Equalize")
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
_PLAIN: dict[str, Change] = {"AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize}


def operation(name: str, magnitude: float, interpolation: str, fill: tuple[int, ...]) -> Change:
    """Returns an operation on Pillow images.

    Args:
        name: one of `OPERATIONS`.
        magnitude: an angle, a share, pixels, bits or a value, as the operation needs.
        interpolation: a key of `FILTERS`, for those that move pixels.
        fill: the colour outside the image, for the same.
    """
    how = FILTERS[interpolation]
    match name:
        case "Rotate":
            return lambda image: image.rotate(magnitude, how, fillcolor=fill)
        case "ShearX" | "ShearY" | "TranslateX" | "TranslateY":
            matrix = _matrix(name, magnitude)
            return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix, how, fillcolor=fill)
        case "Brightness" | "Color" | "Contrast" | "Sharpness":
            return _with_colours(name, 1.0 + magnitude)
        case "Posterize":
            return lambda image: ImageOps.posterize(image, int(magnitude))
        case "Solarize":
            return lambda image: ImageOps.solarize(image, magnitude)  # type: ignore[arg-type]
    return _PLAIN[name]


def _matrix(name: str, magnitude: float) -> tuple[float, ...]:
    """Returns where a pixel of the result comes from: six numbers, as Pillow takes them."""
    if name.startswith("Translate"):
        pixels = float(-int(magnitude))
        return (1.0, 0.0, pixels, 0.0, 1.0, 0.0) if name == "TranslateX" else (1.0, 0.0, 0.0, 0.0, 1.0, pixels)
    angle = math.radians(math.degrees(math.atan(magnitude)))
    if name == "ShearX":
        return (1.0, math.tan(angle), 0.0, 0.0, 1.0, 0.0)
    return (1.0, 0.0, 0.0, math.sin(angle) / math.cos(angle), 1.0, 0.0)


def _with_colours(name: str, factor: float) -> Change:
    if name == "Hue":
        return lambda image: _with_hue(image, factor)
    enhanced: Any = getattr(ImageEnhance, name)
    return lambda image: enhanced(image).enhance(factor)


def _with_hue(image: Image.Image, turn: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.array(int(turn * 255)).astype(np.uint8)  # the circle has 256 steps
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def _ranges(
    shear: float, across: float, down: float, degrees: float, colours: float, bits: int
) -> dict[str, tuple[float, float]]:
    """Returns the least and greatest magnitude of each operation that has one."""
    return {
        **dict.fromkeys(("ShearX", "ShearY"), (0.0, shear)),
        **{"TranslateX": (0.0, across), "TranslateY": (0.0, down), "Rotate": (0.0, degrees)},
        **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), (0.0, colours)),
        **{"Posterize": (8.0, float(bits)), "Solarize": (255.0, 0.0)},
    }


@functools.lru_cache(maxsize=64)
def _steps(begin: float, end: float, count: int) -> tuple[float, ...]:
    """Returns evenly spaced numbers, counted from the nearer end and rounded to float32, as torch's are."""
    step = float((np.float32(end) - np.float32(begin)) / np.float32(count - 1))
    up = [float(np.float32(begin)) + step * number for number in range(count // 2)]
    down = [float(np.float32(end)) - step * (count - 1 - number) for number in range(count // 2, count)]
    return tuple(float(np.float32(number)) for number in (*up, *down))


def _around(name: str, value: float | Sequence[float], middle: float, least: float, most: float) -> Any:
    """Returns the limits of a number that is drawn around `middle`; None if it is always that."""
    pair = (value, value) if not isinstance(value, Sequence) else value
    if len(pair) != 2 or (not isinstance(value, Sequence) and value < 0):
        raise ImageArgumentError(f"{name}={value!r} is neither a number from 0 on nor a pair (least, greatest)")
    low, high = float(pair[0]), float(pair[1])
    if not isinstance(value, Sequence):
        low, high = middle - low, middle + high
        low = max(low, 0.0) if middle else low
    if not least <= low <= high <= most:
        raise ImageArgumentError(f"{name}={value!r} is {low:g} to {high:g}, which is not within {least:g} and {most:g}")
    return None if low == high == middle else (low, high)


def _colour(fill: Fill) -> tuple[int, ...]:
    values = fill if isinstance(fill, Sequence) else (fill or 0,)
    if len(values) not in (1, 3):
        raise ImageArgumentError(f"fill={fill!r} is neither a number nor three")
    return tuple(int(value) for value in values) * (3 // len(values))
