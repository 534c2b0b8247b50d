"""`decode`: an image, or a part of it, as an array. Checks the arguments, reads the header, and names the image in
errors.
"""

from __future__ import annotations

import io
import operator
import os
import struct
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, NoReturn, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from stoker._core.native import jpeg
from stoker.errors import ImageArgumentError, ImageError, ImageFormatError, ImageTooLargeError, MemoryLimitError
from stoker.images.kernel import (
    FILTERS,
    MOST_MEMORY,
    NO_LIMIT,
    Kernel,
    Pixels,
    Request,
    bound,
    decode_file,
    decode_from,
    look,
)
from stoker.images.pillow import Image, ImageOps, UnidentifiedImageError


def decode(
    data_or_path: Encoded | Path,
    crop: Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    flip: bool = False,
    mode: str = "RGB",
    out: Pixels | None = None,
    *,
    window: Sequence[int] | None = None,
    resample: str = "bilinear",
    exif: bool = False,
    dct_scaling: bool = False,
) -> Pixels:
    """Returns the pixels of an image: cropped, then resized, then cut to a window, then mirrored.

    They are Pillow's, value for value: those of `convert(mode)`, `crop(crop)`, `resize(size, resample)`, `crop(window)`
    and `transpose(FLIP_LEFT_RIGHT)` one after another. Of a sound JPEG only what is needed is decoded; `backend()` says
    whether it is possible here.

    Args:
        data_or_path: the encoded image as bytes or other memory of bytes, or the path of a file.
        crop: (left, upper, right, lower) in pixels of the image, inside it. None for the whole image.
        size: (width, height) to which the crop is resized. None leaves its size.
        flip: whether the result is mirrored, left to right.
        mode: "RGB" or "L" (grey).
        out: memory for the result, of its shape: uint8, adjacent pixels in a row, rows in order. Rows may be apart.
        window: (left, upper, right, lower) of the part of the resized crop that is wanted. None for all.
        resample: "bilinear" or "bicubic", both antialiased.
        exif: whether the orientation in the EXIF data is applied first. By default it is ignored, as by torchvision.
        dct_scaling: whether a large JPEG may be decoded at 1/2, 1/4 or 1/8, if the scaled crop is at least three times
            `size`. That is faster, and values differ from Pillow's: by 0.1 of 255 on average, 1 in the worst crops.

    Returns:
        `out`, or a new uint8 array: (height, width, 3) for "RGB", (height, width) for "L".

    Raises:
        ImageArgumentError: a crop outside the image, an empty size, or an `out` that does not fit.
        ImageError: the image is truncated or damaged. Also a ValueError where Pillow raises one.
        ImageFormatError: it is no image. Also Pillow's `UnidentifiedImageError`.
        ImageTooLargeError: it has too many pixels. Also Pillow's `DecompressionBombError`.
        MemoryLimitError: a progressive JPEG needs more than 512 MB before its first pixel.
        OSError: the system's error, if the file cannot be opened: `FileNotFoundError`, `IsADirectoryError`, ...

    Thread safe. Threads decode at the same time. After an error the content of `out` is not defined.
    """
    wanted = checked(crop, size, window, flip, mode, resample, dct_scaling)
    if exif and read(data_or_path, orientation_of) != 1:
        return _by_pillow(data_or_path, wanted, out, exif)
    kernel = bound()
    pixels = None if kernel is None else _by_kernel(kernel, data_or_path, wanted, out)
    return _by_pillow(data_or_path, wanted, out, exif) if pixels is None else pixels


def _by_kernel(kernel: Kernel, source: Encoded | Path, wanted: Wanted, out: Pixels | None) -> Pixels | None:
    """Returns the pixels, or None if Pillow should decode the image."""
    header, path, data = jpeg.DecodeHeader(), None, None
    if isinstance(source, str | os.PathLike):
        path = os.fsencode(source)
        if 0 in path:
            return None  # Python's own error follows
    else:
        data = as_bytes(source)
    if wanted.size is None and wanted.crop is None:  # memory for the result cannot be had without the header
        if path is not None:
            with open(path, "rb") as file:
                path, data = None, file.read()
        if data is None or look(kernel, data, header) != jpeg.DONE:
            return None
    request = _request(wanted, (header.width, header.height))
    pixels = target(out, *request.window[2:], wanted.mode)
    if path is not None:
        outcome = decode_file(kernel, path, request, pixels, header)
    else:
        assert data is not None
        outcome = decode_from(kernel, data, request, pixels, header)
    if outcome == jpeg.NO_FILE:
        raise OSError(header.error, os.strerror(header.error), name_of(source))
    if outcome == jpeg.OUTSIDE:
        wanted.crop_in((header.width, header.height), name_of(source))
    return pixels if outcome == jpeg.DONE else None


