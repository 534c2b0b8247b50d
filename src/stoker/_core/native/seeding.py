"""Seeds for many samples at a time: `seeding.c` beside this file, built with `native.c` if there is a C compiler.

Each caller has a second way with the same numbers. `STOKER_NATIVE=0` disables it. Calls hold the GIL.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

VERSION = 2
LIBRARY = Path(__file__).with_name("seeding.bin")

LANES = 64
"""Positions that are seeded at a time."""

WORDS = 624

PYTHON, NUMPY, TORCH = range(3)
"""Kinds of generators."""

_Word, _Address = ctypes.c_uint64, ctypes.c_void_p


class TwisterFields(ctypes.Structure):
    """A Mersenne twister, as `seeding.c` describes it."""

    _fields_ = (
        ("kind", _Word),
        *((name, _Address) for name in ("memory", "object", "bits", "state", "holds_back")),
    )


class GeneratorFields(ctypes.Structure):
    """A generator of samples, as `seeding.c` describes it."""

    _fields_ = (
        ("of", TwisterFields),
        *((name, _Word) for name in ("salt", "is_seeded")),
        *((name, _Address) for name in ("rows", "table")),
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
        ("of", TwisterFields),
        *((name, _Address) for name in ("own", "loops")),
        *((name, _Word) for name in ("is_lent", "moved")),
        ("gauss", _Address),
        ("held", ctypes.c_char * 16),
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
        given = [ctypes.cast(function, _Address).value for function in functions]
        given += [id(None), *map(id, _NAMES)]
        library.stoker_seeding_begin((_Address * len(given))(*given))
    except (OSError, AttributeError) as error:  # built for another machine, or truncated
        return None, f"it cannot be loaded: {error}"
    library.stoker_seeding_seed.argtypes = [_Address]
    library.stoker_seeding_take.argtypes = [ctypes.py_object, ctypes.py_object, _Word, _Address]
    library.stoker_seeding_lend.argtypes = library.stoker_seeding_take_back.argtypes = [_Address, _Word]
    return library, "compiled"


_NAMES = sys.intern("gauss_next"), sys.intern("_bit_generator")  # kept: the library has their addresses
_library, why = _loaded()
"""The library or None, and the reason in words."""

is_there = _library is not None
"""Whether the functions below may be called."""


def seed(run: int) -> None:
    """Seeds generators for the position; `run` points to `RunFields`."""
    assert _library is not None
    _library.stoker_seeding_seed(run)


def lend(lent: int, count: int) -> None:
    """Gives generators the states that they have for samples; `lent` points to `LentFields`."""
    assert _library is not None
    _library.stoker_seeding_lend(lent, count)


def take_back(lent: int, count: int) -> bool:
    """Gives them the loop's states again; returns whether samples have drawn from any that had a state."""
    assert _library is not None
    return bool(_library.stoker_seeding_take_back(lent, count))


def take(iterator: Iterator[object], samples: list[object], most: int, run: int) -> None:
    """Appends at most `most` values of an iterator to `samples`, each under its seeds; `run` points to `RunFields`.

    Raises:
        Exception: raised by the iterator; `RunFields.taken` values were appended before it.
    """
    assert _library is not None
    _library.stoker_seeding_take(iterator, samples, most, run)
