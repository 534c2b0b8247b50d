"""`register` makes `PIL.Image.open` give lazy images, wherever it is called; `open` gives one without that."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from stoker.images.lazy import LazyJpegFile
from stoker.images.pillow import Image, JpegImagePlugin
from stoker.images.source import Encoded, Path, as_bytes, translated

_lock = threading.Lock()
_registrations: list[Registration] = []
_before: Callable[..., Any] | None = None


def _renew_lock() -> None:
    """In a forked process: another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class Registration:
    """What `register` returns: `undo()` takes it back, as does the end of a `with` block."""

    def undo(self) -> None:
        """Takes this registration back. With the last one, Pillow's own opener is in its place again.

        Images that were opened before stay as they are. A second call does nothing. Thread safe.
        """
        with _lock:
            if self not in _registrations:
                return
            _registrations.remove(self)
            opener, accept = Image.OPEN["JPEG"]
            if not _registrations and opener is _open_jpeg:
                Image.register_open("JPEG", _before, accept)  # type: ignore[arg-type]

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.undo()


def register() -> Registration:
    """Returns a registration, from which on `PIL.Image.open` gives images that decode when their pixels are read.

    It does so wherever it is called: in torchvision's `ImageFolder`, timm, Hugging Face `datasets` or a program's own
    code. A JPEG then notes `convert("RGB")`, `convert("L")`, `crop`, the first `resize` (bilinear or bicubic) and
    `transpose(FLIP_LEFT_RIGHT)`, and decodes only what the result needs. Anything else reads pixels and goes on with an
    ordinary image. Header, mode, size, format, info, limits and errors are Pillow's, and so are all pixels, value for
    value. Without the compiled part (`backend()`) nothing changes.

    One thing is later: damage inside the compressed data of a file whose markers are in place is found when pixels are
    read, not by `load()` or `convert()`.

    It holds for this process and the processes forked from it. It is cheap, also when repeated, and thread safe.
    """
    global _before
    registration = Registration()
    with _lock:
        opener, accept = Image.OPEN["JPEG"]
        if opener is not _open_jpeg:
            _before = opener
            Image.register_open("JPEG", _open_jpeg, accept)
        _registrations.append(registration)
    return registration


def open(data_or_path: Encoded | Path) -> Image.Image:
    """Returns an image as `PIL.Image.open` does; a JPEG decodes when its pixels are read, as after `register()`.

    For `loader=` of torchvision's `ImageFolder`, and other places that take a function.

    Args:
        data_or_path: the encoded image as bytes or other memory of bytes, or the path of a file. The file is closed
            when the image is decoded, converted or loaded, and by `close()` or a `with` block.

    Raises:
        ImageFormatError: it is no image. Also Pillow's `UnidentifiedImageError`.
        ImageTooLargeError: it has too many pixels. Also Pillow's `DecompressionBombError`.
        ImageError: its header is damaged. Also a ValueError where Pillow raises one.
        OSError: the system's error, if the file cannot be opened.

    Later steps raise Pillow's errors. Thread safe.
    """
    with translated(data_or_path):
        encoded = data_or_path if isinstance(data_or_path, str | os.PathLike) else io.BytesIO(as_bytes(data_or_path))
        image: Image.Image = _lazy(Image.open(encoded))
        return image


def _open_jpeg(file: Any, filename: Any = None) -> Any:
    """What Pillow's registry calls."""
    assert _before is not None
    image = _before(file, filename)
    return _lazy(image) if _registrations else image


def _lazy(image: Any) -> Any:
    if type(image) is JpegImagePlugin.JpegImageFile:
        image.__class__ = LazyJpegFile
    return image
