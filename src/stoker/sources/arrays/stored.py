"""The places of the arrays of a file, known without reading its numbers."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import numpy as np

from stoker.errors import ArrayFileError
from stoker.sources.file_object import FileObject
from stoker.sources.storage import File, Storage, Version, opened

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

    def holding(self, found: Found) -> FileContents:
        """Returns the file with what was found in it."""
        arrays = {key: array for key, array in found.items() if isinstance(array, StoredArray)}
        unreadable = {key: error for key, error in found.items() if isinstance(error, ArrayFileError)}
        return self._replace(arrays=arrays, unreadable=unreadable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"  # a URL may hold a secret

    def opened(self) -> File:
        """Returns the file, which is in a store, in the version that it had when the dataset was made."""
        assert self.storage is not None
        return opened(self.storage, self.place, self.version)

    def binary(self) -> IO[bytes]:
        """Returns the file as Python's file object.

        Raises:
            OSError: it cannot be opened.
        """
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
