"""Columns of leaves copied by one call of the compiled part (`stoker._core.native.collation`), which looks at the type
and the layout of each value as it copies it. A column that it refuses goes the way of NumPy or torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stoker._core.native import collation
from stoker.collate import tensors


class WrittenColumn:
    """A column that `check` has written to memory of its own: there `make` need not look at the values again. Lent
    memory is not asked for before all columns of a batch are known to fit.
    """

    __slots__ = ("out",)

    def __init__(self, out: Any) -> None:
        self.out = out


class ColumnCopy:
    """Copies columns of one kind of value, until it has to refuse one.

    Args:
        function: of the compiled part; None for none.
        last: its last argument.
        size: bytes of a row.
        empty: returns memory for that many rows, which is not lent.
    """

    def __init__(
        self, function: collation.CopyFunction | None, last: int, size: int, empty: Callable[[int], Any]
    ) -> None:
        self._function = function if size else None
        self._last = last
        self._size = size
        self._empty = empty

    def alone(self, column: Sequence[Any]) -> WrittenColumn | None:
        """Returns the column in memory of its own; None if memory is lent, or if the column needs another way."""
        if self._function is None or tensors.is_lent() or len(column) * self._size >= collation.LARGE:
            return None
        out = self._empty(len(column))
        return WrittenColumn(out) if self.into(column, out) else None

    def into(self, column: Sequence[Any], out: Any) -> bool:
        """Writes the column to `out`, which has a row for each value. Returns False if it needs another way."""
        if self._function is None or len(column) * self._size >= collation.LARGE or not self._is_usual():
            return False
        if self._function(column, out, self._last):
            return True
        self._function = None  # the next ones are alike: they would be refused as well
        return False

    def _is_usual(self) -> bool:
        return True


class TensorCopy(ColumnCopy):
    """The same for tensors: only where `torch.stack` would do no more than copy."""

    def _is_usual(self) -> bool:
        return tensors.are_as_ever()


def of_numbers(kind: type, dtype: np.dtype[Any]) -> ColumnCopy:
    """Returns the copy of a column of numbers of this type."""
    known = collation.functions if kind in (int, float, bool) else None
    function = None if known is None else known.numbers
    return ColumnCopy(function, ord(dtype.kind), dtype.itemsize, lambda count: np.empty(count, dtype))


def of_arrays(shape: tuple[int, ...], dtype: np.dtype[Any]) -> ColumnCopy:
    """Returns the copy of a column of arrays of this shape and dtype."""
    size = math.prod(shape) * dtype.itemsize
    function = None if collation.functions is None else collation.functions.arrays
    return ColumnCopy(function, size, size, lambda count: np.empty((count, *shape), dtype))


def of_tensors(shape: tuple[int, ...], dtype: Any, itemsize: int) -> ColumnCopy:
    """Returns the copy of a column of tensors of this shape and dtype."""
    size, torch = math.prod(shape) * itemsize, sys.modules["torch"]
    known = collation.functions if collation.are_tensors_known(torch) else None
    function, empty = None if known is None else known.tensors, torch.empty
    return TensorCopy(function, size, size, lambda count: empty((count, *shape), dtype=dtype, device="cpu"))
