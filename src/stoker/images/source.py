"""An encoded image, in memory or in a file, read by Pillow with errors that name it."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ImageError, ImageFormatError, ImageTooLargeError, MemoryLimitError
from stoker.images.kernel import MOST_MEMORY
from stoker.images.pillow import Image, UnidentifiedImageError

Result = TypeVar("Result")
Path: TypeAlias = str | os.PathLike[str]
Encoded: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]

_FAILURES = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, struct.error)
"""What Pillow's plugins raise for damaged files."""


class UnknownFormatError(ImageFormatError, UnidentifiedImageError):
    """`ImageFormatError`, for those who catch Pillow's class."""


class BombError(ImageTooLargeError, Image.DecompressionBombError):
    """`ImageTooLargeError`, for those who catch Pillow's class."""


class PixelValueError(ImageError, ValueError):
    """`ImageError`, for those who catch the ValueError that Pillow raises for some damage."""


def as_bytes(data: Encoded) -> bytes:
    """Returns bytes as they are, and other memory as a copy."""
    return data if isinstance(data, bytes) else np.frombuffer(data, np.uint8).tobytes()


def name_of(source: Encoded | Path) -> str:
    """Returns how messages call an image."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else f"an image of {len(source):,} bytes"


def read(source: Encoded | Path, use: Callable[[Image.Image], Result]) -> Result:
    """Returns what `use` makes of the image as Pillow opens it. The file is closed afterwards.

    Raises:
        ImageError: it cannot be opened or decoded.
        MemoryLimitError: it is a progressive JPEG that needs more than `MOST_MEMORY` bytes before its first pixel.
        OSError: the system's error, if the file cannot be opened: `FileNotFoundError`, `IsADirectoryError`, ...
    """
    with (
        translated(source),
        Image.open(source if isinstance(source, str | os.PathLike) else io.BytesIO(as_bytes(source))) as image,
    ):
        _check_memory(image, name_of(source))
        return use(image)


class translated:
    """Turns Pillow's errors in a `with` block into Stoker's, which name the image.

    A class, and no generator: from Python 3.12 on, an error that was thrown into one keeps the locals of its frames, as
    the pixels of an image, until garbage is collected.
    """

    def __init__(self, source: Encoded | Path) -> None:
        self._source = source

    def __enter__(self) -> None:
        name = name_of(self._source)
        if "\0" in name:
            raise ValueError(f"embedded null byte in the path {name!r}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        name = name_of(self._source)
        if isinstance(error, UnidentifiedImageError):
            begin = _beginning(self._source)
            what = f"begins with {begin!r}, which no plugin of Pillow can read" if begin else "is empty"
            raise UnknownFormatError(f"{name} is no image: it {what}") from error
        if isinstance(error, Image.DecompressionBombError):
            raise BombError(f"{name}: {error} The limit is twice PIL.Image.MAX_IMAGE_PIXELS.") from error
        if not isinstance(error, _FAILURES) or (isinstance(error, OSError) and error.errno is not None):
            return  # the system's, or none of Pillow's
        found = PixelValueError if isinstance(error, ValueError) else ImageError
        raise found(f"{name} is truncated or damaged, or cannot be converted: {error}") from error


def _beginning(source: Encoded | Path) -> bytes:
    if not isinstance(source, str | os.PathLike):
        return as_bytes(source)[:16]
    with open(source, "rb") as file:
        return file.read(16)


def _check_memory(image: Image.Image, name: str) -> None:
    """All coefficients of a progressive JPEG are kept until its last scan, two bytes for each sample."""
    layers = getattr(image, "layer", None)
    if not image.info.get("progressive") or not layers:
        return
    per_block = sum(layer[1] * layer[2] for layer in layers)
    most = max(layer[1] for layer in layers) * max(layer[2] for layer in layers)
    need = 2 * image.width * image.height * per_block // max(most, 1)
    if need > MOST_MEMORY:
        raise MemoryLimitError(
            f"{name}: a progressive JPEG of {image.width} x {image.height} pixels needs {need >> 20} MB for its "
            f"coefficients, and the limit is {MOST_MEMORY >> 20} MB: save it as a baseline JPEG, or smaller"
        )
