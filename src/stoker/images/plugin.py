"""`register` makes `PIL.Image.open` give lazy images, which decode when their pixels are read; `open` gives one without
that.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from stoker.images.decoding import Encoded, Path, as_bytes, translated
from stoker.images.kernel import Pixels, bound
from stoker.images.pillow import Image, JpegImagePlugin
from stoker.images.plan import DecodePlan, Picture

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
    value, and the calls that raise: a file in which Pillow could find an error is decoded by Pillow, at the call at
    which it would be. Without the compiled part (`backend()`) nothing changes. What a program can see is
    `type(image)`, a subclass of Pillow's until pixels are read.

    It holds for this process and the processes forked from it. A loader's worker processes need no call: they register
    the reader themselves. It is cheap, also when repeated, and thread safe.
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


# Pillow images that decode when their pixels are read. `LazyJpegFile` is a JPEG file, `LazyImage` the result of
# `convert`, `crop`, `resize`, `transpose` and `copy` of one. Each holds a plan; once pixels are read, it becomes an
# ordinary image of Pillow's class.


_CORE = "_im" if isinstance(vars(Image.Image).get("im"), property) else "im"
"""The attribute that holds Pillow's memory: a private one since Pillow 11."""


def _plan_of(image: Image.Image) -> DecodePlan | None:
    """Returns the plan, which a file makes now; None if Pillow has to do the next step."""
    plan: DecodePlan | None = vars(image).get("_stoker_plan")
    return _taken(image) if plan is None and isinstance(image, LazyJpegFile) else plan


def _settle(image: Image.Image) -> None:
    """Makes this an ordinary image, with pixels if there is a plan."""
    plan: DecodePlan | None = vars(image).get("_stoker_plan")
    core = None if plan is None else _core(plan.pixels())
    if core is not None and "_stoker_plan" in vars(image):  # another thread may have been first
        vars(image)[_CORE] = core
    _forget(image)


def _core(pixels: Pixels) -> Any:
    """Returns Pillow's memory with these pixels, of which arrays may have been given out."""
    image = Image.fromarray(pixels)
    return image.im.copy() if image.readonly else image.im  # of grey pixels, it would be their own memory


def _forget(image: Image.Image) -> None:
    """Makes this an ordinary image, with the pixels that it has."""
    if isinstance(image, _Lazy):
        kind = JpegImagePlugin.JpegImageFile if isinstance(image, LazyJpegFile) else Image.Image
        image.__class__ = kind  # type: ignore[assignment]
    vars(image).pop("_stoker_plan", None)


def _noted(image: Image.Image, plan: DecodePlan) -> LazyImage:
    """Returns the image of a plan that was made from that of `image`."""
    noted = LazyImage()
    noted._mode, noted._size = plan.mode, plan.size
    noted.info = {name: value.copy() if isinstance(value, list) else value for name, value in image.info.items()}
    vars(noted)["_stoker_plan"] = plan
    return noted


