"""The array files that a process has open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stoker.datasets.gather import Array
from stoker.sources.arrays.mapped_rows import MappedFile, MappedRows
from stoker.sources.arrays.npy_format import decompressed
from stoker.sources.arrays.stored import FileContents, StoredArray
from stoker.sources.arrays.stored_rows import StoredRows
from stoker.sources.arrays.zarr_metadata import changed
from stoker.sources.arrays.zarr_rows import ChunkCache, ZarrFolder, ZarrRows
from stoker.sources.storage import LocalFile

MOST_MAPPED = 256
"""Files that a process maps for one dataset. A map holds a descriptor, and processes may have 1,024."""

Rows = MappedRows | StoredRows | ZarrRows


class ArrayOpener:
    """Opens the array files of a dataset for one process.

    Arrays that were compressed as a whole are decompressed at the first use and kept here: a forked child finds them
    in the memory of its parent; a pickled copy decompresses its own.

    Args:
        files: their contents.
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
        files: their contents.
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
            OSError: it cannot be opened.
            FileChangedError: it was changed since the dataset was made.
            ArrayFileError: it is damaged.
        """
        found = self._open.get(number)
        if found is None:
            found = self._opened(number)
            for oldest in list(self._open)[: max(0, len(self._open) - MOST_MAPPED + 1)]:
                self._open.pop(oldest, None)  # unmapped when the last reader drops it
            self._open[number] = found
        return found

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
        OSError: it cannot be opened.
    """
    if file.storage is not None:
        from stoker.sources.arrays.zarr_in_store import StoredZarr

        return StoredZarr(file, key)
    if LocalFile(file.versioned).version != file.version:
        raise changed(file.versioned)
    return ZarrFolder(os.path.join(file.path, key) if key else file.path)
