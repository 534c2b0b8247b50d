"""Files of numbers without a header."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import ArrayFileError
from stoker.sources.arrays.stored import PLAIN, StoredArray


class RawRows(NamedTuple):
    """The contents of a file without a header.

    Attributes:
        dtype: of the numbers.
        shape: of a row.
        offset: the number of bytes before the first row.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


def raw_rows(dtype: Any, shape: Any, offset: Any) -> RawRows | None:
    """Returns the arguments of a dataset as the description of its raw files; None if there is no dtype.

    Raises:
        TypeError: the dtype holds Python objects, or a size is not an integer.
        ValueError: a size is negative, a row has no bytes, or a shape or offset came without a dtype.
    """
    if dtype is None:
        if shape is not None or offset:
            raise ValueError("shape= and offset= describe raw files, and need dtype=: the dtype of their numbers")
        return None
    kind = np.dtype(dtype)
    sizes = (shape,) if hasattr(shape, "__index__") else () if shape is None else tuple(shape)
    row = RawRows(kind, tuple(map(operator.index, sizes)), operator.index(offset))
    if kind.hasobject:
        raise TypeError(f"dtype is {kind}: Python objects have no raw form")
    if min((*row.shape, row.offset)) < 0 or not math.prod(row.shape) * kind.itemsize:
        raise ValueError(f"shape is {row.shape} and offset {row.offset}: a row needs at least one byte, an offset none")
    return row


def raw_arrays(path: str, size: int, row: RawRows) -> dict[str, StoredArray]:
    """Returns the array of a raw file.

    Raises:
        ArrayFileError: its size is not that of a number of rows.
    """
    of_row = math.prod(row.shape) * row.dtype.itemsize
    rows, rest = divmod(size - row.offset, of_row)
    if rest or rows < 0:
        raise ArrayFileError(
            f"{path} has {size:,} bytes; {row.offset:,} before the first row and {of_row:,} for each row ({row.dtype} "
            f"of shape {row.shape}) do not add up to that. Is the dtype, the shape or the offset another, or is the "
            "file truncated?"
        )
    return {PLAIN: StoredArray(row.dtype, (rows, *row.shape), row.offset)}
