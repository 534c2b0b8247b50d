"""Registers Stoker's JPEG reader with Pillow in the processes that make samples, as soon as Pillow loads its own.

A loader's worker processes have it; the training process only behind `stoker.install()`. A program that does not use
Pillow loads neither Pillow nor `stoker.images`. An opener that the program has put into Pillow's registry stays.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, Literal

from stoker._core.after_import import AfterImport

JpegReading = Literal["workers", "everywhere", "nowhere"]
"""The processes in which a loader registers the reader: its worker processes, those and this one, or none."""

_PLUGIN = "PIL.JpegImagePlugin"
"""Pillow loads it when it first opens an image."""


def is_wanted(where: JpegReading, own_process: bool) -> bool:
    """Returns whether a loader registers the reader where it makes samples.

    Args:
        where: the loader's setting.
        own_process: whether its workers are processes.
    """
    is_allowed = where == "everywhere" or (where == "workers" and own_process)
    return is_allowed and os.environ.get("STOKER_IMAGES") != "0"


def load() -> None:
    """Loads the reader if this process has loaded Pillow's, so that workers that are forked then share it."""
    if _PLUGIN in sys.modules and _is_compiled():
        with _pillow_else():
            import stoker

            stoker.images.backend()


def register() -> None:
    """Registers the reader in this process: now, or when Pillow loads its own. Any thread may call it."""
    if _PLUGIN in sys.modules:
        _register()
    elif not _undo:
        finder = AfterImport({_PLUGIN: lambda plugin: _register_at_first_file()})
        sys.meta_path.insert(0, finder)

        def forget() -> None:
            sys.meta_path[:] = [other for other in sys.meta_path if other is not finder]

        _undo.append(forget)


def unregister() -> None:
    """Gives Pillow its own reader back, in this process."""
    while _undo:
        _undo.pop()()


_undo: list[Callable[[], object]] = []
"""Takes the registration of this process back. Workers keep theirs to their end."""


def _register() -> None:
    if _is_pillows(sys.modules[_PLUGIN]) and _is_compiled():
        with _pillow_else():
            import stoker

            _undo.append(stoker.images.register().undo)


def _register_at_first_file() -> None:
    """Registers the reader when a JPEG is opened: while Pillow's module is imported, an import of `stoker.images` could
    wait for another thread's, which waits for this one."""
    image: Any = sys.modules["PIL.Image"]
    if not _is_pillows(sys.modules[_PLUGIN]):
        return
    pillows, accept = image.OPEN["JPEG"]

    def put_back() -> bool:
        is_there = image.OPEN["JPEG"][0] is first
        if is_there:
            image.register_open("JPEG", pillows, accept)
        return is_there

    def first(file: Any, filename: Any = None) -> Any:
        if not put_back():
            return pillows(file, filename)
        _register()
        return image.OPEN["JPEG"][0](file, filename)

    image.register_open("JPEG", first, accept)
    _undo.append(put_back)


def _pillow_else() -> contextlib.suppress:
    """Returns a context in which any error ends the attempt: Pillow, of an unusual build, then reads files itself."""
    return contextlib.suppress(Exception)


def _is_pillows(plugin: Any) -> bool:
    """Returns whether JPEGs are opened by Pillow's own opener."""
    opener = getattr(sys.modules.get("PIL.Image"), "OPEN", {}).get("JPEG", (None,))[0]
    return opener is not None and opener is getattr(plugin, "jpeg_factory", None)


def _is_compiled() -> bool:
    from stoker._core.native import jpeg

    return jpeg.functions is not None


# The lines of `describe()` and `report()`.


def decoded_whole(where: JpegReading, own_process: bool) -> str | None:
    """Returns where and why Pillow decodes whole JPEGs, with the cure; None where it does not.

    None also if this process has not loaded Pillow's plugin, or the program has put an opener of its own in its place.
    """
    plugin: Any = sys.modules.get(_PLUGIN)
    if plugin is None or not _is_pillows(plugin) or is_wanted(where, own_process) or not _is_compiled():
        return None
    said = "JPEGs that PIL.Image.open opens are decoded whole"
    if os.environ.get("STOKER_IMAGES") == "0":
        return f"{said}, because of STOKER_IMAGES=0"
    if where == "nowhere":
        return f"{said}, because of stoker.install(images=False)"
    return (
        f"{said} in this process: call stoker.images.register() once, before the loop, and only what is used of them "
        "is decoded, to the same pixels"
    )


def in_words(where: JpegReading, own_process: bool) -> str | None:
    """Returns the decoder of JPEGs where a loader makes samples; None if this process knows of no image."""
    kernel: Any = sys.modules.get("stoker.images.kernel")
    found = [] if kernel is None else [f"JPEGs: {kernel.backend()}"]
    whole = decoded_whole(where, own_process)
    return "; ".join(found if whole is None else [*found, whole]) or None
