"""`columns(rows)`: rows of plain values, kept in arrays instead of Python objects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar, overload

import numpy as np

from stoker.datasets.column import Array, Builder, NumberColumn, Reader
from stoker.datasets.gather import Indices, all_or_none, gather_rows, inside, row_layout

Row = TypeVar("Row")

_CHUNK = 8192  # rows split at once: enough to hide NumPy's overhead, few compared with the table
_CHUNK_BYTES = 1 << 22  # bytes of a chunk at most, estimated from the last row
_BLOCK = 1024  # rows joined at once by an iteration


class Column(Protocol):
    """The values of one column: `NumberColumn`, `TextColumn`, or a class of the same methods."""

    def reader(self) -> Reader:
        """Returns a function that returns the value of a row."""

    def take(self, rows: Array) -> list[Any]:
        """Returns the values of these rows."""

    def __len__(self) -> int:
        """Returns the number of rows."""

    def part(self, start: int, stop: int) -> Column:
        """Returns a column of these rows."""

    @property
    def nbytes(self) -> int:
        """The memory of the column, in bytes."""


def columns(rows: Iterable[Row]) -> Columns[Row]:
    """Returns rows kept in arrays: a fraction of the memory of a list, and shared by all workers on any Python.

    Reading a Python object writes its reference count, so a list of tuples is copied page by page into every worker;
    arrays are not. For 5 million tuples of a path and a label, arrays take under half of the list's memory. Building
    takes about 0.4 s per million rows and needs no list (`rows` may be a generator). Reading a row takes 2 us, half
    that by `__getitems__`.

    Args:
        rows: tuples of one length, named tuples of one class, dicts with the same keys, or single values. A value is a
            bool, an int of 64 bits, a float, a str, bytes, a NumPy number, a NumPy array (all of one shape), or None.
            All values of a column have one type.

    Returns:
        A sequence whose row i equals row i of `rows`, and is of the same kind.

    Raises:
        TypeError: values of this type cannot be kept in arrays.
        ValueError: a row has another length, other keys or another type than the first, or an int is too large. The
            message names row and column.
    """
    iterator = iter(rows)
    chunk = list(islice(iterator, 1))
    form = _form_of(chunk[0]) if chunk else _Single()
    builders = [Builder(name) for name in form.names]
    count = 0
    while chunk:
        split = form.split(chunk, count)
        for builder, values in zip(builders, split, strict=True):
            builder.extend(values)
        count += len(chunk)
        size = sum(getattr(values[-1], "nbytes", 0) or sys.getsizeof(values[-1]) for values in split)
        del chunk, split, values
        chunk = list(islice(iterator, min(_CHUNK, 1 + _CHUNK_BYTES // size)))
    return Columns(form, [builder.build() for builder in builders], range(count))


def of_columns(*stores: Column) -> Columns[Any]:
    """Returns columns of equal length as rows: tuples of their values, or the values of a single column."""
    form = _Single() if len(stores) == 1 else _Tuples((None,) * len(stores))
    return Columns(form, stores, range(len(stores[0])))


def stores_of(rows: Columns[Any]) -> Sequence[Column]:
    """Returns the columns of `rows`, which must not be a slice."""
    assert len(rows) == len(rows._stores[0] if rows._stores else ()) and rows._rows.step == 1
    return rows._stores


class Columns(Sequence[Row], Generic[Row]):
    """Rows kept in arrays; made by `columns(rows)`.

    Equal to a list, a tuple or another `Columns` of equal rows. A slice is a view that shares the arrays; its pickle
    holds only its own rows (with a step, all rows). Immutable, so threads and processes may share it; with pickle
    protocol 5 the arrays are transferred out of band.
    """

    stoker_protocol = True

    def __init__(self, form: _Form, stores: Sequence[Column], rows: range) -> None:
        self._form = form
        self._stores = stores
        self._rows = rows
        self._readers = [store.reader() for store in stores]

    def __reduce__(self) -> Any:
        rows = self._rows
        if rows.step != 1 or not self._stores or len(rows) == len(self._stores[0]):
            return Columns, (self._form, self._stores, rows)
        parts = [store.part(rows.start, rows.stop) for store in self._stores]
        return Columns, (self._form, parts, range(len(rows)))

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Columns[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Columns[Row]:
        """Returns one row, or the rows of a slice as a view."""
        if isinstance(index, slice):
            return Columns(self._form, self._stores, self._rows[index])
        try:
            row = self._rows[index]
        except IndexError:
            raise IndexError(f"row {index} is out of range for {len(self)} rows") from None
        joined: Row = self._form.join_one([read(row) for read in self._readers])
        return joined

    def __getitems__(self, indices: Sequence[int] | Array) -> list[Row]:
        """Returns the rows at `indices`, in that order, at a fraction of the cost of reading them one by one."""
        places = np.asarray(indices)
        if places.size == 0:
            return []
        if places.dtype.kind not in "iu":
            raise TypeError(f"indices must be integers, not {places.dtype}")
        outside = np.flatnonzero((places < -len(self)) | (places >= len(self)))
        if outside.size:
            raise IndexError(f"row {places[outside[0]]} is out of range for {len(self)} rows")
        places = places.astype(np.int64)
        places = np.where(places < 0, places + len(self), places)
        return self._fetch(self._rows.start + places * self._rows.step)

    def gather_layout(self) -> Any:
        """Returns the layout of a row; None unless all columns hold numbers, or arrays of them, without a None."""
        arrays = self._arrays()
        layouts = all_or_none(list(map(row_layout, arrays))) if len(arrays) == len(self._stores) else None
        return None if layouts is None else self._form.join_one(layouts)

    def gather(self, indices: Indices, out: Any) -> None:
        """Writes the rows at `indices`."""
        rows = self._rows.start + inside(indices, len(self)) * self._rows.step
        for array, part in zip(self._arrays(), self._form.parts(out), strict=True):
            gather_rows(array, rows, part)

    def _arrays(self) -> list[Array]:
        """Returns the arrays of the columns that have a number in each row."""
        return [store.array for store in self._stores if isinstance(store, NumberColumn) and store.mask is None]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Returns the rows as `numpy.asarray` would make them of a list; numbers without a Python object for each."""
        if copy is False:
            raise ValueError("the rows of Columns cannot become an array without a copy")
        arrays = self._arrays()
        if isinstance(self._form, _Single) and arrays:
            rows = self._rows
            if rows.step == 1:
                return np.array(arrays[0][rows.start : rows.stop], dtype)
            return arrays[0][np.arange(rows.start, rows.stop, rows.step)].astype(dtype or arrays[0].dtype, copy=False)
        return np.array(list(self), dtype)

    def __iter__(self) -> Iterator[Row]:
        """Yields the rows in order; a block of rows is made in advance."""
        for start in range(0, len(self), _BLOCK):
            block = self._rows[start : start + _BLOCK]
            yield from self._fetch(np.arange(block.start, block.stop, block.step))

    def __eq__(self, other: object) -> bool:
        """Returns whether `other` is a sequence of equal rows."""
        if not isinstance(other, Columns | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(_equal, self, other))

    __hash__ = None  # type: ignore[assignment]  # unhashable like a list, to which it may be equal

    def __repr__(self) -> str:
        return f"<Columns: {len(self)} rows, {self._form.names}, {self.nbytes} bytes>"

    @property
    def nbytes(self) -> int:
        """The memory of the arrays, in bytes."""
        return sum(store.nbytes for store in self._stores)

    def _fetch(self, rows: Array) -> list[Row]:
        return self._form.join([store.take(rows) for store in self._stores])


