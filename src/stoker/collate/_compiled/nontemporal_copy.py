"""Rows of large batches, written past the processor's caches if Stoker's compiled part is available."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from stoker._core import native

Strides = tuple[int, ...]

_about_arrays = attrgetter("dtype", "shape", "flags.c_contiguous")
_about_tensors = attrgetter("dtype", "shape", "device.type", "requires_grad")

_CHANNELS = 3


def row_array(functions: native.Functions, row: Any, value: Any, beside: Strides | None) -> bool:
    """Writes an array as a row of its shape and dtype. Returns False, with nothing written, if its layout is unsuited.

    Args:
        functions: the compiled part.
        row: a contiguous array.
        value: an array of NumPy's own classes.
        beside: the result of `strides_beside`.
    """
    if value.flags.c_contiguous:
        functions.stack(address_of_array(row), [address_of_array(value)], value.nbytes)
    elif value.strides == beside:
        functions.planes(address_of_array(row), address_of_array(value), value.nbytes // _CHANNELS)
    else:
        return False
    return True


def row_tensor(functions: native.Functions, row: Any, value: Any, beside: Strides | None) -> bool:
    """Does the same as `row_array`, for tensors of torch's own class."""
    if is_as_it_lies(value):
        functions.stack(row.data_ptr(), [value.data_ptr()], value.nbytes)
    elif value.stride() == beside and not value.is_neg():
        functions.planes(row.data_ptr(), value.data_ptr(), value.nbytes // _CHANNELS)
    else:
        return False
    return True


def strides_beside(shape: Sequence[int], is_of_bytes: bool) -> Strides | None:
    """Returns the strides, in bytes, of an image with three interleaved channels and the channel as first dimension, as
    decoded and transposed images have them; None for other shapes."""
    if not is_of_bytes or len(shape) < 2 or shape[0] != _CHANNELS:
        return None
    strides = [_CHANNELS]
    for size in reversed(shape[2:]):
        strides.append(strides[-1] * size)
    return (1, *reversed(strides))


def arrays(column: Sequence[Any], out: Any) -> bool:
    """Writes arrays as the rows of `out`. Returns False, with nothing written, if their layout is unsuited.

    Args:
        column: arrays of NumPy's own classes.
        out: a contiguous array with a row for each.
    """
    functions = native.for_large(out.nbytes)
    if functions is None or set(map(_about_arrays, column)) != {(out.dtype, out.shape[1:], True)}:
        return False
    functions.stack(address_of_array(out), list(map(address_of_array, column)), out.nbytes // len(column))
    return True


def tensors(column: Sequence[Any], out: Any) -> bool:
    """Does the same as `arrays`, for tensors of torch's own class."""
    functions = native.for_large(out.nbytes)
    if functions is None or set(map(_about_tensors, column)) != {(out.dtype, out.shape[1:], "cpu", False)}:
        return False
    if not all(map(is_as_it_lies, column)):
        return False
    kind = type(out)
    functions.stack(out.data_ptr(), list(map(kind.data_ptr, column)), out.nbytes // len(column))
    return True


def is_as_it_lies(tensor: Any) -> bool:
    """Returns whether its memory is its values in order: no gaps, and no pending negation or conjugation."""
    return bool(tensor.is_contiguous()) and not (tensor.is_neg() or tensor.is_conj())


def address_of_array(array: Any) -> int:
    """Returns the address of the array's memory, in a third of the time of `array.ctypes.data`."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
