"""A column of file paths: names of files in a buffer, and the folders that they lie in, each once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.datasets.column import Array, Reader

END = b"\0"
"""Ends each name in a buffer. No path of a file contains it."""


@dataclass(frozen=True, eq=False)
class Paths:
    """A column of paths: that of row i is its folder, then its name. Immutable, so threads and processes may share it.

    Attributes:
        names: the names of all files as UTF-8, each with `END` behind it.
        starts: the start of each name in `names`, then the length of `names`.
        folders: the paths of the folders, each with a separator at its end: a buffer like `names`.
        folder_starts: as `starts`, for `folders`.
        first_rows: the first row of each folder, in ascending order, then the number of rows.
    """

    names: Array
    starts: Array
    folders: Array
    folder_starts: Array
    first_rows: Array

    @classmethod
    def of(cls, folders: Sequence[str], counts: Array, names: bytes | bytearray | memoryview) -> Paths:
        """Returns a column.

        Args:
            folders: paths, each with a separator at its end.
            counts: the number of files in each folder.
            names: the names of all files, folder by folder, each with `END` behind it.
        """
        text = "\0".join([*folders, ""]) if folders else ""
        folder_names = np.frombuffer(encoded(text), np.uint8)
        file_names = np.frombuffer(names, np.uint8)
        first_rows = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        return cls(file_names, _starts(file_names), folder_names, _starts(folder_names), first_rows)

    def reader(self) -> Reader:
        """Returns a function that returns the path of a row."""
        names, start = self.names.data, self.starts.item
        folders, folder_start = self.folders.data, self.folder_starts.item
        first_rows = self.first_rows.data

        def read(row: int) -> str:
            folder = bisect_right(first_rows, row) - 1
            prefix = str(folders[folder_start(folder) : folder_start(folder + 1) - 1], "utf-8", "surrogateescape")
            return prefix + str(names[start(row) : start(row + 1) - 1], "utf-8", "surrogateescape")

        return read

    def take(self, rows: Array) -> list[Any]:
        """Returns the paths of these rows."""
        folders = np.searchsorted(self.first_rows, rows, "right") - 1
        wanted, places = np.unique(folders, return_inverse=True)
        prefixes = _texts(self.folders, self.folder_starts, wanted)
        names = _texts(self.names, self.starts, rows)
        return [prefixes[place] + name for place, name in zip(places.tolist(), names, strict=True)]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def part(self, start: int, stop: int) -> Paths:
        """Returns a column of these rows. The names are a view; the folders are shared as a whole."""
        starts = self.starts[start : stop + 1]
        first_rows = np.clip(self.first_rows, start, stop) - start
        return Paths(
            self.names[starts[0] : starts[-1]], starts - starts[0], self.folders, self.folder_starts, first_rows
        )

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in vars(self).values())


def encoded(text: str) -> bytes:
    """Returns a path as bytes. Bytes of a file's name that are no UTF-8 stay as they are."""
    return text.encode("utf-8", "surrogateescape")


def decoded(data: bytes | memoryview) -> str:
    """Returns the path that `encoded` has encoded."""
    return str(data, "utf-8", "surrogateescape")


def _starts(buffer: Array) -> Array:
    ends = np.flatnonzero(buffer == END[0])
    starts = np.empty(len(ends) + 1, np.uint32 if len(buffer) < 1 << 32 else np.int64)
    starts[0] = 0
    np.add(ends, 1, out=starts[1:], casting="unsafe")
    return starts


def _texts(buffer: Array, starts: Array, rows: Array) -> list[str]:
    data = buffer.data
    spans = zip(starts[rows].tolist(), starts[rows + 1].tolist(), strict=True)
    return [decoded(data[start : end - 1]) for start, end in spans]
