"""One column of a table: values of one type, kept in arrays.

`Builder` takes values chunk by chunk and builds `NumberColumn` or `TextColumn`, which return them. Buffers grow as
bytearrays, which are enlarged in place, so building never holds a column twice.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Reader = Callable[[int], Any]
"""Returns the value of a row. Made once, because rows are read one by one."""

_INT64 = np.dtype(np.int64)
_PYTHON_NUMBERS: dict[type, np.dtype[Any]] = {bool: np.dtype(np.bool_), int: _INT64, float: np.dtype(np.float64)}


@dataclass(frozen=True, eq=False)
class NumberColumn:
    """A column of numbers, or of arrays of one shape: `array[i]` is the value of row i.

    Attributes:
        kind: the type of the values: Python's, a NumPy scalar's, or `np.ndarray`.
        mask: True for rows whose value is None; None if there are no such rows.
    """

    array: Array
    kind: type
    mask: Array | None

    def reader(self) -> Reader:
        """Returns a function that returns the value of a row. An array is a copy: the caller may change it."""
        array = self.array
        read: Reader = array.__getitem__
        if self.kind in _PYTHON_NUMBERS:
            read = array.item
        elif self.kind is np.ndarray:
            read = lambda row: array[row, ...].copy()  # noqa: E731 - one of three
        return _read_with_gaps(read, self.mask)

    def take(self, rows: Array) -> list[Any]:
        """Returns the values of these rows. Arrays are copies: the caller may change them."""
        picked = self.array[rows]
        if self.kind in _PYTHON_NUMBERS:
            values = picked.tolist()
        elif self.kind is np.ndarray:
            values = [picked[place, ...] for place in range(len(picked))]  # `...` keeps 0-d arrays
        else:
            values = list(picked)
        return _with_gaps(values, self.mask, rows)

    def __len__(self) -> int:
        return len(self.array)

    def part(self, start: int, stop: int) -> NumberColumn:
        """Returns a view of these rows."""
        return NumberColumn(self.array[start:stop], self.kind, None if self.mask is None else self.mask[start:stop])

    @property
    def nbytes(self) -> int:
        return self.array.nbytes + (0 if self.mask is None else self.mask.nbytes)


@dataclass(frozen=True, eq=False)
class TextColumn:
    """A column of strings, or of bytes: row i is `buffer[offsets[i]:offsets[i + 1]]`.

    Attributes:
        buffer: all values joined, strings as UTF-8.
        offsets: the start of each value, then the end of the last one, as int64.
        mask: True for rows whose value is None; None if there are no such rows.
    """

    buffer: Array
    offsets: Array
    kind: type
    mask: Array | None

    def reader(self) -> Reader:
        data, offset = self.buffer.data, self.offsets.item

        def read_text(row: int) -> str:
            return str(data[offset(row) : offset(row + 1)], "utf-8", "surrogatepass")

        def read_bytes(row: int) -> bytes:
            return bytes(data[offset(row) : offset(row + 1)])

        return _read_with_gaps(read_text if self.kind is str else read_bytes, self.mask)

    def take(self, rows: Array) -> list[Any]:
        data, decoded = self.buffer.data, self._decoded
        spans = zip(self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True)
        return _with_gaps([decoded(data[start:stop]) for start, stop in spans], self.mask, rows)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, start: int, stop: int) -> TextColumn:
        first, last = self.offsets[start], self.offsets[stop]
        mask = None if self.mask is None else self.mask[start:stop]
        return TextColumn(self.buffer[first:last], self.offsets[start : stop + 1] - first, self.kind, mask)

    def _decoded(self, span: memoryview) -> str | bytes:
        # The system returns paths that are not UTF-8 with lone surrogates.
        return str(span, "utf-8", "surrogatepass") if self.kind is str else bytes(span)

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes + self.offsets.nbytes + (0 if self.mask is None else self.mask.nbytes)


class Builder:
    """Collects the values of one column. The first value that is not None sets the type."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._store: _GrowingNumbers | _GrowingTexts | None = None
        self._mask = bytearray()

    def extend(self, values: Sequence[Any]) -> None:
        """Appends `values`.

        Raises:
            TypeError: values of this type cannot be kept in arrays.
            ValueError: a value differs in type or shape from those before it, or is too large.
        """
        kinds = set(map(type, values))
        gaps = type(None) in kinds
        kinds.discard(type(None))
        if self._store is None and kinds:
            self._begin(values)
        if self._store is not None:
            fill = self._store.fill
            filled = [fill if value is None else value for value in values] if gaps else values
            if not (kinds <= {self._store.kind} and self._store.append(filled)):
                self._refuse(values, self._store)
        self._mask += bytes(value is None for value in values) if gaps else bytes(len(values))

    def build(self) -> NumberColumn | TextColumn:
        """Returns the column. The builder must not be used afterwards."""
        mask = _array(self._mask, np.dtype(np.bool_)) if 1 in self._mask else None
        if self._store is None:
            return NumberColumn(np.zeros(len(self._mask), np.bool_), bool, mask)
        return self._store.build(mask)

    def _begin(self, values: Sequence[Any]) -> None:
        place, first = next((place, value) for place, value in enumerate(values) if value is not None)
        kind = type(first)
        if kind in (str, bytes):
            self._store = _GrowingTexts(kind)
        elif kind in _PYTHON_NUMBERS or (
            (kind is np.ndarray or isinstance(first, np.generic)) and first.dtype.kind in "biufcmM"
        ):
            self._store = _GrowingNumbers(first)
        else:
            raise TypeError(
                f"columns(): row {len(self._mask) + place}, {self._name}: {_described(first)} cannot be kept in an "
                "array. Supported are bool, int, float, str, bytes, None, NumPy numbers, and NumPy arrays of one "
                "shape. Convert a list as a row by tuple(row), a path by str(path), a tensor by tensor.numpy()."
            )
        self._store.append([self._store.fill] * len(self._mask))

    def _refuse(self, values: Sequence[Any], store: _GrowingNumbers | _GrowingTexts) -> NoReturn:
        place = next(i for i, value in enumerate(values) if value is not None and not store.fits(value))
        if type(values[place]) is int and not -(2**63) <= values[place] < 2**63:
            raise ValueError(
                f"columns(): row {len(self._mask) + place}, {self._name}: {values[place]} is not a 64-bit integer. "
                "Convert it to a string or a float."
            )
        raise ValueError(
            f"columns(): row {len(self._mask) + place}, {self._name}: found {_described(values[place])}, expected "
            f"{store.expected} as in earlier rows. All values of a column have one type, and arrays one shape. Convert "
            "them first, or keep these rows in a list."
        )


