"""Compiled default collation: `collation.c` beside this file, built with `native.c` if there is a C compiler.

Each caller has a second way with the same results. `STOKER_NATIVE=0` disables it. Calls hold the GIL.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np

from stoker._core import native

VERSION = 1

LARGE = 256 << 10
"""Bytes of a batch from which NumPy and torch copy it: they release the GIL and, torch, share the copy out."""

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_HEAD = object.__basicsize__
_IS_NEGATIVE = "_ZN2at6native6is_negERKNS_6TensorE"
_HAS_GRADIENT = "_ZNK3c1010TensorImpl13requires_gradEv"


CopyFunction = Callable[[Sequence[object], object, int], int]


class CollationFunctions(NamedTuple):
    """The functions of the library. Each writes a list or tuple to the rows of `out`, new or lent memory of the caller.
    It returns 0 if a value needs another way, with `out` written in part.

    Attributes:
        numbers: `(column, out, kind)`: numbers of one exact type, to an array of int64 (kind `ord("i")`), float64
            (`ord("f")`) or bool (`ord("b")`).
        arrays: `(column, out, size)`: contiguous arrays of the dtype and shape of a row of `size` bytes.
        tensors: `(column, out, size)`: contiguous real CPU tensors without gradient, likewise.
    """

    numbers: CopyFunction
    arrays: CopyFunction
    tensors: CopyFunction


def _words(at: int, count: int) -> list[int | None]:
    return (ctypes.c_void_p * count).from_address(at)[:]


def _address(function: ctypes._FuncPointer) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _are_arrays_known() -> bool:
    """Returns whether an array has the fields that `collation.c` reads, at their places."""
    array = np.zeros((2, 3), np.int16)
    if np.ndarray.__basicsize__ < _HEAD + 7 * _POINTER:
        return False
    data, ndim, shape, _strides, _base, dtype, flags = _words(id(array) + _HEAD, 7)
    if not (data == array.ctypes.data and (ndim or 0) & 0xFFFFFFFF == 2 and shape and dtype == id(array.dtype)):
        return False
    return _words(shape, 2) == [2, 3] and bool((flags or 0) & 1)


def _loaded() -> tuple[ctypes.CDLL | None, str]:
    """Returns the library or None, and the reason in words. The library gets the functions of Python that it calls."""
    library, why = native.opened("collation", VERSION, ctypes.PyDLL)
    if library is None:
        return None, why
    if sys.implementation.name != "cpython" or not _are_arrays_known():
        return None, "objects of this Python or NumPy have another layout"
    python = ctypes.pythonapi
    owns = sys.version_info >= (3, 13)
    item = python.PyList_GetItemRef if owns else python.PyList_GetItem
    functions = [python.PyList_Size, python.PyTuple_Size, item, python.PyTuple_GetItem]
    numbers = [python.PyLong_AsLongLong, python.PyFloat_AsDouble, python.PyErr_Occurred, python.PyErr_Clear]
    release = _address(python.Py_DecRef) if owns else None
    kinds = map(id, (list, tuple, int, float, bool, True, np.ndarray))
    given = [*map(_address, functions), release, *map(_address, numbers), *kinds, _HEAD]
    library.stoker_collation_begin((ctypes.c_void_p * len(given))(*given))
    thing, size, number = ctypes.py_object, ctypes.c_size_t, ctypes.c_int
    for function, last in (("numbers", number), ("arrays", size), ("tensors", size)):
        getattr(library, f"stoker_collation_{function}").argtypes = [thing, thing, last]
    return library, why


_library, why = _loaded()
"""The library or None, and the reason in words."""

functions: CollationFunctions | None = None
"""The functions, or None."""
if _library is not None:
    functions = CollationFunctions(
        _library.stoker_collation_numbers, _library.stoker_collation_arrays, _library.stoker_collation_tensors
    )


@cache
def are_tensors_known(torch: ModuleType) -> bool:
    """Returns whether `CollationFunctions.tensors` may be called: this version of torch has what it needs.

    Call it with the module of torch, when that is imported.
    """
    if _library is None:
        return False
    try:
        python = ctypes.pythonapi
        pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
            ("PyCapsule_GetPointer", python)
        )
        table = pointer(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
        inner = ctypes.CDLL(torch._C.__file__)  # which is loaded, with the libraries that it needs
        negative, gradient = _address(inner[_IS_NEGATIVE]), _address(inner[_HAS_GRADIENT])
        at = _place_in_tensors(torch)
    except (AttributeError, OSError, ValueError):  # an older or newer version
        return False
    if not table or ctypes.c_uint32.from_address(table).value != 1 or at is None:
        return False
    given = [table, negative, gradient, id(torch.Tensor), at]
    _library.stoker_collation_torch((ctypes.c_void_p * len(given))(*given))
    return True


def _place_in_tensors(torch: ModuleType) -> int | None:
    """Returns the place in a tensor's object at which the address of its C++ part stands; None if it is not clear."""
    count = (torch.Tensor.__basicsize__ - _HEAD) // _POINTER
    places = set(range(count))
    for example in (torch.zeros(1, device="cpu"), torch.zeros(2, 3, device="cpu")):
        places &= {n for n, word in enumerate(_words(id(example) + _HEAD, count)) if word == example._cdata}
    return _HEAD + places.pop() * _POINTER if len(places) == 1 else None