def _request(wanted: Wanted, picture: tuple[int, int]) -> Request:
    """Returns the request for the kernel. The picture's size matters only where there is neither a crop nor a size."""
    if wanted.crop is not None:
        left, upper, right, lower = wanted.crop
        box = (left, upper, right - left, lower - upper)
    else:
        box = (0, 0, 0, 0) if wanted.size is not None else (0, 0, *picture)
    size = wanted.size or box[2:]
    window = wanted.window_in(size)
    return Request(
        box,
        size,
        (*window[:2], window[2] - window[0], window[3] - window[1]),
        flip=wanted.flip,
        channels=CHANNELS[wanted.mode],
        filter=FILTERS[wanted.resample][0],
        scaling=wanted.scaling,
        most_pixels=Image.MAX_IMAGE_PIXELS or NO_LIMIT,
    )


def _by_pillow(source: Encoded | Path, wanted: Wanted, out: Pixels | None, exif: bool) -> Pixels:
    def decoded(image: Image.Image) -> Image.Image:
        return (ImageOps.exif_transpose(image) if exif else image).convert(wanted.mode)

    image = read(source, decoded)
    crop: Corners = wanted.crop_in(image.size, name_of(source))
    size = wanted.size or (crop[2] - crop[0], crop[3] - crop[1])
    window = wanted.window_in(size)
    pixels = target(out, window[2] - window[0], window[3] - window[1], wanted.mode)
    np.copyto(pixels, np.asarray(changed(image, crop, size, window, wanted.resample, wanted.flip)))
    return pixels


def changed(
    image: Image.Image,
    crop: Corners | None,
    size: tuple[int, int] | None,
    window: Corners | None,
    resample: str,
    flip: bool,
) -> Image.Image:
    """Returns an image of Pillow's: cropped, then resized, then cut to a window, then mirrored."""
    image = image if crop is None else image.crop(crop)
    image = image if size is None else image.resize(size, FILTERS[resample][1])
    image = image if window is None else image.crop(window)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image


# The arguments of `decode`, checked before anything is read.


CHANNELS = {"RGB": 3, "L": 1}
Corners = tuple[int, int, int, int]


class Wanted(NamedTuple):
    """What is to be made of an image. Corners are left, upper, right and lower, in pixels.

    Attributes:
        crop: corners in the image; None for the whole.
        size: width and height to which that is resized; None to leave it.
        window: corners of the part of that which is wanted; None for all.
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
        """Returns the crop in an image of this size."""
        if self.crop is None:
            return (0, 0, *size)
        if self.crop[2] > size[0] or self.crop[3] > size[1]:
            _refuse(f"{name}: crop={self.crop} is not inside the image, which has {size[0]} x {size[1]} pixels")
        return self.crop

    def window_in(self, size: tuple[int, int]) -> Corners:
        """Returns the window in a result of this size."""
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
        integers = tuple(operator.index(value) for value in values)
    except TypeError:
        integers = ()
    if len(integers) != count:
        _refuse(f"{name}={values!r} is not {count} integers")
    return integers


def _refuse(message: str) -> NoReturn:
    raise ImageArgumentError(message)


# An encoded image, in memory or in a file, read by Pillow with errors that name it.


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
        error_class = PixelValueError if isinstance(error, ValueError) else ImageError
        raise error_class(f"{name} is truncated or damaged, or cannot be converted: {error}") from error


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


# What the header of an image says.


ORIENTATION = 0x0112  # the EXIF tag


class ImageInfo(NamedTuple):
    """What the header of an image says.

    Attributes:
        size: width and height in pixels, as stored: an orientation is not applied.
        mode: Pillow's name of the kind of pixels: "RGB", "L", "P", "CMYK", "I;16", ...
        format: Pillow's name of the format: "JPEG", "PNG", "WEBP", ...
        orientation: EXIF's number, from 1 (as stored) to 8.
    """

    size: tuple[int, int]
    mode: str
    format: str
    orientation: int


def info(data_or_path: Encoded | Path) -> ImageInfo:
    """Returns size, mode, format and orientation of an image. No pixel is decoded.

    Args:
        data_or_path: the encoded image as bytes or other memory of bytes, or the path of a file.

    Raises:
        ImageFormatError: it is no image. Also Pillow's `UnidentifiedImageError`.
        ImageTooLargeError: it has too many pixels. Also Pillow's `DecompressionBombError`.
        OSError: the system's error, if the file cannot be opened.

    Thread safe.
    """
    return read(data_or_path, _described)


def orientation_of(image: Image.Image) -> int:
    """Returns EXIF's orientation: 1 where there is none, or one that EXIF does not define."""
    orientation = image.getexif().get(ORIENTATION, 1)
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def _described(image: Image.Image) -> ImageInfo:
    return ImageInfo(image.size, image.mode, image.format or "", orientation_of(image))
