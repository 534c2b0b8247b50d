"""Rows of large batches are written past the processor's caches, where Stoker has its compiled part."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from stoker import _native

Strides = tuple[int, ...]

_about_arrays = attrgetter("dtype", "shape", "flags.c_contiguous")
_about_tensors = attrgetter("dtype", "shape", "device.type", "requires_grad")

_CHANNELS = 3


def row_array(functions: _native.Functions, row: Any, value: Any, beside: Strides | None) -> bool:
    """Writes an array as a row of its shape and dtype; False, with nothing written, where it cannot be copied so.

    Args:
        functions: the compiled part.
        row: a contiguous array.
        value: an array of NumPy's own classes.
        beside: what `strides_beside` says.
    """
    if value.flags.c_contiguous:
        functions.stack(address_of_array(row), [address_of_array(value)], value.nbytes)
    elif value.strides == beside:
        functions.planes(address_of_array(row), address_of_array(value), value.nbytes // _CHANNELS)
    else:
        return False
    return True


def row_tensor(functions: _native.Functions, row: Any, value: Any, beside: Strides | None) -> bool:
    """As `row_array`, for tensors of torch's own class."""
    if is_as_it_lies(value):
        functions.stack(row.data_ptr(), [value.data_ptr()], value.nbytes)
    elif value.stride() == beside and not value.is_neg():
        functions.planes(row.data_ptr(), value.data_ptr(), value.nbytes // _CHANNELS)
    else:
        return False
    return True


def strides_beside(shape: Sequence[int], is_of_bytes: bool) -> Strides | None:
    """In bytes, of an image whose three channels lie beside each other in each point, though they are its first
    dimension: as it is decoded, and turned for the network. None where there is no such thing."""
    if not is_of_bytes or len(shape) < 2 or shape[0] != _CHANNELS:
        return None
    strides = [_CHANNELS]
    for size in reversed(shape[2:]):
        strides.append(strides[-1] * size)
    return (1, *reversed(strides))


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
