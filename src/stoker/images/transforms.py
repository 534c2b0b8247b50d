"""Transforms of images with torchvision's names and parameters, which decode only what they need.

Each takes a path, the bytes of a file, a Pillow image or a uint8 array (height, width, 3), and returns a uint8 array
(height, width, 3). In a `Compose` the crop, the resize and the flip are noted and made in one step while the image is
decoded. Random numbers come from `stoker.sample_rng()`, so they repeat with a loader's seed in processes and threads.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.errors import ImageArgumentError
from stoker.extend import sample_rng
from stoker.images.kernel import FILTERS
from stoker.images.scaling import Normalize, PendingImage, ToTensor, pixels_of, scaled

TRIES = 10
"""Boxes that `RandomResizedCrop` draws before it takes the largest one in the middle, as in torchvision."""

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")
"""Torchvision's names, which are NumPy's too."""


class ImageTransform(ABC):
    """A transform of images.

    Attributes:
        reads_files: whether it takes a path or the bytes of a file.
    """

    reads_files = True
    _shown: tuple[str, ...] = ()

    def __call__(self, image: Any) -> Any:
        """Returns the transformed image: a uint8 array (height, width, 3), or with one channel, in memory of its own.

        Args:
            image: a path, the bytes of a file, a Pillow image, or a uint8 array (height, width, 3) or (height, width).

        Raises:
            ImageArgumentError: it is none of these, or too small.
            ImageError, OSError: it cannot be read, as for `stoker.images.decode`.

        Thread safe.
        """
        picture = PendingImage.of(image)
        self.note(picture)
        return picture.result()

    @abstractmethod
    def note(self, picture: PendingImage) -> None:
        """Draws what is random, and notes the operations."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._shown)})"


class RandomResizedCrop(ImageTransform):
    """Crops a random box, of random area and aspect ratio, and resizes it.

    Args:
        size: height and width of the result; one number for a square.
        scale: least and greatest area of the box, as shares of the image's.
        ratio: least and greatest ratio of the box's width to its height.
        interpolation: "bilinear" or "bicubic", or torchvision's `InterpolationMode`; antialiased.
        antialias: True, or None, which is the same; accepted because torchvision has it.
    """

    _shown = ("size", "scale", "ratio", "interpolation")

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        _antialiased(antialias)
        self.size = _pair(size)
        self.scale = _range("scale", scale)
        self.ratio = _range("ratio", ratio)
        self.interpolation = filter_of(interpolation)

    def note(self, picture: PendingImage) -> None:
        picture.crop(*self._box(picture.width, picture.height))
        picture.resize(self.size[1], self.size[0], self.interpolation)

    def _box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Returns left, upper, width and height, drawn as in torchvision: area and logarithm of the ratio uniformly."""
        rng = sample_rng().random_generator
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(TRIES):
            area = width * height * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return rng.randint(0, width - w), rng.randint(0, height - h), w, h
        w, h = width, height
        if width / height < self.ratio[0]:
            h = min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            w = min(width, max(1, round(height * self.ratio[1])))
        return (width - w) // 2, (height - h) // 2, w, h


class Resize(ImageTransform):
    """Resizes the image.

    Args:
        size: height and width of the result; one number for the shorter edge, which keeps the aspect ratio.
        interpolation: "bilinear" or "bicubic", or torchvision's `InterpolationMode`; antialiased.
        max_size: greatest length of the longer edge. Only where `size` is one number, which it must exceed.
        antialias: True, or None, which is the same; accepted because torchvision has it.
    """

    _shown = ("size", "interpolation", "max_size")

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        _antialiased(antialias)
        self.edge: int | None = None
        self.size: Any = size
        if not isinstance(size, Sequence) or len(size) == 1:
            self.edge = _pair(size)[0]
        else:
            self.size = _pair(size)
        if max_size is not None and (self.edge is None or max_size <= self.edge):
            raise ImageArgumentError(
                f"max_size={max_size} needs a size of one number that is smaller, and size is {size}"
            )
        self.max_size = max_size
        self.interpolation = filter_of(interpolation)

    def note(self, picture: PendingImage) -> None:
        picture.resize(*self._target(picture.width, picture.height), self.interpolation)

    def _target(self, width: int, height: int) -> tuple[int, int]:
        if self.edge is None:
            return self.size[1], self.size[0]
        short, long = sorted((width, height))
        new_short, new_long = self.edge, int(self.edge * long / short)
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        return (new_short, new_long) if width <= height else (new_long, new_short)


class CenterCrop(ImageTransform):
    """Crops the middle of the image. A smaller image is padded with black first.

    Args:
        size: height and width of the result; one number for a square.
    """

    _shown = ("size",)

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _pair(size)

    def note(self, picture: PendingImage) -> None:
        height, width = self.size
        left, upper = (max(0, (want - have) // 2) for want, have in ((width, picture.width), (height, picture.height)))
        right = max(0, (width - picture.width + 1) // 2)
        lower = max(0, (height - picture.height + 1) // 2)
        if left or upper or right or lower:
            picture.pad(left, upper, right, lower, "constant", 0)
        picture.crop(round((picture.width - width) / 2), round((picture.height - height) / 2), width, height)


class RandomCrop(ImageTransform):
    """Crops a random box of a given size.

    Args:
        size: height and width of the result; one number for a square.
        padding: pixels of padding: one number for all sides, two for left and right, upper and lower, or four for left,
            upper, right and lower. None for no padding.
        pad_if_needed: whether a smaller image is padded, by the missing pixels on both sides. Otherwise it is an error.
        fill: value of the padding where `padding_mode` is "constant": a number, or three.
        padding_mode: "constant", "edge", "reflect" or "symmetric".
    """

    _shown = ("size", "padding")

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: int | tuple[int, ...] = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = _pair(size)
        self.padding = None if padding is None else _sides(padding)
        self.pad_if_needed = pad_if_needed
        self.fill = fill
        if padding_mode not in PADDING_MODES:
            raise ImageArgumentError(f"padding_mode={padding_mode!r} is none of {', '.join(map(repr, PADDING_MODES))}")
        self.padding_mode = padding_mode

    def note(self, picture: PendingImage) -> None:
        height, width = self.size
        if self.padding is not None:
            picture.pad(*self.padding, self.padding_mode, self.fill)
        across, down = max(0, width - picture.width), max(0, height - picture.height)
        if self.pad_if_needed and (across or down):
            picture.pad(across, down, across, down, self.padding_mode, self.fill)
        elif across or down:
            raise ImageArgumentError(
                f"RandomCrop of {height} x {width} needs an image at least as large, and this one has "
                f"{picture.height} x {picture.width} pixels (height x width): use pad_if_needed=True, or Resize before"
            )
        if (picture.width, picture.height) != (width, height):
            rng = sample_rng().random_generator
            upper, left = rng.randint(0, picture.height - height), rng.randint(0, picture.width - width)
            picture.crop(left, upper, width, height)


class RandomHorizontalFlip(ImageTransform):
    """Mirrors the image left to right, with a given probability.

    Args:
        p: the probability, from 0 to 1.
    """

    _shown = ("p",)

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ImageArgumentError(f"p={p} is no probability: it must be from 0 to 1")
        self.p = p

    def note(self, picture: PendingImage) -> None:
        if sample_rng().random_generator.random() < self.p:
            picture.flip()


class PILToTensor:
    """Converts a uint8 image (height, width, 3) to a uint8 tensor (3, height, width) over new memory."""

    reads_files = False

    def __call__(self, image: Any) -> Any:
        """Returns the tensor, or an array of that shape where torch is not installed."""
        pixels = pixels_of(image)
        return scaled(pixels.copy() if isinstance(image, np.ndarray) else pixels, None)

    def __repr__(self) -> str:
        return "PILToTensor()"


class Compose:
    """Applies transforms one after another.

    Neighbouring transforms of this module share one decoding step, and `ToTensor` with `Normalize` behind it is one
    pass. Other callables receive what the transform before them returns: a uint8 array, or a tensor after `ToTensor`.

    Args:
        transforms: callables of one argument.

    Attributes:
        transforms: the list, which may be changed.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        for transform in transforms:
            if not callable(transform):
                raise ImageArgumentError(f"Compose was given {transform!r}, which cannot be called")
        self.transforms = list(transforms)

    @property
    def reads_files(self) -> bool:
        """Whether the first transform takes a path or the bytes of a file."""
        return bool(self.transforms) and getattr(self.transforms[0], "reads_files", False) is True

    def __call__(self, image: Any) -> Any:
        """Returns the transformed image. Thread safe if the transforms are."""
        value, is_done = image, False
        for place, transform in enumerate(self.transforms):
            if is_done:  # together with the transform before it
                is_done = False
                continue
            after = self.transforms[place + 1] if place + 1 < len(self.transforms) else None
            if isinstance(transform, ImageTransform):
                value = PendingImage.of(value)
                transform.note(value)
                if not isinstance(after, ImageTransform):  # the last of those that share one decoding step
                    value = value.result()
            elif type(transform) is ToTensor and type(after) is Normalize:
                value, is_done = scaled(pixels_of(value), after), True
            else:
                try:
                    value = transform(value)
                except Exception as error:
                    home = type(transform).__module__
                    if isinstance(value, np.ndarray) and home.startswith("torchvision.") and ".v2" not in home:
                        error.add_note(
                            f"{type(transform).__name__} was given an array: put PIL.Image.fromarray before it."
                        )
                    raise
        return value

    def __repr__(self) -> str:
        return "\n".join(["Compose(", *(f"    {transform!r}" for transform in self.transforms), ")"])


