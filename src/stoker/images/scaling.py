"""Pixels as numbers: uint8 arrays (height, width, 3) to float32 tensors (3, height, width), normalised in one pass."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker._core import native, nominal
from stoker.errors import ImageArgumentError
from stoker.images.kernel import Pixels
from stoker.images.pending import pixels_of

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
        return scaled(pixels_of(image), Normalize((0.0,) * 3, (1.0,) * 3))

    def __repr__(self) -> str:
        return "ToTensor()"


class Normalize:
    """Subtracts a mean from each channel and divides it by a standard deviation.

    Args:
        mean: of the three channels, for values from 0 to 1.
        std: likewise; not 0.
    """

    reads_files = False

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (tuple(float(value) for value in values) for values in (mean, std))
        if len(self.mean) != 3 or len(self.std) != 3:
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
        if shape[-3:-2] != (3,) or dtype.removeprefix("torch.") != "float32":
            raise ImageArgumentError(
                f"Normalize was given {dtype} of shape {shape}, not float32 (..., 3, height, width): put ToTensor "
                "before it, or use stoker.images.normalize for a uint8 batch"
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
    if pixels.ndim != 4 or pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
        raise ImageArgumentError(
            f"normalize was given {pixels.dtype} of shape {pixels.shape}, not uint8 (N, height, width, 3)"
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
    """Returns pixels (height, width, 3) with channels first, as a tensor if torch is installed.

    Args:
        pixels: uint8, contiguous.
        normalised: how they become float32; None leaves them uint8, in the same memory.
    """
    result: NDArray[Any]
    if normalised is None:
        result = pixels.transpose(2, 0, 1)
    else:
        result = np.empty((3, *pixels.shape[:2]), np.float32)
        _look_up(pixels, tables_of(normalised), result)
    if not nominal.torch_is_wanted():
        return result
    import torch  # here, since programs without torch use this module too

    return torch.from_numpy(result)


def tables_of(normalised: Normalize) -> Floats:
    """Returns the float32 of each of the 256 values of a byte, for each channel: (3, 256)."""
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
    """Writes the numbers of contiguous pixels (height, width, 3) into contiguous planes (3, height, width)."""
    functions = native.functions
    if functions is None:
        for channel in range(3):
            np.take(tables[channel], pixels[:, :, channel], out=out[channel], mode="clip")
    else:
        functions.lookup(out.ctypes.data, pixels.ctypes.data, out[0].size, tables.ctypes.data)
