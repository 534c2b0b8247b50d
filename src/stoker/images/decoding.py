"""`decode`: an image, or a part of it, as an array."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from stoker._core.native import jpeg
from stoker.images.arguments import CHANNELS, Corners, Wanted, checked, target
from stoker.images.header import orientation_of
from stoker.images.kernel import FILTERS, NO_LIMIT, Kernel, Pixels, Request, bound, decode_file, decode_from, look
from stoker.images.pillow import Image, ImageOps
from stoker.images.source import Encoded, Path, as_bytes, name_of, read


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
    image = image.crop(crop).resize(size, FILTERS[wanted.resample][1]).crop(window)
    if wanted.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    np.copyto(pixels, np.asarray(image))
    return pixels
