"""An image whose crop, resize and flip are noted, and made at once when its pixels are read."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from stoker._core.native import jpeg
from stoker.errors import ImageArgumentError, ImageError
from stoker.images.arguments import Corners
from stoker.images.decoding import decode
from stoker.images.kernel import FILTERS, Pixels, bound, look
from stoker.images.pillow import Image
from stoker.images.source import Path, as_bytes, read


class PendingImage:
    """An RGB image, with the operations that were asked for since its pixels were last made.

    The operations are a crop, then a resize, then a crop of the result (the window), then a flip. An operation that
    does not fit behind those noted has the pixels made first. Pixels are those of Pillow, value for value.

    Args:
        source: the encoded JPEG, or a Pillow image.
        size: width and height of the source.
        path: of the file that was read, for errors.

    Attributes:
        width: in pixels, after the operations.
        height: likewise.
    """

    def __init__(self, source: bytes | Image.Image, size: tuple[int, int], path: Path | None = None) -> None:
        self._source = source
        self._path = path
        self.width, self.height = size
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
            ImageArgumentError: it is none of these.
            ImageError, OSError: it cannot be read, as for `decode`.
        """
        if isinstance(image, cls):
            return image
        if isinstance(image, Image.Image):
            return cls(image if image.mode == "RGB" else image.convert("RGB"), image.size)
        if isinstance(image, np.ndarray) and image.ndim in (2, 3) and image.dtype == np.uint8:
            return cls(_from_array(image), (image.shape[1], image.shape[0]))
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
        """Resizes, antialiased, with a filter of `FILTERS`."""
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

    def array(self) -> Pixels:
        """Returns the pixels, a new uint8 array (height, width, 3)."""
        if isinstance(self._source, bytes):
            try:
                return self._decoded(self._source)
            except ImageError:
                if self._path is None:
                    raise
                return self._decoded(self._path)  # raises again, with the file's name
        image = self._source
        if self._crop is not None:
            image = image.crop(self._crop)
        if self._size is not None:
            image = image.resize(self._size, FILTERS[self._resample][1])
        if self._window is not None:
            image = image.crop(self._window)
        if self._flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image)

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

    An array of that kind is returned as it is, so the pixels may be the caller's: only read them.
    """
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        return np.ascontiguousarray(image)
    return PendingImage.of(image).array()


def _from_array(pixels: Pixels) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return image if image.mode == "RGB" else image.convert("RGB")
