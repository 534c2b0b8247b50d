"""The compiled decoder, bound to Pillow's libjpeg and compared with Pillow on a small picture before it is used.

Once in a process, at the first use: the library is bound, the order of the passes of this Pillow's `resize` is
measured, and a picture is decoded whole and in part. Anything unexpected means that Pillow decodes everything.
"""

from __future__ import annotations

import ctypes
import io
from base64 import b64decode
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker._core.native import jpeg
from stoker.images.pillow import PIL, Image, JpegImagePlugin, imaging

MOST_MEMORY = 512 << 20
"""Bytes of coefficients that a progressive picture may need: of 89 million pixels, Pillow's own limit, in 4:4:4."""

NO_LIMIT = 1 << 62
FILTERS = {"bilinear": (jpeg.BILINEAR, Image.Resampling.BILINEAR), "bicubic": (jpeg.BICUBIC, Image.Resampling.BICUBIC)}
"""Names of filters: the kernel's number and Pillow's."""

Pixels = NDArray[np.uint8]


class Kernel(NamedTuple):
    """The decoder of this process.

    Attributes:
        order: of the passes of a resize, one of the constants of `_core/native/jpeg.py`.
        level: of the vector instructions in use.
        abi: of Pillow's libjpeg.
    """

    functions: jpeg.DecoderFunctions
    order: int
    level: int
    abi: int


class Request(NamedTuple):
    """What is to be decoded: all in pixels.

    Attributes:
        box: left, top, width and height in the picture; a width of 0 is the whole.
        size: width and height to which the box is resized.
        window: left, top, width and height of the part of the resized box that is wanted.
        mirrored: whether the picture is mirrored before it is resized.
        channels: 3 for RGB, 1 for grey.
        filter: `jpeg.BILINEAR` or `jpeg.BICUBIC`.
        scaling: whether the transform of the file may scale, which changes pixels.
        is_checked: whether the file is known to be sound.
        most_pixels: limit of the picture's pixels.
    """

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    window: tuple[int, int, int, int]
    flip: bool = False
    mirrored: bool = False
    channels: int = 3
    filter: int = jpeg.BILINEAR
    scaling: bool = False
    is_checked: bool = False
    most_pixels: int = NO_LIMIT

    def job(self, kernel: Kernel, out: Pixels) -> jpeg.DecodeJob:
        """Returns the request as the library takes it. `out` must have the shape of the window."""
        return jpeg.DecodeJob(
            *self.box,
            *self.size,
            *self.window,
            self.flip,
            self.mirrored,
            self.channels,
            self.filter,
            kernel.order,
            self.scaling,
            kernel.level,
            self.is_checked,
            self.most_pixels,
            MOST_MEMORY,
            out.strides[0],
            out.ctypes.data,
        )


def decode_from(kernel: Kernel, data: bytes, request: Request, out: Pixels, header: jpeg.DecodeHeader) -> int:
    """Decodes a picture in memory into `out`. Returns an outcome."""
    outcome: int = kernel.functions.decode(
        ctypes.byref(request.job(kernel, out)), data, len(data), ctypes.byref(header)
    )
    return outcome


def decode_file(kernel: Kernel, path: bytes, request: Request, out: Pixels, header: jpeg.DecodeHeader) -> int:
    """Reads and decodes a file into `out`. Returns an outcome."""
    outcome: int = kernel.functions.decode_file(ctypes.byref(request.job(kernel, out)), path, ctypes.byref(header))
    return outcome


def look(kernel: Kernel, data: bytes, header: jpeg.DecodeHeader) -> int:
    """Reads the header of a picture in memory. Returns an outcome."""
    outcome: int = kernel.functions.look(data, len(data), ctypes.byref(header))
    return outcome


def bound() -> Kernel | None:
    """Returns the decoder, or None where Pillow decodes everything. The first call binds and tests it."""
    return _found()[0]


def backend() -> str:
    """Returns what decodes JPEGs in this process, in words: with the reason, where Pillow decodes everything.

    Thread safe. The first call binds the compiled part to Pillow's libjpeg and tests it.
    """
    kernel, why = _found()
    if kernel is None:
        return f"Pillow {PIL.__version__} decodes all images: {why}"
    vectors = ("no vector instructions", "SSE4.1", "AVX2")[kernel.level]
    return f"compiled, {vectors}, with the libjpeg of Pillow {PIL.__version__} (ABI {kernel.abi})"


