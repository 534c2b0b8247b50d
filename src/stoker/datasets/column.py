"""One column of a table of rows: values of one type, kept in arrays.

`Builder` takes values in, chunk by chunk; what it builds, `Numbers` or `Texts`, gives them back. Buffers grow as
bytearrays, which are enlarged in place, so that building never holds a column twice.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Reader = Callable[[int], Any]
"""Gives the value of a row; made once, because rows are read one by one."""

_INT64 = np.dtype(np.int64)
_PYTHON_NUMBERS: dict[type, np.dtype[Any]] = {bool: np.dtype(np.bool_), int: _INT64, float: np.dtype(np.float64)}


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column of numbers, or of arrays of one shape: `array[i]` is the value of row i.

    Attributes:
        array: the values, rows first.
        kind: their type: Python's, a NumPy scalar's, or `np.ndarray`.
        mask: True where the value is None; no mask where none is.
    """

    array: Array
    kind: type
    mask: Array | None

    def reader(self) -> Reader:
        """Returns what gives the value of a row. An array is a copy: the caller may change it."""
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
            values = [picked[place, ...] for place in range(len(picked))]  # `...`: else no dimensions make a scalar
        else:
            values = list(picked)
        return _with_gaps(values, self.mask, rows)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.array)

    def part(self, start: int, stop: int) -> Numbers:
        """Returns a view of these rows."""
        return Numbers(self.array[start:stop], self.kind, None if self.mask is None else self.mask[start:stop])

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self.array.nbytes + (0 if self.mask is None else self.mask.nbytes)


@dataclass(frozen=True, eq=False)
class Texts:
    """A column of strings, or of bytes: row i is `buffer[offsets[i]:offsets[i + 1]]`.

    Attributes:
        buffer: all values joined, strings as UTF-8.
        offsets: where each begins, then where the last one ends, as int64.
        kind: `str` or `bytes`.
        mask: True where the value is None; no mask where none is.
    """

    buffer: Array
    offsets: Array
    kind: type
    mask: Array | None

    def reader(self) -> Reader:
        """Returns what gives the value of a row."""
        data, offset = self.buffer.data, self.offsets.item

        def read_text(row: int) -> str:
            return str(data[offset(row) : offset(row + 1)], "utf-8", "surrogatepass")

        def read_bytes(row: int) -> bytes:
            return bytes(data[offset(row) : offset(row + 1)])

        return _read_with_gaps(read_text if self.kind is str else read_bytes, self.mask)

    def take(self, rows: Array) -> list[Any]:
        """Returns the values of these rows."""
        data, decoded = self.buffer.data, self._decoded
        spans = zip(self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True)
        return _with_gaps([decoded(data[start:stop]) for start, stop in spans], self.mask, rows)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.offsets) - 1

    def part(self, start: int, stop: int) -> Texts:
        """Returns a view of these rows."""
        first, last = self.offsets[start], self.offsets[stop]
        mask = None if self.mask is None else self.mask[start:stop]
        return Texts(self.buffer[first:last], self.offsets[start : stop + 1] - first, self.kind, mask)

    def _decoded(self, span: memoryview) -> str | bytes:
        # Paths that are not UTF-8 come from the system with lone surrogates in them.
        return str(span, "utf-8", "surrogatepass") if self.kind is str else bytes(span)

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self.buffer.nbytes + self.offsets.nbytes + (0 if self.mask is None else self.mask.nbytes)


class Builder:
    """Takes in the values of one column. The first that is not None decides on their type.

    Args:
        name: of the column, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._store: _GrowingNumbers | _GrowingTexts | None = None
        self._mask = bytearray()

    def extend(self, values: Sequence[Any]) -> None:
        """Appends `values`.

        Raises:
            TypeError: values of this type cannot be kept in arrays.
            ValueError: a value is not like those before it, or is too large.
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

    def build(self) -> Numbers | Texts:
        """Returns the column. The builder must not be used after it."""
        mask = _array(self._mask, np.dtype(np.bool_)) if 1 in self._mask else None
        if self._store is None:
            return Numbers(np.zeros(len(self._mask), np.bool_), bool, mask)
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
                "array. Kept are bool, int, float, str, bytes, None, NumPy numbers, and NumPy arrays of one shape. "
                "Give a list as a row by tuple(row), a path by str(path), a tensor by tensor.numpy()."
            )
        self._store.append([self._store.fill] * len(self._mask))

    def _refuse(self, values: Sequence[Any], store: _GrowingNumbers | _GrowingTexts) -> NoReturn:
        place = next(i for i, value in enumerate(values) if value is not None and not store.fits(value))
        if type(values[place]) is int and not -(2**63) <= values[place] < 2**63:
            raise ValueError(
                f"columns(): row {len(self._mask) + place}, {self._name}: {values[place]} is no 64 bit integer. Give "
                "it as a string or as a float."
            )
        raise ValueError(
            f"columns(): row {len(self._mask) + place}, {self._name}: found {_described(values[place])}, expected "
            f"{store.expected} as the rows began. All values of a column have one type, and arrays one shape. Convert "
            "them before, or keep these rows in a list."
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
        """Whether they fit; they are appended then."""
        if self.kind not in _PYTHON_NUMBERS and not all(map(self.fits, values)):
            return False
        try:
            self._data += np.array(values, self._dtype).tobytes()
        except OverflowError:
            return False
        self._rows += len(values)
        return True

    def build(self, mask: Array | None) -> Numbers:
        return Numbers(_array(self._data, self._dtype, (self._rows, *self._shape)), self.kind, mask)


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
            if not joined.isascii():  # a length in characters is no length in bytes
                values = [value.encode("utf-8", "surrogatepass") for value in values]
            joined = joined.encode("utf-8", "surrogatepass")
        sizes = np.fromiter(map(len, values), _INT64, len(values))
        self._offsets += (len(self._data) + np.cumsum(sizes)).tobytes()
        self._data += joined
        return True

    def build(self, mask: Array | None) -> Texts:
        return Texts(_array(self._data, np.dtype(np.uint8)), _array(self._offsets, _INT64), self.kind, mask)


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
