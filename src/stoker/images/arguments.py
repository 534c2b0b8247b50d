"""The arguments of `decode`, checked before anything is read."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from stoker.errors import ImageArgumentError
from stoker.images.kernel import FILTERS, Pixels

CHANNELS = {"RGB": 3, "L": 1}
Corners = tuple[int, int, int, int]


class Wanted(NamedTuple):
    """What is to be made of an image. Corners are left, upper, right and lower, in pixels.

    Attributes:
        crop: corners in the image; None for the whole.
        size: width and height to which that is resized; None to leave it.
        window: corners of the part of that which is wanted; None for all.
        flip: whether the result is mirrored.
        mode: "RGB" or "L".
        resample: the filter, a key of `FILTERS`.
        scaling: whether the transform of a JPEG may scale.
    """

    crop: Corners | None
    size: tuple[int, int] | None
    window: Corners | None
    flip: bool
    mode: str
    resample: str
    scaling: bool

    def crop_in(self, size: tuple[int, int], name: str) -> Corners:
        """Returns the crop in an image of this size.

        Raises:
            ImageArgumentError: it is not inside the image.
        """
        if self.crop is None:
            return (0, 0, *size)
        if self.crop[2] > size[0] or self.crop[3] > size[1]:
            _refuse(f"{name}: crop={self.crop} is not inside the image, which has {size[0]} x {size[1]} pixels")
        return self.crop

    def window_in(self, size: tuple[int, int]) -> Corners:
        """Returns the window in a result of this size.

        Raises:
            ImageArgumentError: it is not inside.
        """
        if self.window is None:
            return (0, 0, *size)
        if self.window[2] > size[0] or self.window[3] > size[1]:
            _refuse(f"window={self.window} is not inside the resized image, which has {size[0]} x {size[1]} pixels")
        return self.window


def checked(
    crop: Sequence[int] | None,
    size: Sequence[int] | None,
    window: Sequence[int] | None,
    flip: bool,
    mode: str,
    resample: str,
    scaling: bool,
) -> Wanted:
    """Returns the arguments in their strict form.

    Raises:
        ImageArgumentError: one of them cannot be meant.
    """
    if mode not in CHANNELS:
        _refuse(f"mode={mode!r} is neither 'RGB' nor 'L'")
    if resample not in FILTERS:
        _refuse(f"resample={resample!r} is none of {', '.join(map(repr, FILTERS))}")
    pair = None if size is None else _integers("size", size, 2)
    if pair is not None and min(pair) < 1:
        _refuse(f"size={pair} has no pixels: give a width and a height of at least 1")
    return Wanted(
        None if crop is None else _corners("crop", crop),
        None if pair is None else (pair[0], pair[1]),
        None if window is None else _corners("window", window),
        bool(flip),
        mode,
        resample,
        bool(scaling),
    )


def target(out: Pixels | None, width: int, height: int, mode: str) -> Pixels:
    """Returns memory for the result: `out` if it fits, a new array if it is None.

    Raises:
        ImageArgumentError: `out` does not fit.
    """
    channels = CHANNELS[mode]
    shape = (height, width) if channels == 1 else (height, width, channels)
    if out is None:
        return np.empty(shape, np.uint8)
    if not isinstance(out, np.ndarray):
        _refuse(f"out is a {type(out).__name__}, not a NumPy array")
    if out.dtype != np.uint8:
        _refuse(f"out has the dtype {out.dtype}, and pixels are uint8")
    if out.shape != shape:
        _refuse(f"out has the shape {out.shape}, and the result {shape}")
    if not out.flags.writeable:
        _refuse("out is read-only")
    if out.strides[1:] != (channels, 1)[-len(shape) + 1 :] or out.strides[0] < width * channels:
        _refuse(f"out has the strides {out.strides}: pixels of a row must be adjacent, rows in order and apart")
    return out


def _corners(name: str, values: Sequence[int]) -> Corners:
    left, upper, right, lower = _integers(name, values, 4)
    if not (0 <= left < right and 0 <= upper < lower):
        _refuse(f"{name}={(left, upper, right, lower)} is empty or negative: it is (left, upper, right, lower)")
    return left, upper, right, lower


def _integers(name: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    try:
        found = tuple(operator.index(value) for value in values)
    except TypeError:
        found = ()
    if len(found) != count:
        _refuse(f"{name}={values!r} is not {count} integers")
    return found


def _refuse(message: str) -> NoReturn:
    raise ImageArgumentError(message)