class _GrowingNumbers:
    def __init__(self, first: Any) -> None:
        self.kind: type = type(first)
        self._dtype: np.dtype[Any] = _PYTHON_NUMBERS.get(self.kind) or first.dtype
        self._shape: tuple[int, ...] = getattr(first, "shape", ())
        zero = np.zeros(self._shape, self._dtype)
        self.fill: Any = zero if self.kind is np.ndarray else zero[()]
        self.expected = _described(first) if self.kind is np.ndarray else self._dtype.name
        self._data = bytearray()
        self._rows = 0

    def fits(self, value: Any) -> bool:
        kind: type = type(value)
        if kind is not self.kind:
            return False
        if kind in _PYTHON_NUMBERS:
            return kind is not int or bool(-(2**63) <= value < 2**63)
        return bool(value.dtype == self._dtype and value.shape == self._shape)

    def append(self, values: Sequence[Any]) -> bool:
        """Appends the values if all fit; returns whether they did."""
        if self.kind not in _PYTHON_NUMBERS and not all(map(self.fits, values)):
            return False
        try:
            self._data += np.array(values, self._dtype).tobytes()
        except OverflowError:
            return False
        self._rows += len(values)
        return True

    def build(self, mask: Array | None) -> NumberColumn:
        return NumberColumn(_array(self._data, self._dtype, (self._rows, *self._shape)), self.kind, mask)


class _GrowingTexts:
    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.fill: Any = kind()
        self.expected = kind.__name__
        self._data = bytearray()
        self._offsets = bytearray(_INT64.itemsize)

    def fits(self, value: Any) -> bool:
        return type(value) is self.kind

    def append(self, values: Sequence[Any]) -> bool:
        joined = self.fill.join(values)
        if self.kind is str:
            if not joined.isascii():  # lengths in characters and in bytes differ
                values = [value.encode("utf-8", "surrogatepass") for value in values]
            joined = joined.encode("utf-8", "surrogatepass")
        sizes = np.fromiter(map(len, values), _INT64, len(values))
        self._offsets += (len(self._data) + np.cumsum(sizes)).tobytes()
        self._data += joined
        return True

    def build(self, mask: Array | None) -> TextColumn:
        return TextColumn(_array(self._data, np.dtype(np.uint8)), _array(self._offsets, _INT64), self.kind, mask)


def _array(buffer: bytearray, dtype: np.dtype[Any], shape: tuple[int, ...] | None = None) -> Array:
    return np.ndarray(shape or len(buffer) // dtype.itemsize, dtype, buffer)


def _with_gaps(values: list[Any], mask: Array | None, rows: Array) -> list[Any]:
    if mask is not None:
        for place in np.flatnonzero(mask[rows]).tolist():
            values[place] = None
    return values


def _read_with_gaps(read: Reader, mask: Array | None) -> Reader:
    if mask is None:
        return read
    is_gap = mask.item
    return lambda row: None if is_gap(row) else read(row)


def _described(value: Any) -> str:
    if type(value) is np.ndarray:
        return f"an array of {value.dtype} and shape {value.shape}"
    return f"{type(value).__name__} {reprlib.repr(value)}"
