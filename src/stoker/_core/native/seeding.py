"""Seeds for many samples at a time: `seeding.c` beside this file, built with `native.c` if there is a C compiler.

Each caller has a second way with the same numbers. `STOKER_NATIVE=0` disables it. Calls hold the GIL.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

VERSION = 1
LIBRARY = Path(__file__).with_name("seeding.bin")

LANES = 64
"""Positions that are seeded at a time."""

ROWS = 2 * LANES + 4
"""Rows of 625 words with which `write_rows` makes those of Python's and NumPy's generators: the first `LANES`."""

PYTHON, NUMPY, TORCH = range(3)
"""Kinds of generators: see `stoker_seeding_rows`."""

_Word, _Address = ctypes.c_uint64, ctypes.c_void_p


class GeneratorFields(ctypes.Structure):
    """A generator, as `seeding.c` describes it."""

    _fields_ = (
        *((name, _Word) for name in ("kind", "salt", "is_seeded")),
        *((name, _Address) for name in ("memory", "object", "holds_back", "rows", "states", "table")),
        ("at", _Address * 2),
        ("sizes", _Word * 2),
        ("seen", ctypes.c_char * 16 * 2),
        *((name, _Word) for name in ("key", "first", "stride", "until")),
    )


class RunFields(ctypes.Structure):
    """Samples that are read under their seeds, as `seeding.c` describes them."""

    _fields_ = (
        *((name, _Word) for name in ("key", "position", "stride", "taken", "stop", "moved", "ended", "count")),
        ("generators", ctypes.POINTER(GeneratorFields)),
    )


class LentFields(ctypes.Structure):
    """A generator that the loop lends to samples, as `seeding.c` describes it."""

    _fields_ = (
        *((name, _Word) for name in ("kind", "size")),
        *((name, _Address) for name in ("memory", "object", "holds_back", "own", "loops", "own_state", "loops_state")),
        ("parts", _Address * 3),
        ("sizes", _Word * 3),
        ("gauss", _Address),
        ("second", ctypes.c_double),
        ("holds", _Word),
    )


def _loaded() -> tuple[ctypes.PyDLL | None, str]:
    """Returns the library or None, and the reason in words."""
    if os.environ.get("STOKER_NATIVE") == "0":
        return None, "STOKER_NATIVE=0"
    if not LIBRARY.exists():
        return None, "there was no C compiler when Stoker was installed"
    try:
        library = ctypes.PyDLL(str(LIBRARY))
        version = library.stoker_seeding_version()
        if version != VERSION:
            return None, f"it was built from other sources (version {version}, not {VERSION}): install Stoker again"
        if sys.implementation.name != "cpython":
            return None, "this Python is not CPython"
        python = ctypes.pythonapi
        functions = [python.PyIter_Next, python.PyList_Append, python.PyObject_SetAttr]
        functions += [python.PyObject_GetAttr]
        functions += [python.PyObject_CallFunctionObjArgs, python.Py_DecRef, python.PyErr_Occurred]
        given = [*(ctypes.cast(function, _Address).value for function in functions), id(None), id(_GAUSS_NEXT)]
        library.stoker_seeding_begin((_Address * len(given))(*given))
    except (OSError, AttributeError) as error:  # built for another machine, or truncated
        return None, f"it cannot be loaded: {error}"
    library.stoker_seeding_rows.argtypes = [ctypes.c_int, _Address, *[_Word] * 4, _Address]
    library.stoker_seeding_take.argtypes = [ctypes.py_object, ctypes.py_object, _Word, _Address]
    library.stoker_seeding_lend.argtypes = library.stoker_seeding_take_back.argtypes = [_Address, _Word]
    library.stoker_seeding_take_back.restype = ctypes.c_int64
    return library, "compiled"


_GAUSS_NEXT = sys.intern("gauss_next")  # kept: the library has its address
_library, why = _loaded()
"""The library or None, and the reason in words."""

is_there = _library is not None
"""Whether the functions below may be called."""


def write_rows(kind: int, to: int, key: int, position: int, salt: int, table: int | None = None) -> None:
    """Writes states of a generator, seeded for `LANES` positions from `position` on (see `stoker_seeding_rows`)."""
    assert _library is not None
    _library.stoker_seeding_rows(kind, to, key, position, 1, salt, table)


def lend(lent: int, count: int) -> bool:
    """Gives generators the states that they have for samples; False if those of the loop are not known."""
    assert _library is not None
    return not _library.stoker_seeding_lend(lent, count)


def take_back(lent: int, count: int) -> int:
    """Gives them the loop's states again; returns the bits of those that samples have drawn from."""
    assert _library is not None
    return int(_library.stoker_seeding_take_back(lent, count))


def take(iterator: Iterator[object], samples: list[object], most: int, run: int) -> None:
    """Appends at most `most` values of an iterator to `samples`, each under its seeds; `run` points to `RunFields`.

    Raises:
        Exception: raised by the iterator; `RunFields.taken` values were appended before it.
    """
    assert _library is not None
    _library.stoker_seeding_take(iterator, samples, most, run)
