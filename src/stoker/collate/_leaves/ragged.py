"""Rows of different sizes, written into one leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any, Literal

import numpy as np

from stoker.collate._leaves import batch_memory, mismatch
from stoker.collate._leaves.promotion import common_dtype
from stoker.collate._leaves.stacking import NumpyLeaves
from stoker.collate._leaves.tensors import as_tensor, is_tensor
from stoker.errors import BatchError

Side = Literal["right", "left"]


def rows_of(batch: Sequence[Any], dims: Sequence[int]) -> list[Any]:
    """Returns arrays over the samples' memory, or tensors if NumPy cannot hold one; their shapes differ only in `dims`.

    An empty list has no dtype and no other dimensions: it takes those of a row that has them.
    """
    given = [None if isinstance(sample, list) and not list.__len__(sample) else _row(sample, batch) for sample in batch]
    some = next((row for row in given if row is not None), np.empty(0, np.int64))
    nothing = some[tuple(slice(0 if dim in dims else None) for dim in range(some.ndim))]
    rows = [nothing if row is None else row for row in given]
    if not all(isinstance(row, np.ndarray) for row in rows):
        rows = [as_tensor(row) for row in rows]
    if some.ndim <= dims[-1]:
        raise BatchError(f"there is no dimension {dims[-1]} to pad in shape {tuple(some.shape)}: correct dims=")
    if len({(row.ndim, *(size for dim, size in enumerate(row.shape) if dim not in dims)) for row in rows}) > 1:
        raise mismatch.unequal_shapes(rows)
    return rows


def cut(rows: Sequence[Any], dims: Sequence[int], longest: int, side: Side) -> list[Any]:
    """Returns views of the rows, cut to `longest` in these dimensions on the side of the padding."""
    kept = [[min(size, longest) if dim in dims else size for dim, size in enumerate(row.shape)] for row in rows]
    return [row[_corner(row.shape, size, side)] for row, size in zip(rows, kept, strict=True)]


def padded(rows: Sequence[Any], sizes: Mapping[int, int], side: Side, value: Any, leaves: NumpyLeaves) -> Any:
    """Returns one leaf of the rows, padded on that side: shape (rows, *row with `sizes` for its dimensions)."""
    shape = tuple(sizes.get(dim, size) for dim, size in enumerate(rows[0].shape))
    out = _empty(rows, shape, value, leaves)
    if len(shape) == 1 and isinstance(out, np.ndarray):
        _lay_out(out, rows, value, side)
        return leaves.leaf(out)
    for place, row in enumerate(rows):
        into = out[place]
        if row.shape != shape:
            into[...] = value
            into = into[_corner(shape, row.shape, side)]
        into[...] = row
    return leaves.leaf(out) if isinstance(out, np.ndarray) else leaves.of_tensor(out)


def _lay_out(out: np.ndarray[Any, Any], rows: Sequence[Any], value: Any, side: Side) -> None:
    """Writes rows of one dimension, which are often many and short."""
    out[...] = value
    (_, size) = out.shape
    for into, row in zip(out, rows, strict=True):
        if side == "right":
            into[: len(row)] = row
        else:
            into[size - len(row) :] = row


def mask(rows: Sequence[Any], sizes: Mapping[int, int], side: Side, leaves: NumpyLeaves) -> Any:
    """Returns a mask of the rows' own values in `padded`: bool, shape (rows, *sizes)."""
    real = batch_memory.empty((len(rows), *sizes.values()), np.dtype(np.bool_))
    real[...] = True
    for axis, (dim, size) in enumerate(sizes.items(), start=1):
        had = np.array([[row.shape[dim]] for row in rows])
        along = np.arange(size) < had if side == "right" else np.arange(size) >= size - had
        real &= along.reshape([len(rows), *[size if at == axis else 1 for at in range(1, real.ndim)]])
    whole = leaves.leaf(real)
    return whole.to(rows[0].device) if is_tensor(whole) and is_tensor(rows[0]) else whole


def _corner(shape: Sequence[int], kept: Sequence[int], side: Side) -> tuple[slice, ...]:
    """Returns the part of `shape` on the side of the data."""
    if side == "right":
        return tuple(slice(size) for size in kept)
    return tuple(slice(whole - size, None) for whole, size in zip(shape, kept, strict=True))


def _row(sample: Any, batch: Sequence[Any]) -> Any:
    if is_tensor(sample):
        try:
            return sample.numpy()
        except (RuntimeError, TypeError):
            return sample  # with a gradient, on a device, or of a dtype that NumPy lacks
    try:
        row = np.asarray(sample)
    except ValueError as cause:
        raise BatchError(f"a list that is no array cannot be padded: {cause}") from cause
    if row.dtype.kind in "ufO" and isinstance(sample, (list, tuple)) and {int} <= {*map(type, sample)} <= {int, bool}:
        raise mismatch.overflow(sample, "the list")
    if row.dtype.kind not in "biufc":
        raise mismatch.unequal_types(batch)
    return row


def _empty(rows: Sequence[Any], shape: Sequence[int], value: Any, leaves: NumpyLeaves) -> Any:
    """Returns uninitialised memory for the rows. Raises BatchError if its dtype cannot hold the value."""
    if isinstance(rows[0], np.ndarray):
        dtype = common_dtype({row.dtype for row in rows}, rows)
        leaves.accept(dtype)
        check_fits(value, dtype)
        return batch_memory.empty((len(rows), *shape), dtype)
    import torch

    common = reduce(torch.promote_types, (row.dtype for row in rows))
    _check(value, lambda number: torch.tensor(number, dtype=common).item())
    if any(row.requires_grad or row.device.type != "cpu" for row in rows):
        return torch.empty((len(rows), *shape), dtype=common, device=rows[0].device)
    return batch_memory.empty_tensor((len(rows), *shape), common)


def check_fits(value: Any, dtype: np.dtype[Any]) -> None:
    """Raises BatchError for a value that would wrap, be cut or overflow in this dtype; floats may be rounded."""
    _check(value, lambda number: np.asarray(number).astype(dtype).item())


def _check(value: Any, held_as: Callable[[Any], Any]) -> None:
    """Raises BatchError for a value that the rows' dtype would wrap, cut or overflow; floats may be rounded."""
    fits = False
    with suppress(OverflowError, RuntimeError, ValueError), np.errstate(all="ignore"):
        held = held_as(value)
        rounded = isinstance(held, (float, complex, np.inexact)) and np.isfinite(held)
        fits = rounded or held == value or (held != held and value != value)
    if not fits:
        raise BatchError(f"padding value {value!r} does not fit the samples' dtype: choose another padding_value=")
