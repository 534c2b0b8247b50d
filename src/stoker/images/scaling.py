"""Pixels as numbers: uint8 arrays to normalised float32 tensors in one pass, and images whose crop, resize and flip are
noted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker._core import native, nominal
from stoker._core.native import jpeg
from stoker.errors import ImageArgumentError, ImageError
from stoker.images.decoding import Corners, Path, as_bytes, changed, decode, read
from stoker.images.kernel import Pixels, bound, look
from stoker.images.pillow import Image

Floats = NDArray[np.float32]


class ToTensor:
    """Converts a uint8 image (height, width, 3) to a float32 tensor (3, height, width) of values from 0 to 1.

    With `Normalize` behind it in a `Compose`, both are one pass over the pixels.
    """

    reads_files = False

    def __call__(self, image: Any) -> Any:
        """Returns the tensor, or an array of that shape where torch is not installed.

        Args:
            image: a uint8 array (height, width, 3) or (height, width), a Pillow image, a path, or bytes of a file.
        """
        pixels = pixels_of(image)
        return scaled(pixels, Normalize((0.0,) * pixels.shape[2], (1.0,) * pixels.shape[2]))

    def __repr__(self) -> str:
        return "ToTensor()"


class Normalize:
    """Subtracts a mean from each channel and divides it by a standard deviation.

    Args:
        mean: of the three channels, or of the one, for values from 0 to 1.
        std: likewise; not 0.
    """

    reads_files = False

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (tuple(float(value) for value in values) for values in (mean, std))
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean):
            raise ImageArgumentError(f"mean={mean!r} and std={std!r} must have three numbers each, one per channel")
        if not all(self.std):
            raise ImageArgumentError(f"std={std!r} has a 0, and each channel is divided by it")

    def __call__(self, image: Any) -> Any:
        """Returns the normalised image, of the same type and shape.

        Args:
            image: a float32 tensor or array (..., 3, height, width), of values from 0 to 1.

        Raises:
            ImageArgumentError: it has another dtype or shape.
        """
        shape = tuple(getattr(image, "shape", ()))
        dtype = str(getattr(image, "dtype", type(image).__name__))
        if shape[-3:-2] != (len(self.mean),) or dtype.removeprefix("torch.") != "float32":
            raise ImageArgumentError(
                f"Normalize was given {dtype} of shape {shape}, not float32 (..., {len(self.mean)}, height, width): "
                "put ToTensor before it, or use stoker.images.normalize for a uint8 batch"
            )
        mean, std = (np.array(values, np.float32)[:, None, None] for values in (self.mean, self.std))
        if isinstance(image, np.ndarray):
            return (image - mean) / std
        torch = sys.modules["torch"]
        return (image - torch.from_numpy(mean).to(image.device)) / torch.from_numpy(std).to(image.device)

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"


def normalize(batch: Any, mean: Sequence[float], std: Sequence[float], out: Any = None) -> Any:
    """Returns a uint8 batch as normalised float32, in one pass: `(value / 255 - mean) / std` for each channel.

    Args:
        batch: a uint8 tensor (in the memory of this machine) or array (N, height, width, 3).
        mean: of the three channels.
        std: likewise; not 0.
        out: memory for the result: float32 (N, 3, height, width), contiguous, of the same kind as `batch`. None for
            new memory.

    Returns:
        `out`, or a new tensor or array (N, 3, height, width): a tensor for a tensor.

    Raises:
        ImageArgumentError: a shape or dtype is another one.

    Thread safe. Values are those of `ToTensor` and `Normalize`, bit for bit.
    """
    pixels = np.asarray(batch)
    if pixels.ndim != 4 or pixels.shape[-1] != 3 or len(mean) != 3 or pixels.dtype != np.uint8:
        raise ImageArgumentError(
            f"normalize was given {pixels.dtype} of shape {pixels.shape} and {len(mean)} means, not uint8 (N, height, "
            "width, 3) and 3"
        )
    shape = (len(pixels), 3, *pixels.shape[1:3])
    result: Floats = np.empty(shape, np.float32) if out is None else np.asarray(out)
    if result.shape != shape or result.dtype != np.float32 or not result.flags.c_contiguous:
        raise ImageArgumentError(
            f"out is {result.dtype} of shape {result.shape}, not contiguous float32 of shape {shape}"
        )
    tables = tables_of(Normalize(mean, std))
    for image, planes in zip(pixels, result, strict=True):
        _look_up(np.ascontiguousarray(image), tables, planes)
    if out is not None:
        return out
    return result if isinstance(batch, np.ndarray) else sys.modules["torch"].from_numpy(result)


def scaled(pixels: Pixels, normalised: Normalize | None) -> Any:
    """Returns pixels (height, width, channels) with channels first, as a tensor if torch is installed.

    Args:
        pixels: uint8, contiguous.
        normalised: how they become float32; None leaves them uint8, in the same memory.
    """
    result: NDArray[Any]
    if normalised is None:
        result = pixels.transpose(2, 0, 1)
    else:
        if len(normalised.mean) != pixels.shape[2]:
            raise ImageArgumentError(f"{normalised!r} was given an image of {pixels.shape[2]} channels")
        result = np.empty((pixels.shape[2], *pixels.shape[:2]), np.float32)
        _look_up(pixels, tables_of(normalised), result)
    if not nominal.torch_is_wanted():
        return result
    import torch  # here, since programs without torch use this module too

    return torch.from_numpy(result)


def tables_of(normalised: Normalize) -> Floats:
    """Returns the float32 of each of the 256 values of a byte, for each channel: (channels, 256)."""
    return _tables(normalised.mean, normalised.std)


@lru_cache(maxsize=8)
def _tables(mean: tuple[float, ...], std: tuple[float, ...]) -> Floats:
    """The operations are those of torchvision in float32, so each value is the same."""
    unit = np.arange(256, dtype=np.float32) / np.float32(255)
    one = np.array(mean, np.float32)[:, None]
    tables: Floats = np.ascontiguousarray((unit[None, :] - one) / np.array(std, np.float32)[:, None])
    tables.flags.writeable = False
    return tables


def _look_up(pixels: Pixels, tables: Floats, out: Floats) -> None:
    """Writes the numbers of contiguous pixels (height, width, channels) into contiguous planes, channels first."""
    functions = native.functions
    if functions is None or len(tables) != 3:
        for channel in range(len(tables)):
            np.take(tables[channel], pixels[:, :, channel], out=out[channel], mode="clip")
    else:
        functions.lookup(out.ctypes.data, pixels.ctypes.data, out[0].size, tables.ctypes.data)


class NotedImage(NamedTuple):
    """A sound JPEG, and a crop, a resize, a window and a flip that were noted: see `PendingImage`."""

    source: bytes
    crop: Corners | None
    size: tuple[int, int] | None
    window: Corners | None
    resample: str
    flip: bool


class PendingImage:
    """An RGB image, with the operations that were asked for since its pixels were last made.

    The operations are a crop, then a resize, then a crop of the result (the window), then a flip. An operation that
    does not fit behind those noted has the pixels made first. Pixels are those of Pillow, value for value.

    Args:
        source: the encoded JPEG, or a Pillow image.
        path: of the file that was read, for errors.

    Attributes:
        width: in pixels, after the operations.
        channels: of the result: 3, or 1 for an image of three equal ones.
    """

    def __init__(self, source: bytes | Image.Image, size: tuple[int, int], path: Path | None = None) -> None:
        self._source = source
        self._path = path
        self.width, self.height = size
        self.channels = 3
        self._begin()

    def _begin(self) -> None:
        self._crop: Corners | None = None
        self._size: tuple[int, int] | None = None
        self._window: Corners | None = None
        self._resample = "bilinear"
        self._flip = False

    @classmethod
    def of(cls, image: Any) -> PendingImage:
        """Returns the picture of an image: a path, bytes, a Pillow image, or a uint8 array (H, W, 3) or (H, W).

        Raises:
            ImageError, OSError: it cannot be read, as for `decode`.
        """
        if isinstance(image, cls):
            return image
        if isinstance(image, Image.Image):
            return cls(image if image.mode == "RGB" else image.convert("RGB"), image.size)
        if isinstance(image, np.ndarray) and image.ndim in (2, 3) and image.dtype == np.uint8:
            made = cls(_from_array(image), (image.shape[1], image.shape[0]))
            made.channels = 1 if image.shape[2:] == (1,) else 3
            return made
        path = image if isinstance(image, str | os.PathLike) else None
        if path is not None:
            with open(path, "rb") as file:
                data = file.read()
        elif isinstance(image, bytes | bytearray | memoryview):
            data = as_bytes(image)
        else:
            raise ImageArgumentError(
                f"a transform of images was given {type(image).__name__}, not a path, bytes, a Pillow image or a uint8 "
                "array (height, width, 3). Tensors come last: put the transforms of images before ToTensor."
            )
        header, kernel = jpeg.DecodeHeader(), bound()
        if kernel is not None and look(kernel, data, header) == jpeg.DONE:
            return cls(data, (header.width, header.height), path)
        decoded = read(image, lambda opened: opened.convert("RGB"))
        return cls(decoded, decoded.size)

    def crop(self, left: int, upper: int, width: int, height: int) -> None:
        """Crops to a box inside the picture."""
        if self._flip:
            left = self.width - left - width
        before = self._crop if self._size is None else self._window
        x, y = before[:2] if before else (0, 0)
        box = (x + left, y + upper, x + left + width, y + upper + height)
        if self._size is None:
            self._crop = box
        else:
            self._window = box
        self.width, self.height = width, height

    def resize(self, width: int, height: int, resample: str) -> None:
        """Resizes, antialiased, with a filter of `kernel.FILTERS`."""
        if (width, height) == (self.width, self.height):
            return
        if self._size is not None or self._flip:
            self._make()
        self._size, self._resample = (width, height), resample
        self.width, self.height = width, height

    def flip(self) -> None:
        """Mirrors, left to right."""
        self._flip = not self._flip

    def pad(self, left: int, upper: int, right: int, lower: int, mode: str, fill: int | tuple[int, ...]) -> None:
        """Pads by these numbers of pixels, with a mode of `numpy.pad`; `fill` is for "constant"."""
        pixels = self.array()
        widths = ((upper, lower), (left, right), (0, 0))
        if mode == "constant":
            padded = np.empty((upper + lower + self.height, left + right + self.width, 3), np.uint8)
            padded[...] = fill
            padded[upper : upper + self.height, left : left + self.width] = pixels
        else:
            padded = np.pad(pixels, widths, mode=mode)  # type: ignore[call-overload]
        self._replace(padded)

    def change(self, change: Callable[[Image.Image], Image.Image]) -> None:
        """Applies a function to the pixels, which takes and returns a Pillow image in RGB and changes none."""
        operations = (self._crop, self._size, self._window)
        is_made = isinstance(self._source, Image.Image) and not self._flip and operations == (None,) * 3
        self._source = change(self._source if is_made else _from_array(self.array()))  # type: ignore[arg-type]
        self.width, self.height = self._source.size
        self._begin()

    def result(self) -> Pixels:
        """Returns the pixels, a new uint8 array (height, width, channels)."""
        pixels = self.array()
        return pixels if self.channels == 3 else np.ascontiguousarray(pixels[:, :, : self.channels])

    def array(self) -> Pixels:
        """Returns the pixels, a new uint8 array (height, width, 3)."""
        if isinstance(self._source, bytes):
            try:
                return self._decoded(self._source)
            except ImageError:
                if self._path is None:
                    raise
                return self._decoded(self._path)  # raises again, with the file's name
        return np.array(changed(self._source, self._crop, self._size, self._window, self._resample, self._flip))

    def noted(self) -> NotedImage | None:
        """Returns the encoded JPEG and the operations; None if pixels were made."""
        if not isinstance(self._source, bytes):
            return None
        return NotedImage(self._source, self._crop, self._size, self._window, self._resample, self._flip)

    def _decoded(self, source: bytes | Path) -> Pixels:
        return decode(source, self._crop, self._size, self._flip, window=self._window, resample=self._resample)

    def _make(self) -> None:
        self._replace(self.array())

    def _replace(self, pixels: Pixels) -> None:
        self._source = _from_array(pixels)
        self.width, self.height = self._source.size
        self._begin()


def pixels_of(image: Any) -> Pixels:
    """Returns the pixels of an image that `PendingImage.of` takes, as contiguous uint8 (height, width, 3).

    An array of that kind, or of one channel, is returned as it is, so the pixels may be the caller's: only read them.
    """
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] in (1, 3):
        return np.ascontiguousarray(image)
    return PendingImage.of(image).array()


def _from_array(pixels: Pixels) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels))
    return image if image.mode == "RGB" else image.convert("RGB")
