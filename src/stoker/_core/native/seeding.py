"""Seeds for many samples at a time: `seeding.c` beside this file, built with `native.c` if there is a C compiler.

Each caller has a second way with the same numbers. `STOKER_NATIVE=0` disables it. Calls hold the GIL.
"""

from __future__ import annotations

import ctypes
import sys

from stoker._core import native

VERSION = 4

LANES = 64
"""Positions that are seeded at a time."""

PYTHON, NUMPY, TORCH = range(3)
"""Kinds of generators."""

_Word, _Address = ctypes.c_uint64, ctypes.c_void_p


class Twister(ctypes.Structure):
    """A Mersenne twister, as `seeding.c` describes it."""

    _fields_ = (
        *((name, _Word) for name in ("kind", "salt")),
        *((name, _Address) for name in ("memory", "object", "beside", "holds_back", "acquire", "let_go")),
        ("at", _Address * 2),
        ("sizes", _Word * 2),
    )


class GeneratorFields(ctypes.Structure):
    """A generator of samples, as `seeding.c` describes it."""

    _fields_ = (
        ("of", Twister),
        ("is_seeded", _Word),
        *((name, _Address) for name in ("rows", "table")),
        ("seen", ctypes.c_char * 16 * 2),
        *((name, _Word) for name in ("next", "made")),
        ("keys", _Word * LANES),
    )


class RunFields(ctypes.Structure):
    """Samples that are read under their seeds, as `seeding.c` describes them."""

    _fields_ = (
        *((name, _Word) for name in ("key", "position", "stride", "stop", "moved", "ended", "count")),
        ("generators", ctypes.POINTER(GeneratorFields)),
    )


class LentFields(ctypes.Structure):
    """A generator that the loop lends to samples, as `seeding.c` describes it."""

    _fields_ = (
        ("of", Twister),
        *((name, _Address) for name in ("own", "loops")),
        *((name, _Word) for name in ("is_lent", "moved")),
        ("gauss", _Address),
        ("held", ctypes.c_char * 16),
    )


_NAMES = sys.intern("gauss_next"), sys.intern("_bit_generator")  # kept: the library has their addresses


def _loaded() -> tuple[ctypes.CDLL | None, str]:
    library, why = native.opened("seeding", VERSION, ctypes.PyDLL)
    if library is None:
        return None, why
    if sys.implementation.name != "cpython":
        return None, "this Python is not CPython"
    of_python = ctypes.pythonapi
    functions = [of_python.PyIter_Next, of_python.PyList_Append, of_python.PyObject_SetAttr, of_python.PyObject_GetAttr]
    functions += [of_python.PyObject_CallFunctionObjArgs, of_python.Py_DecRef, of_python.PyErr_Occurred]
    given = [*(ctypes.cast(function, _Address).value for function in functions), id(None), *map(id, _NAMES)]
    library.stoker_seeding_begin((_Address * len(given))(*given))
    library.stoker_seeding_seed.argtypes = [_Address]
    library.stoker_seeding_take.argtypes = [ctypes.py_object, ctypes.py_object, _Word, _Address]
    library.stoker_seeding_lend.argtypes = library.stoker_seeding_take_back.argtypes = [_Address, _Word]
    return library, why


library, why = _loaded()
"""The library or None, and the reason in words. `seeding.c` describes its functions."""
