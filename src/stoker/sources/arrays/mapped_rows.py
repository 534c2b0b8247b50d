"""Rows of arrays that lie in memory or in a memory map."""

from __future__ import annotations

import mmap
import os
from typing import Any, Literal

import numpy as np

from stoker.datasets.gather import Array, Indices, copy_rows
from stoker.errors import FileChangedError
from stoker.sources.arrays.stored import FileContents, StoredArray
from stoker.sources.storage import Version


class MappedFile:
    """A file in memory, mapped as a whole. All processes that map it share its pages. Thread safe.

    Args:
        contents: the contents of the file when the dataset was made.

    Raises:
        OSError: it cannot be opened.
        FileChangedError: it was changed since.
    """

    def __init__(self, contents: FileContents) -> None:
        self._contents = contents
        descriptor = os.open(contents.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if Version(status.st_size, status.st_mtime_ns) != contents.version:
                raise changed(contents, status.st_size)
            self._map = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)

    def array(self, stored: StoredArray) -> Array:
        """Returns an array of the file, over its memory."""
        if not np.prod(stored.shape):
            return np.empty(stored.shape, stored.dtype)
        order: Literal["C", "F"] = "F" if stored.is_fortran else "C"
        return np.ndarray(stored.shape, stored.dtype, self._map, stored.begin, order=order)

    def check(self) -> None:
        """Raises FileChangedError if the file is shorter than its map: reading missing pages would kill the process."""
        if (size := self._map.size()) < self._contents.version.size:
            raise changed(self._contents, size)


def changed(contents: FileContents, size: int) -> FileChangedError:
    """Returns the error of a file that is not the one that the dataset was made of."""
    return FileChangedError(
        f"{contents.path} was changed since the dataset was made: it has {size:,} bytes, and had "
        f"{contents.version.size:,}. Make the dataset anew, and give new data another name."
    )


class MappedRows:
    """Rows of one array. Thread safe.

    Args:
        array: in memory, or over a map.
        stored: its description.
        file: the map, if it is over one.
    """

    def __init__(self, array: Array, stored: StoredArray, file: MappedFile | None) -> None:
        self._array = array
        self._file = file
        self._dtype = stored.row_dtype
        self._is_plain = array.flags.c_contiguous and array.dtype == self._dtype and array.nbytes > 0
        # Rows as bytes: NumPy would copy all of an array whose numbers are not aligned, as in archives
        self._bytes = array.reshape(len(array), -1).view(np.uint8) if self._is_plain else None

    def row(self, row: int) -> Any:
        """Returns a row in memory of its own, in the byte order of this machine."""
        if self._file is not None:
            self._file.check()
        return np.array(self._array[row], self._dtype)[()]

    def take(self, rows: Indices, out: Array) -> None:
        """Writes rows, counted from 0, into `out`, an array of the same dtype and row shape."""
        if self._file is not None:
            self._file.check()
        if self._bytes is not None and out.flags.c_contiguous and out.dtype == self._dtype and len(rows):
            copy_rows(self._bytes, rows, out.reshape(len(out), -1).view(np.uint8))
        else:
            out[...] = self._array[rows]

    def put(self, rows: Indices, out: Array, places: Indices) -> None:
        """Writes rows into these places of `out`, one by one."""
        if self._file is not None:
            self._file.check()
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            out[place] = self._array[row]