@cache
def _found() -> tuple[Kernel | None, str]:
    """Returns the decoder or None, and the reason in words."""
    functions = jpeg.functions
    if functions is None:
        return None, jpeg.why
    extension = getattr(imaging, "__file__", None)
    abi = -1 if extension is None else functions.bind(extension.encode())
    if abi < 0:
        reasons = {-1: "its extension module is not a loaded library", -2: "its libjpeg offers no partial decoding"}
        return None, reasons.get(abi, "its libjpeg has neither of the ABIs 62 and 80")
    order = _order_of_passes()
    if order is None:
        return None, "its resize does the two passes in an order that is not known"
    kernel = Kernel(functions, order, functions.level(), abi)
    if (failed := _differing(kernel)) is not None:
        return None, f"the compiled decoder gave other pixels than Pillow in its test ({failed})"
    return kernel, "compiled"


def _order_of_passes() -> int | None:
    """Returns the order of this Pillow's `resize`, measured on shapes in which the known orders differ."""
    cases = {(3, 301, 2, 100): "tall", (40, 40, 38, 8): "lower", (40, 40, 8, 38): "narrower"}
    columns_first = {name for case, name in cases.items() if _is_columns_first(*case)}
    known = {
        frozenset[str](): jpeg.ROWS_FIRST,
        frozenset({"tall"}): jpeg.TALL_COLUMNS_FIRST,
        frozenset({"tall", "lower"}): jpeg.COLUMNS_FIRST_IF_LESS,
    }
    return known.get(frozenset(columns_first))


def _is_columns_first(width: int, height: int, to_width: int, to_height: int) -> bool:
    noise = np.random.default_rng(1).integers(0, 256, (height, width), np.uint8)
    image, how = Image.fromarray(noise), Image.Resampling.BILINEAR
    both = image.resize((to_width, to_height), how)
    return both.tobytes() == image.resize((width, to_height), how).resize((to_width, to_height), how).tobytes()


def _differing(kernel: Kernel) -> str | None:
    """Returns the first case of the embedded picture in which the decoder and Pillow differ, or None."""
    whole = JpegImagePlugin.JpegImageFile(io.BytesIO(JPEG)).convert("RGB")  # `Image.open` may be ours by now
    cases = {
        "whole": Request((0, 0, 40, 40), (40, 40), (0, 0, 40, 40)),
        "part": Request((17, 9, 14, 21), (14, 21), (0, 0, 14, 21), flip=True),
        "smaller": Request((5, 3, 30, 33), (11, 7), (0, 0, 11, 7)),
        "larger": Request((21, 18, 9, 5), (17, 23), (0, 0, 17, 23), filter=jpeg.BICUBIC),
    }
    for name, request in cases.items():
        out = np.empty((request.window[3], request.window[2], 3), np.uint8)
        if decode_from(kernel, JPEG, request, out, jpeg.DecodeHeader()) != jpeg.DONE:
            return name
        left, top, width, height = request.box
        filter = Image.Resampling.BICUBIC if request.filter == jpeg.BICUBIC else Image.Resampling.BILINEAR
        expected = np.asarray(whole.crop((left, top, left + width, top + height)).resize(request.size, filter))
        if not np.array_equal(out, expected[:, ::-1] if request.flip else expected):
            return name
    return None


# A picture of 40 x 40 pixels, base, 4:2:0: what this file decodes before the decoder is trusted.


JPEG = b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNS"
    "Mj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09P"
    "T0//wAARCAAoACgDASIAAhEBAxEB/8QAGQAAAwADAAAAAAAAAAAAAAAAAAQFAgMG/8QAJBAAAQMEAgIDAQEAAAAAAAAAAQACAxESEyEx"
    "QVFhIiMycYH/xAAZAQACAwEAAAAAAAAAAAAAAAAEBQADBgL/xAAlEQABBAECBQUAAAAAAAAAAAABAAIDEQQhMRITFCJBUVJhccH/2gAM"
    "AwEAAhEDEQA/AKET6E3a12s4nAPqkTMJNNNd1W9kgDLSflThIZItgsi+M2w1qfComS6lu/4s4jQO8npIwyWfrVVvjeQ+4/nyo/H7wnwh"
    "rJYBsNvlUI3jGQ40Ne0JUPvILdhCqlxiHI/Mx2ulJJorl434zVx9aTLXkkSV1ypTJsppx2mWTU+v/KpuYrpJ5IXcUfu/FTbJkpb15TDZ"
    "aiwc8KXHJj91TDH2/ZX3RFdPbwn3JHUsrbx9qlDJjFrtnnSErFJl+XHSFZJidyMzIYjL37rkmyY9tPraajfUXk75QhdBosJNINInebTE"
    "UmT9deExHLccZ44QhMmMHGFoCxoywPQaJiOTEbW7HO0IQjHxttH5ELHPshf/2Q=="
)
