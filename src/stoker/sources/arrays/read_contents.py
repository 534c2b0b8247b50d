"""The arrays of a file, by its format."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO

from stoker.errors import ArrayFileError
from stoker.sources.arrays.npy_format import npy_arrays, npz_arrays
from stoker.sources.arrays.raw_rows import RawRows, raw_arrays
from stoker.sources.arrays.safetensors_header import safetensors_arrays
from stoker.sources.arrays.stored import FileContents, StoredArray, file_object
from stoker.sources.arrays.stored_rows import check_rows_are_together
from stoker.sources.arrays.zarr_metadata import metadata_file, zarr_arrays
from stoker.sources.storage import File, LocalFile, Storage
from stoker.sources.urls import shown

Reader = Callable[[IO[bytes], str, int], dict[str, StoredArray]]

_READERS: dict[str, Reader] = {".npy": npy_arrays, ".npz": npz_arrays, ".safetensors": safetensors_arrays}


def contents_of(path: str, raw: RawRows | None) -> FileContents:
    """Returns the contents of a file; its format follows from its name, and a folder is Zarr.

    Args:
        path: of the file or folder.
        raw: the rows of a file without a header; None if there is no such file.

    Raises:
        ArrayFileError: the file is empty, truncated, damaged, or of no known format.
        OSError: it cannot be read.
        ValueError: the file has a header, and `raw` was given.
    """
    is_zarr = os.path.isdir(path)
    reader = _reader(path, raw, is_zarr)
    if is_zarr:
        versioned = metadata_file(path)
        return FileContents(path, versioned, LocalFile(versioned).version, zarr_arrays(path), True)
    file = LocalFile(path)
    with open(path, "rb") as binary:
        return _contents(FileContents(path, path, file.version, {}), binary, reader, raw)


def contents_in_store(file: File, place: str, storage: Storage, raw: RawRows | None) -> FileContents:
    """Returns the contents of a file in a store.

    Args:
        file: the open file.
        place: its URL, or its path if a cache keeps it.
        storage: the store.
        raw: the rows of a file without a header; None if there is no such file.

    Raises:
        ArrayFileError: the file is empty, truncated, damaged, or of no known format; or its rows lie apart.
        OSError: it cannot be read.
        ValueError: the file has a header, and `raw` was given.
    """
    name = shown(place)
    reader = _reader(name, raw)
    contents = FileContents(name, name, file.version, {}, place=place, storage=storage)
    contents = _contents(contents, file_object(file), reader, raw)
    check_rows_are_together(contents)
    return contents


def _reader(path: str, raw: RawRows | None, is_zarr: bool = False) -> Reader | None:
    reader = _READERS.get(os.path.splitext(path)[1].lower())
    if raw is not None and (is_zarr or reader is not None):
        raise ValueError(
            f"{path} says itself what it holds: dtype=, shape= and offset= are for raw files. Leave them out"
        )
    return reader


def _contents(file: FileContents, binary: IO[bytes], reader: Reader | None, raw: RawRows | None) -> FileContents:
    path, size = file.path, file.version.size
    if not size:
        raise ArrayFileError(f"{path} is empty: it has 0 bytes. Was it written completely?")
    if reader is not None:
        return file._replace(arrays=reader(binary, path, size))
    if raw is None:
        raise ArrayFileError(
            f"the format of {path} is unknown: the name ends in none of {', '.join(_READERS)}, and it is no folder of "
            "Zarr. For a raw file of numbers pass dtype=, and shape= of a row."
        )
    return file._replace(arrays=raw_arrays(path, size, raw))
