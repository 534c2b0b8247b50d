"""Rows of arrays in files of stores, read by ranges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stoker.datasets.gather import Array, Indices
from stoker.errors import ArrayFileError
from stoker.sources.arrays.mapped_rows import changed
from stoker.sources.arrays.stored import FileContents, StoredArray
from stoker.sources.storage import File

_GAP = 64 << 10
"""Bytes between two rows up to which they are read together: less than what a request costs."""
_AT_ONCE = 32 << 20
"""Bytes that are asked for together; a larger row alone."""


class StoredRows:
    """Rows of one array in a file of a store. Thread safe.

    Args:
        contents: the contents of the file when the dataset was made.
        stored: the array's description.
        file: which is read; its reads fail if it was changed since it was opened.
    """

    def __init__(self, contents: FileContents, stored: StoredArray, file: File) -> None:
        self._contents = contents
        self._stored = stored
        self._file = file
        self._row_bytes = math.prod(stored.shape[1:]) * stored.dtype.itemsize

    def row(self, row: int) -> Any:
        """Returns a row in memory of its own, in the byte order of this machine."""
        (found,) = self._read([(row, row + 1)])
        return np.array(found[0], self._stored.row_dtype)[()]

    def take(self, rows: Indices, out: Array) -> None:
        """Writes rows, counted from 0, into `out`."""
        self.put(rows, out, np.arange(len(rows)))

    def put(self, rows: Indices, out: Array, places: Indices) -> None:
        """Writes rows into these places of `out`. Rows near each other are read together, the others at once."""
        order = np.argsort(rows, kind="stable")
        in_order, places = rows[order], places[order]
        for spans in self._spans(in_order.tolist()):
            for (first, end), found in zip(spans, self._read(spans), strict=True):
                begin, stop = np.searchsorted(in_order, (first, end)).tolist()
                out[places[begin:stop]] = found[in_order[begin:stop] - first]

    def _spans(self, rows: list[int]) -> Iterator[list[tuple[int, int]]]:
        """Yields ascending rows as first and end of what is read together, some at a time."""
        spans: list[tuple[int, int]] = []
        size = 0
        for row in rows:
            if spans and size + self._row_bytes > _AT_ONCE:
                yield spans
                spans, size = [], 0
            first, end = spans[-1] if spans else (row, -1)
            if spans and (row - end) * self._row_bytes <= _GAP:
                size += max(0, row + 1 - end) * self._row_bytes
                spans[-1] = (first, max(end, row + 1))
            else:
                size += self._row_bytes
                spans.append((row, row + 1))
        if spans:
            yield spans

    def _read(self, spans: Sequence[tuple[int, int]]) -> list[Array]:
        """Returns the rows from each first to each end, as they are stored.

        Raises:
            FileChangedError: the file was changed since the dataset was made.
            OSError: it cannot be read.
        """
        stored, size = self._stored, self._row_bytes
        if not size:
            return [np.empty((end - first, *stored.shape[1:]), stored.dtype) for first, end in spans]
        ranges = [(stored.begin + first * size, stored.begin + end * size) for first, end in spans]
        at_once = getattr(self._file, "read_ranges", None)
        found = at_once(ranges) if at_once else [self._file.read(begin, end - begin) for begin, end in ranges]
        if self._file.version != self._contents.version or any(
            len(data) != end - begin for data, (begin, end) in zip(found, ranges, strict=True)
        ):
            raise changed(self._contents, self._file.version.size)
        return [
            np.frombuffer(data, stored.dtype).reshape(end - first, *stored.shape[1:])
            for data, (first, end) in zip(found, spans, strict=True)
        ]


def check_rows_are_together(contents: FileContents) -> None:
    """Raises ArrayFileError if the rows of an array lie apart in the file, column by column."""
    for key, stored in contents.arrays.items():
        if stored.is_fortran and not stored.member:
            name = f" {key!r}" if key else ""
            raise ArrayFileError(
                f"the array{name} of {contents.path} is stored column by column (Fortran order), so that each row "
                "would be read number by number: write it with numpy.ascontiguousarray, or copy the file to a local "
                "disk."
            )
