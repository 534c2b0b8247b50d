"""The places of the arrays of a file, known without reading its numbers, and their rows in stores, in memory or in a
memory map.
"""

from __future__ import annotations

import io
import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from stoker.datasets.gather import Array
from stoker.errors import ArrayFileError, FileChangedError
from stoker.extend import Indices, copy_rows
from stoker.sources.storage import File, FileObject, Storage, Version, opened

PLAIN = ""
"""The key of an array that is alone in its file."""


class StoredArray(NamedTuple):
    """An array in a file.

    Attributes:
        dtype: of the numbers as they are stored, in their byte order; for a dtype that NumPy lacks, unsigned integers
            of the same size.
        shape: of the array; the first dimension counts rows.
        begin: the place of the first byte in the file.
        is_fortran: whether the first dimension varies fastest.
        torch_dtype: the name of a dtype that torch has and NumPy lacks, or "".
        member: the name of a compressed member of an archive, which is no memory map; else "".
        chunk_rows: the rows that are stored together, of an array in chunks; else 0.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int = 0
    is_fortran: bool = False
    torch_dtype: str = ""
    member: str = ""
    chunk_rows: int = 0

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The dtype of a sample's numbers: in the byte order of this machine."""
        return self.dtype.newbyteorder("=")

    @property
    def end(self) -> int:
        """The place behind the last byte of the array in its file."""
        return self.begin + math.prod(self.shape) * self.dtype.itemsize

    def said(self) -> str:
        """Returns the dtype and the shape of a row, for messages."""
        return f"{self.torch_dtype or self.row_dtype} of shape {self.shape[1:]}"


Found = dict[str, StoredArray | ArrayFileError]
"""The arrays of a file by key; in the place of one whose rows cannot be read, the error."""


class FileContents(NamedTuple):
    """The arrays of a file.

    Attributes:
        path: of the file; of a Zarr array or group its folder. Of a file in a store its URL, without secrets.
        versioned: the path of the file whose version is compared: the file itself, or the metadata of a Zarr folder.
        version: of that file when the dataset was made.
        arrays: by key, in the order of the file; `PLAIN` is the key of an array that is alone.
        is_zarr: whether the path is a Zarr folder.
        place: the URL of a file in a store; of a Zarr array or group there that of its folder.
        storage: from which it is read; None for a file of this machine, which is mapped.
        unreadable: the errors of arrays whose rows cannot be read, by key.
    """

    path: str
    versioned: str
    version: Version
    arrays: dict[str, StoredArray]
    is_zarr: bool = False
    place: str = ""
    storage: Storage | None = None
    unreadable: Mapping[str, ArrayFileError] = MappingProxyType({})

    def holding(self, stored: Found) -> FileContents:
        """Returns the file with the arrays that were found in it."""
        arrays = {key: array for key, array in stored.items() if isinstance(array, StoredArray)}
        unreadable = {key: error for key, error in stored.items() if isinstance(error, ArrayFileError)}
        return self._replace(arrays=arrays, unreadable=unreadable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"  # a URL may hold a secret

    def opened(self) -> File:
        """Returns the file, which is in a store, in the version that it had when the dataset was made."""
        assert self.storage is not None
        return opened(self.storage, self.place, self.version)

    def binary(self) -> IO[bytes]:
        """Returns the file as Python's file object."""
        return open(self.path, "rb") if self.storage is None else file_object(self.opened())


def file_object(file: File) -> IO[bytes]:
    """Returns a file of a store as Python's file object."""
    return io.BufferedReader(FileObject(file))


def checked(path: str, size: int, name: str, stored: StoredArray) -> StoredArray:
    """Returns the array, if the file is large enough and it has rows.

    Args:
        path: of the file, for messages.
        size: of the file, in bytes.
        name: of the array in messages: "" or " 'key'".
        stored: the array as its header describes it.

    Raises:
        ArrayFileError: the file is truncated, or the array has no dimension or holds Python objects.
    """
    if stored.dtype.hasobject:
        raise ArrayFileError(
            f"the array{name} of {path} holds pickled Python objects, which are not read: unpickling runs code of the "
            "file. Store numbers, or load it yourself."
        )
    if not stored.shape:
        raise ArrayFileError(f"the array{name} of {path} has no dimension: a single number, and no rows")
    if not stored.member and stored.end > size:
        raise ArrayFileError(
            f"{path} is truncated: its array{name} of {stored.dtype} and shape {stored.shape} ends at byte "
            f"{stored.end:,}, and the file has {size:,}. Was it written and copied completely?"
        )
    return stored


# Rows of arrays in files of stores, read by ranges.


_GAP = 64 << 10
"""Bytes between two rows up to which they are read together: they cost less than a request."""
_AT_ONCE = 32 << 20
"""Bytes that are asked for together; a larger row alone."""


class StoredRows:
    """Rows of one array in a file of a store. Thread safe.

    Args:
        file: which is read; its reads fail if it was changed since it was opened.
    """

    def __init__(self, contents: FileContents, stored: StoredArray, file: File) -> None:
        self._contents = contents
        self._stored = stored
        self._file = file
        self._row_bytes = math.prod(stored.shape[1:]) * stored.dtype.itemsize

    def row(self, row: int) -> Any:
        """Returns a row in memory of its own, in the byte order of this machine."""
        (data,) = self._read([(row, row + 1)])
        return np.array(data[0], self._stored.row_dtype)[()]

    def take(self, rows: Indices, out: Array) -> None:
        """Writes rows, counted from 0, into `out`."""
        self.put(rows, out, np.arange(len(rows)))

    def put(self, rows: Indices, out: Array, places: Indices) -> None:
        """Writes rows into these places of `out`. Rows near each other are read together, the others at once."""
        order = np.argsort(rows, kind="stable")
        in_order, places = rows[order], places[order]
        for spans in self._spans(in_order.tolist()):
            for (first, end), data in zip(spans, self._read(spans), strict=True):
                begin, stop = np.searchsorted(in_order, (first, end)).tolist()
                out[places[begin:stop]] = data[in_order[begin:stop] - first]

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
        """
        stored, size = self._stored, self._row_bytes
        if not size:
            return [np.empty((end - first, *stored.shape[1:]), stored.dtype) for first, end in spans]
        ranges = [(stored.begin + first * size, stored.begin + end * size) for first, end in spans]
        at_once = getattr(self._file, "read_ranges", None)
        blocks = at_once(ranges) if at_once else [self._file.read(begin, end - begin) for begin, end in ranges]
        if self._file.version != self._contents.version or any(
            len(data) != end - begin for data, (begin, end) in zip(blocks, ranges, strict=True)
        ):
            raise changed(self._contents, self._file.version.size)
        return [
            np.frombuffer(data, stored.dtype).reshape(end - first, *stored.shape[1:])
            for data, (first, end) in zip(blocks, spans, strict=True)
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


class MappedFile:
    """A file in memory, mapped as a whole. All processes that map it share its pages. Thread safe.

    Raises:
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
