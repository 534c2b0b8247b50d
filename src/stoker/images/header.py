"""What the header of an image says."""

from __future__ import annotations

from typing import NamedTuple

from stoker.images.pillow import Image
from stoker.images.source import Encoded, Path, read

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