class _Lazy(Image.Image):
    """What both kinds share.

    Another thread may make `self` an ordinary image at any time: so methods call functions, and Pillow's methods by
    their class.
    """

    @property
    def im(self) -> Any:
        if "_stoker_plan" in vars(self):
            _settle(self)
        return vars(self).get(_CORE) if _CORE == "im" else Image.Image.im.fget(self)  # type: ignore[attr-defined]

    @im.setter
    def im(self, core: Any) -> None:
        if core is not None:
            _forget(self)
        vars(self)[_CORE] = core

    @property
    def __array_interface__(self) -> dict[str, Any]:
        plan = _plan_of(self)
        if plan is None:
            interface: dict[str, Any] = Image.Image.__array_interface__.fget(self)  # type: ignore[attr-defined]
            return interface
        pixels = plan.pixels()
        view = pixels.reshape(-1).data.toreadonly()  # as Pillow's, which are bytes
        return {"version": 3, "shape": pixels.shape, "typestr": "|u1", "data": view}

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        plan = _plan_of(self)
        noted = None if plan is None or args or kwargs else plan.converted(mode or plan.mode)
        return Image.Image.convert(self, mode, *args, **kwargs) if noted is None else _noted(self, noted)

    def crop(self, box: Any = None) -> Image.Image:
        plan = _plan_of(self)
        noted = None if plan is None else plan.copied() if box is None else plan.cropped(box)
        return Image.Image.crop(self, box) if noted is None else _noted(self, noted)

    def resize(self, size: Any, resample: int | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        plan = _plan_of(self)
        if plan is not None and not any(value is not None for value in (*args, *kwargs.values())):
            noted = plan.resized(tuple(size), Image.Resampling.BICUBIC if resample is None else resample)
            if noted is not None:
                return _noted(self, noted)
        return Image.Image.resize(self, size, resample, *args, **kwargs)

    def transpose(self, method: Any) -> Image.Image:
        plan = _plan_of(self) if method == Image.Transpose.FLIP_LEFT_RIGHT else None
        return Image.Image.transpose(self, method) if plan is None else _noted(self, plan.turned())

    def copy(self) -> Image.Image:
        plan = _plan_of(self)
        return Image.Image.copy(self) if plan is None else _noted(self, plan.copied())

    if hasattr(Image.Image, "__copy__"):
        __copy__ = copy

    def close(self) -> None:
        _forget(self)
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        _settle(self)
        return self.__reduce_ex__(protocol)

    def __eq__(self, other: object) -> bool:
        for image in (self, other):
            if isinstance(image, _Lazy):
                _settle(image)
        return self == other

    def __repr__(self) -> str:
        kind = JpegImagePlugin.JpegImageFile if isinstance(self, LazyJpegFile) else Image.Image
        width, height = self.size
        name = f"{kind.__module__}.{kind.__name__}"
        return f"<{name} image mode={self.mode} size={width}x{height} at 0x{id(self):X}>"


class LazyImage(_Lazy):
    """An image that decodes when its pixels are read. It becomes an `Image.Image` then."""

    def load(self) -> Any:
        _settle(self)
        return self.load()


class LazyJpegFile(_Lazy, JpegImagePlugin.JpegImageFile):
    """A JPEG file that decodes when its pixels are read. It becomes a `JpegImageFile` then, as Pillow opens it."""

    def load(self) -> Any:
        """Takes the file's bytes and closes it. The pixels of a sound file are decoded when they are read."""
        if _plan_of(self) is not None:
            return PixelAccess(self)
        _settle(self)
        return self.load()


def _taken(image: LazyJpegFile) -> DecodePlan | None:
    """Takes the bytes of a file that is sound, and that Pillow would decode as the kernel does, without an error."""
    kernel = bound()
    if kernel is None or image.fp is None or vars(image).get(_CORE) is not None or image.mode not in ("RGB", "L"):
        return None
    if len(image.tile) != 1 or tuple(image.tile[0])[::3] != ("jpeg", (image.mode, "")) or any(image.decoderconfig):
        return None
    data = _content(image.fp)
    if not kernel.functions.sound(data, len(data)):
        return None
    plan = DecodePlan.of(Picture(data, image.size, image.mode, threading.Event()))
    vars(image)["_stoker_plan"] = plan
    image.tile = []  # this and the next are what `load` of Pillow leaves
    image.readonly = 0
    if getattr(image, "_exclusive_fp", False) and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None
    return plan


class PixelAccess:
    """What `load` of a file returns before pixels are read: access to single pixels, as Pillow's."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image

    def __getitem__(self, place: Any) -> Any:
        return self._access()[place]

    def __setitem__(self, place: Any, colour: Any) -> None:
        self._access()[place] = colour

    def _access(self) -> Any:
        _settle(self._image)
        return self._image.load()


def _content(file: Any) -> bytes:
    """Returns the whole content of a file object; for bytes in memory it is no copy."""
    if type(file) is io.BytesIO:
        return file.getvalue()
    file.seek(0)
    data = file.read()
    return data if isinstance(data, bytes) else bytes(data)
