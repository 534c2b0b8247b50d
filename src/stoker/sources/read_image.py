"""`read_rgb`: the default `loader` of image datasets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from stoker.errors import MissingExtraError
from stoker.sources.urls import is_remote, shown

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Ends of the names of image files, in lower case: torchvision's."""


def has_extension(path: str) -> bool:
    """Returns whether a path ends as that of an image file, in upper or lower case."""
    return path.lower().endswith(EXTENSIONS)


def read_rgb(source: str | bytes) -> Any:
    """Returns an image as a PIL image of mode RGB. The file is closed.

    Args:
        source: the path of a file, or its contents.

    Raises:
        OSError: the file cannot be opened, or is no image that Pillow knows.
    """
    from stoker import images  # here, since Pillow is an extra

    return images.open(source).convert("RGB")


def image_of(source: str | bytes, transform: Any, loader: Any, decode_device: str | None) -> Any:
    """Returns a sample's image. A transform of `stoker.images` decodes the file itself, if no `loader` was given.

    Args:
        source: a path, or the contents of a file.
        decode_device: what decodes the file after the worker; None for the worker.
    """
    if decode_device is not None:
        return encoding().encoded(source, transform)
    reads_file = loader is read_rgb and getattr(transform, "reads_files", False) is True
    image = source if reads_file else loader(source)
    return image if transform is None else transform(image)


def encoding() -> Any:
    """Returns the module that leaves JPEGs to a device."""
    from stoker.images import encoded  # here, since Pillow is an extra

    return encoded


def pillow() -> Any:
    """Returns the module `PIL.Image`."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            "images are read by Pillow, which is not installed: install it (the extra stoker[images]), or give the "
            "dataset a loader= of your own."
        ) from error
    return Image


@contextlib.contextmanager
def named(index: int, source: str | bytes) -> Iterator[None]:
    """Adds to an exception which sample raised it, and why a file that was listed may be gone."""
    try:
        yield
    except Exception as error:
        name = shown(source) if isinstance(source, str) else f"{len(source):,} bytes"
        error.add_note(f"raised by sample {index}: {name}")
        if isinstance(source, str) and not is_remote(source):
            if isinstance(error, FileNotFoundError) and not os.path.lexists(source):
                error.add_note("the file was removed or renamed after it was listed: make the dataset again")
            elif isinstance(error, IsADirectoryError):
                error.add_note("this is a folder: list the files in it")
        raise