def _pair(size: Any) -> tuple[int, int]:
    """Returns height and width."""
    values = _whole_numbers(size)
    values = values * 2 if len(values) == 1 else values
    if len(values) != 2 or min(values) < 1:
        raise ImageArgumentError(f"{size=} is neither a positive integer nor a pair (height, width) of them")
    return values[0], values[1]


def _whole_numbers(value: Any) -> tuple[int, ...]:
    """Returns one or several integers as a tuple, which is empty where one is no integer."""
    try:
        return (operator.index(value),) if not isinstance(value, Sequence) else tuple(map(operator.index, value))
    except TypeError:
        return ()


def _range(name: str, value: Sequence[float]) -> tuple[float, float]:
    if len(value) != 2 or not 0 < value[0] <= value[1]:
        raise ImageArgumentError(f"{name}={value!r} is no pair (least, greatest) of positive numbers")
    return float(value[0]), float(value[1])


def filter_of(interpolation: Any, filters: Mapping[str, Any] = FILTERS) -> str:
    """Returns the name of a filter; torchvision's `InterpolationMode` has it as its value."""
    name = getattr(interpolation, "value", interpolation)
    if name not in filters:
        raise ImageArgumentError(f"interpolation={interpolation!r} is none of {', '.join(map(repr, filters))}")
    return str(name)


def _antialiased(antialias: Any) -> None:
    if antialias is not True and antialias is not None:
        raise ImageArgumentError(f"antialias={antialias!r} is not possible: Pillow antialiases whenever it resizes")


def _sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    values = _whole_numbers(padding)
    if len(values) not in (1, 2, 4) or min(values) < 0:
        raise ImageArgumentError(f"padding={padding!r} is neither one, two nor four numbers of pixels")
    left, upper, right, lower = values * (4 // len(values))
    return left, upper, right, lower
