"""The array files that a process has open, and the reader of each format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from stoker.datasets.gather import Array
from stoker.errors import ArrayFileError
from stoker.sources.arrays.npy_format import (
    RawRows,
    decompressed,
    npy_arrays,
    npz_arrays,
    raw_arrays,
    safetensors_arrays,
)
from stoker.sources.arrays.stored import (
    FileContents,
    Found,
    MappedFile,
    MappedRows,
    StoredArray,
    StoredRows,
    file_object,
)
from stoker.sources.arrays.zarr_metadata import changed, metadata_file, zarr_arrays, zarr_in_store
from stoker.sources.arrays.zarr_rows import ChunkCache, ZarrFolder, ZarrRows
from stoker.sources.storage import File, LocalFile, Storage, opened_all
from stoker.sources.urls import is_remote, scheme_of, shown

MOST_MAPPED = 256
"""Files that a process maps for one dataset. A map holds a descriptor, and processes may have 1,024."""

Rows = MappedRows | StoredRows | ZarrRows


class ArrayOpener:
    """Opens the array files of a dataset for one process.

    Arrays that were compressed as a whole are decompressed at the first use and kept here: a forked child finds them
    in the memory of its parent; a pickled copy decompresses its own.
    """

    def __init__(self, files: Sequence[FileContents]) -> None:
        self._files = files
        self._in_memory: dict[tuple[int, str], Array] = {}

    def __call__(self) -> OpenArrays:
        return OpenArrays(self._files, self._in_memory)

    def decompress(self) -> None:
        """Decompresses all arrays that cannot be mapped.

        Raises:
            ArrayFileError: one is damaged.
        """
        for number, file in enumerate(self._files):
            for key, stored in file.arrays.items():
                if stored.member:
                    self._in_memory[number, key] = _in_memory(file, stored)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_in_memory": {}}


class OpenArrays:
    """The array files of a process, opened at first use. Thread safe.

    Args:
        in_memory: arrays that are decompressed already, by number of the file and key; others are added.
    """

    def __init__(self, files: Sequence[FileContents], in_memory: dict[tuple[int, str], Array]) -> None:
        self._files = files
        self._in_memory = in_memory
        self._cache = ChunkCache()
        self._open: dict[int, list[Rows]] = {}

    def get(self, number: int) -> list[Rows]:
        """Returns the rows of a file, for each key.

        Raises:
            FileChangedError: it was changed since the dataset was made.
            ArrayFileError: it is damaged.
        """
        arrays = self._open.get(number)
        if arrays is None:
            arrays = self._opened(number)
            for oldest in list(self._open)[: max(0, len(self._open) - MOST_MAPPED + 1)]:
                self._open.pop(oldest, None)  # unmapped when the last reader drops it
            self._open[number] = arrays
        return arrays

    def _opened(self, number: int) -> list[Rows]:
        file = self._files[number]
        if file.is_zarr:
            return [
                ZarrRows(_zarr(file, key), stored, self._cache, (number, key)) for key, stored in file.arrays.items()
            ]
        in_store = None if file.storage is None else file.opened()
        mapped = MappedFile(file) if in_store is None else None
        rows: list[Rows] = []
        for key, stored in file.arrays.items():
            if stored.member:
                if (number, key) not in self._in_memory:
                    self._in_memory[number, key] = _in_memory(file, stored)
                rows.append(MappedRows(self._in_memory[number, key], stored, None))
            elif mapped is not None:
                rows.append(MappedRows(mapped.array(stored), stored, mapped))
            elif in_store is not None:
                rows.append(StoredRows(file, stored, in_store))
        return rows


def _in_memory(file: FileContents, stored: StoredArray) -> Array:
    """Returns a compressed array."""
    with file.binary() as opened:
        return decompressed(opened, file.path, stored)


def _zarr(file: FileContents, key: str) -> Any:
    """Returns the folder of an array of a Zarr group, or of the array itself.

    Raises:
        FileChangedError: it was changed since the dataset was made.
    """
    if file.storage is not None:
        from stoker.sources.arrays.zarr_in_store import StoredZarr

        return StoredZarr(file, key)
    if LocalFile(file.versioned).version != file.version:
        raise changed(file.versioned)
    return ZarrFolder(os.path.join(file.path, key) if key else file.path)


# The arrays of a file, by its format.


Reader = Callable[[IO[bytes], str, int], Found]

_READERS: dict[str, Reader] = {".npy": npy_arrays, ".npz": npz_arrays, ".safetensors": safetensors_arrays}


def contents_of_all(places: list[str], storage: Storage, raw: RawRows | None) -> Iterator[FileContents]:
    """Yields the contents of files; the format follows from the name, and a folder is Zarr.

    Args:
        places: paths of files and folders, and URLs.
        raw: the rows of files without a header; None if there is no such file.

    Raises:
        ArrayFileError: a file is empty, truncated, damaged, or of no known format.
        ValueError: a file has a header, and `raw` was given.
    """
    through_store = [place for place in places if _is_object(place)]
    opened = opened_all(storage, through_store)
    for place in places:
        if is_zarr_url(place):
            _reader(shown(place), raw, is_zarr=True)
            yield zarr_in_store(place, storage)
        elif _is_object(place):
            yield _in_store(next(opened), place, storage, raw)
        else:
            yield contents_of(place, raw)


def is_zarr_url(place: str) -> bool:
    """Returns whether a place is the URL of a Zarr folder: one ending in `.zarr`, or an array within."""
    if not is_remote(place) or os.path.exists(place):
        return False
    name = _without_query(place).rstrip("/")
    return ".zarr/" in f"{name}/" and os.path.splitext(name)[1].lower() not in _READERS


def _is_object(place: str) -> bool:
    return is_remote(place) and not os.path.exists(place) and not is_zarr_url(place)


def contents_of(path: str, raw: RawRows | None) -> FileContents:
    """Returns the contents of a file or folder of this machine."""
    is_zarr = os.path.isdir(path)
    reader = _reader(path, raw, is_zarr)
    if is_zarr:
        versioned = metadata_file(path)
        return FileContents(path, versioned, LocalFile(versioned).version, {}, True).holding(zarr_arrays(path))
    file = LocalFile(path)
    with open(path, "rb") as binary:
        return _contents(FileContents(path, path, file.version, {}), binary, reader, raw)


def _in_store(file: File, place: str, storage: Storage, raw: RawRows | None) -> FileContents:
    name = shown(place)
    reader = _reader(_without_query(place), raw)
    contents = FileContents(name, name, file.version, {}, place=place, storage=storage)
    return _contents(contents, file_object(file), reader, raw)


def _without_query(place: str) -> str:
    """Returns a URL whose end is that of the file's name: keys of stores may hold any character."""
    return shown(place) if scheme_of(place) in ("http", "https") else place


def _reader(path: str, raw: RawRows | None, is_zarr: bool = False) -> Reader | None:
    reader = _READERS.get(os.path.splitext(path)[1].lower())
    if raw is not None and (is_zarr or reader is not None):
        raise ValueError(
            f"{shown(path)} says itself what it holds: dtype=, shape= and offset= are for raw files. Leave them out"
        )
    return reader


def _contents(file: FileContents, binary: IO[bytes], reader: Reader | None, raw: RawRows | None) -> FileContents:
    path, size = file.path, file.version.size
    if not size:
        raise ArrayFileError(f"{path} is empty: it has 0 bytes. Was it written completely?")
    if reader is not None:
        return file.holding(reader(binary, path, size))
    if raw is None:
        raise ArrayFileError(
            f"the format of {path} is unknown: the name ends in none of {', '.join(_READERS)}, and it is no folder of "
            "Zarr. For a raw file of numbers pass dtype=, and shape= of a row."
        )
    return file._replace(arrays=raw_arrays(path, size, raw))