class _Single:
    """Rows that are single values."""

    names: tuple[str, ...] = ("the only column",)

    def split(self, rows: Sequence[Any], first: int) -> list[Sequence[Any]]:
        return [rows]

    def join_one(self, values: list[Any]) -> Any:
        return values[0]

    def join(self, stores: list[list[Any]]) -> list[Any]:
        return stores[0]

    def parts(self, out: Any) -> list[Any]:
        return [out]


class _Tuples:
    """Rows that are tuples, or named tuples, of one class and length."""

    def __init__(self, example: tuple[Any, ...]) -> None:
        self._kind = type(example)
        self._width = len(example)
        self.names = tuple(f"column {place}" for place in range(self._width))
        if self._kind is not tuple:
            self.names = tuple(f"column {name!r}" for name in self._kind._fields)  # type: ignore[attr-defined]
        self.join_one: Callable[[Iterable[Any]], Any] = (
            tuple if self._kind is tuple else self._kind._make  # type: ignore[attr-defined]
        )

    def split(self, rows: Sequence[Any], first: int) -> list[Sequence[Any]]:
        for place, row in enumerate(rows):
            if type(row) is not self._kind:
                raise _unlike(first + place, type(row).__name__, self._kind.__name__)
            if len(row) != self._width:
                raise _unlike(first + place, f"{len(row)} columns", str(self._width))
        # Not `zip(*rows)`: an iterator for each row would make the garbage collector traverse the user's whole list.
        return [list(map(itemgetter(place), rows)) for place in range(self._width)]

    def join(self, stores: list[list[Any]]) -> list[Any]:
        rows = zip(*stores, strict=True)
        return list(rows if self._kind is tuple else map(self.join_one, rows))

    def parts(self, out: Any) -> list[Any]:
        return list(out)


class _Dicts:
    """Rows that are dicts with the same keys."""

    def __init__(self, example: dict[Any, Any]) -> None:
        self._keys = tuple(example)
        self.names = tuple(f"key {key!r}" for key in self._keys)

    def split(self, rows: Sequence[Any], first: int) -> list[Sequence[Any]]:
        keys = dict.fromkeys(self._keys).keys()
        for place, row in enumerate(rows):
            if type(row) is not dict:
                raise _unlike(first + place, type(row).__name__, "dict")
            if row.keys() != keys:
                raise _unlike(first + place, f"the keys {list(row)}", f"{list(keys)}")
        return [list(map(itemgetter(key), rows)) for key in keys]

    def join_one(self, values: list[Any]) -> Any:
        return dict(zip(self._keys, values))  # noqa: B905 - lengths are equal, and a check takes 10 % of the time

    def join(self, stores: list[list[Any]]) -> list[Any]:
        return [dict(zip(self._keys, values, strict=True)) for values in zip(*stores, strict=True)]

    def parts(self, out: Any) -> list[Any]:
        return [out[key] for key in self._keys]


_Form = _Single | _Tuples | _Dicts


def _form_of(row: Any) -> _Form:
    if isinstance(row, tuple | dict) and not row:
        raise ValueError(f"columns(): row 0 is an empty {type(row).__name__}: there is nothing to keep.")
    if type(row) is tuple or (isinstance(row, tuple) and hasattr(row, "_make")):
        return _Tuples(row)
    return _Dicts(row) if type(row) is dict else _Single()


def _unlike(row: int, actual: str, expected: str) -> ValueError:
    return ValueError(
        f"columns(): row {row} has {actual}, expected {expected} as in row 0. All rows are alike: make them so, or "
        "keep them in a list."
    )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)
