"""Rows of large batches are written past the processor's caches, where Stoker has its compiled part."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from stoker import _native

_about_arrays = attrgetter("dtype", "shape", "flags.c_contiguous")
_about_tensors = attrgetter("dtype", "shape", "device.type", "requires_grad")


def arrays(column: Sequence[Any], out: Any) -> bool:
    """Writes arrays as the rows of `out`; False, with nothing written, where they are not such as can be copied so.

    Args:
        column: arrays of NumPy's own classes.
        out: a contiguous array with a row for each.
    """
    functions = _native.for_large(out.nbytes)
    if functions is None or set(map(_about_arrays, column)) != {(out.dtype, out.shape[1:], True)}:
        return False
    functions.stack(address_of_array(out), list(map(address_of_array, column)), out.nbytes // len(column))
    return True


def tensors(column: Sequence[Any], out: Any) -> bool:
    """As `arrays`, for tensors of torch's own class."""
    functions = _native.for_large(out.nbytes)
    if functions is None or set(map(_about_tensors, column)) != {(out.dtype, out.shape[1:], "cpu", False)}:
        return False
    if not all(map(is_as_it_lies, column)):
        return False
    kind = type(out)
    functions.stack(out.data_ptr(), list(map(kind.data_ptr, column)), out.nbytes // len(column))
    return True


def is_as_it_lies(tensor: Any) -> bool:
    """Whether its memory is its values, in order: no gaps, and no sign or conjugation that is still to be applied."""
    return bool(tensor.is_contiguous()) and not (tensor.is_neg() or tensor.is_conj())


def address_of_array(array: Any) -> int:
    """Where its memory begins; a third of the time of `array.ctypes.data`."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
