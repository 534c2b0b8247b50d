"""The compiled decoder of JPEG: `jpeg.c` beside this file, built with `native.c` if there is a C compiler.

It decodes with the libjpeg-turbo that Pillow has loaded, after `bind`. `stoker/images/kernel.py` binds it, tests it and
does without it where it cannot be used. Calls release the GIL and are thread safe.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Protocol

from stoker._core import native

VERSION = 2

DONE, DECLINED, NO_FILE, OUTSIDE, TOO_LARGE, NO_MEMORY = range(6)
"""Outcomes of a decode: pixels are there; Pillow should decide; a file could not be opened; the box is outside the
picture; it has too many pixels; memory is short."""

BILINEAR, BICUBIC = 1, 2
ROWS_FIRST, TALL_COLUMNS_FIRST, COLUMNS_FIRST_IF_LESS = range(3)


class DecodeJob(ctypes.Structure):
    """One request, as `struct job` in `jpeg.c` explains it."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("x", "y", "width", "height", "out_width", "out_height")),
        *((name, ctypes.c_int) for name in ("window_x", "window_y", "window_width", "window_height")),
        *((name, ctypes.c_int) for name in ("flip", "mirrored", "channels", "filter", "order", "scaling", "level")),
        ("is_checked", ctypes.c_int),
        *((name, ctypes.c_int64) for name in ("most_pixels", "most_memory", "stride")),
        ("out", ctypes.c_void_p),
    )


class DecodeHeader(ctypes.Structure):
    """What the header of a picture says, or the number of the system's error."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("width", "height", "components", "progressive", "error"))
    width: int
    height: int
    components: int
    progressive: int
    error: int


class LibraryFunction(Protocol):
    """A function of the library. Arguments are values of `ctypes`, or what it converts to them."""

    def __call__(self, *arguments: object) -> int: ...


class DecoderFunctions(NamedTuple):
    """The functions of the library. They do not check addresses: the caller must.

    Attributes:
        bind: `(path)` binds to the libjpeg of a loaded extension. Returns its ABI (62 or 80), or a negative number.
        level: `()` returns the best vector instructions of the processor: 0 none, 1 SSE4.1, 2 AVX2.
        sound: `(data, size)` returns whether libjpeg refuses nothing in a picture, which may still be damaged.
        look: `(data, size, header)` reads the header. Returns an outcome.
        decode: `(job, data, size, header)` decodes from memory. Returns an outcome.
        decode_file: `(job, path, header)` decodes a file. Returns an outcome.
        decode_files: `(jobs, paths, count)` decodes files one after another. Returns the number that failed.
    """

    bind: LibraryFunction
    level: LibraryFunction
    sound: LibraryFunction
    look: LibraryFunction
    decode: LibraryFunction
    decode_file: LibraryFunction
    decode_files: LibraryFunction


def _loaded() -> tuple[DecoderFunctions | None, str]:
    library, why = native.opened("jpeg", VERSION)
    if library is None:
        return None, why
    address, size, text, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int
    arguments: dict[str, tuple[list[type], type]] = {
        "bind": ([text], number),
        "level": ([], number),
        "sound": ([address, size], number),
        "look": ([address, size, address], number),
        "decode": ([address, address, size, address], number),
        "decode_file": ([address, text, address], number),
        "decode_files": ([address, address, size], size),
    }
    libraries = []
    for name, (types, result) in arguments.items():
        function = getattr(library, f"stoker_jpeg_{name}")
        function.argtypes, function.restype = types, result
        libraries.append(function)
    return DecoderFunctions(*libraries), why


functions, why = _loaded()
"""The functions or None, and the reason in words."""
