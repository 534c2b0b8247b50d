"""The rows of an HDF5 file as a dataset by index."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute
from stoker.errors import FileChangedError, HDF5Error, MissingExtraError, MissingKeyError
from stoker.sources.per_process import PerProcess
from stoker.sources.storage import LocalFile
from stoker.sources.urls import check_local

_CHUNK_CACHE = 64 << 20
"""Decompressed chunks that a process keeps for all keys, in bytes. The library's own default, 1 MiB for each key, is
less than many chunks: every row would then decompress a chunk."""
_LEAST_CHUNK_CACHE = 1 << 20
"""The library's default for a key, in bytes: the least that a key gets, however many there are."""


class HDF5Dataset(Dataset[dict[str, Any]]):
    """Rows of an HDF5 file, by index: with a length, a true shuffle, exact resume. Needs `stoker[hdf5]` (h5py).

    A sample is a dict: for each key, the row at the index of the HDF5 dataset of that name. It is a NumPy array in
    memory of its own; a NumPy scalar where the dataset has one dimension; `str` or `bytes` where it holds texts. A key
    in a group is a path: `"train/images"`.

    Each process opens the file at first use; none is open when the dataset is made, and none is inherited or pickled.
    Data that is stored in one piece, without compression, is read from a memory map, which all processes share. Chunks
    are decompressed whole, and each process keeps those used last, up to 64 MiB: a complete shuffle of more than that
    decompresses a chunk for almost every row. `RowGroupSampler(dataset.chunk_sizes)` shuffles chunk by chunk instead.

    The file must not be written to meanwhile. Thread safe, but threads take turns in the library, except where data is
    read from a memory map.

    Args:
        path: of the file.
        keys: the HDF5 datasets to read, in the order of the sample. None for all that the file holds.
        transform: a function of the dict, whose result is the sample.

    Raises:
        FileNotFoundError: there is no such file.
        MissingExtraError: h5py is not installed.
        HDF5Error: the file is no HDF5 file, is truncated, or is locked by a program that writes to it.
        MissingKeyError: the file has no dataset of this name.
        TypeError: `keys` is a single text, or `transform` cannot be called.
        ValueError: the path is a URL, there are no keys or no rows, or the datasets have different lengths.

    Attributes:
        path: of the file.
        keys: of a sample.

    At each access:
        IndexError: the index is out of range.
        FileChangedError: the file was changed since the dataset was made.
        HDF5Error: the row cannot be read: the chunk is damaged, or its filter is not installed.
    """

    stoker_protocol = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keys: Sequence[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        if isinstance(keys, str):
            raise TypeError(f"keys is a text, {keys!r}, expected a list of names: [{keys!r}]")
        if keys is not None and not keys:
            raise ValueError("keys is an empty list: name at least one dataset, or leave it out to read all")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a row")
        self.path = os.fspath(path)
        check_local(
            self.path, "HDF5 files", "Or pack it once into tar shards or Parquet (stoker pack), which are read by URL."
        )
        self._transform = transform
        self._version = LocalFile(self.path).version
        h5py = _h5py()
        with _open(h5py, self.path, _LEAST_CHUNK_CACHE) as file:
            held = _held(h5py, file)
            self.keys = list(held if keys is None else dict.fromkeys(keys))
            for key in self.keys:
                if key not in held and not isinstance(file.get(key), h5py.Dataset):
                    raise _missing(key, list(held), self.path)
            self._length, self._chunk_rows = _rows(self.path, {key: file[key] for key in self.keys})
        # A forked child keeps what it inherited: closing it would take the lock of the parent's file
        opens = _TableOpener(self.path, self.keys, self._version)
        self._process: PerProcess[_OpenTables] = PerProcess(opens, keeps_inherited=True)

    @property
    def chunk_sizes(self) -> list[int]:
        """The number of rows in each chunk of the key with the largest ones: the argument of `RowGroupSampler`.

        One entry with all rows, if no key is stored in chunks.
        """
        whole, rest = divmod(self._length, self._chunk_rows)
        return [self._chunk_rows] * whole + [rest] * bool(rest)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Returns the row at `index`; a negative index counts from the end."""
        sample = self._process.get().row(absolute(index, self._length))
        return sample if self._transform is None else self._transform(sample)

    def describe(self, index: int) -> str:
        """Returns the file, the keys and the row, counted from 0, of the sample at `index`."""
        row = absolute(index, self._length)
        return f"sample {row}: row {row} of {', '.join(self.keys)} in {self.path}"


class _TableOpener:
    """Opens the file, if it is the one that the dataset was made of."""

    def __init__(self, path: str, keys: list[str], version: Any) -> None:
        self._path = path
        self._keys = keys
        self._version = version

    def __call__(self) -> _OpenTables:
        if (version := LocalFile(self._path).version) != self._version:
            raise FileChangedError(
                f"{self._path} was changed since the dataset was made: it has {version.size:,} bytes, and had "
                f"{self._version.size:,}. Make the dataset anew, and give new data another name."
            )
        return _OpenTables(self._path, self._keys)


class _OpenTables:
    """The open file of a process, and for each key an object whose item is a row."""

    def __init__(self, path: str, keys: list[str]) -> None:
        self._path = path
        self._file = _open(_h5py(), path, max(_LEAST_CHUNK_CACHE, _CHUNK_CACHE // len(keys)))
        self._tables = [(key, _table(path, self._file, key)) for key in keys]

    def row(self, row: int) -> dict[str, Any]:
        """Returns a row of all keys."""
        sample = {}
        for key, table in self._tables:
            try:
                value = table[row]
            except (OSError, RuntimeError) as error:
                raise HDF5Error(
                    f"row {row} of {key!r} in {self._path} cannot be read: {error}. The file is damaged, or its filter "
                    "is not installed: plugins come with `import hdf5plugin` in a worker_init_fn."
                ) from error
            sample[key] = np.array(value)[()] if isinstance(value, np.memmap | np.void) else value
        return sample


def _open(h5py: Any, path: str, chunk_cache: int) -> Any:
    try:
        return h5py.File(path, "r", rdcc_nbytes=chunk_cache, rdcc_nslots=10_007)
    except OSError as error:
        size = os.path.getsize(path)
        if "unable to lock" in str(error):
            raise HDF5Error(
                f"{path} cannot be opened: {error}. A program has it open for writing, or the file system has no "
                "locks. Close it there, read a copy, or, if nothing writes to it, set HDF5_USE_FILE_LOCKING=FALSE in "
                "the environment."
            ) from error
        raise HDF5Error(
            f"{path} ({size:,} bytes) cannot be opened: {error}. Is it an HDF5 file, and was it written and copied "
            "completely?"
        ) from error


def _held(h5py: Any, file: Any) -> dict[str, None]:
    """Returns the names of all datasets with rows, those in groups as paths."""
    names: dict[str, None] = {}

    def visit(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset) and thing.shape:
            names[name] = None

    file.visititems(visit)
    return names


def _missing(key: str, held: list[str], path: str) -> MissingKeyError:
    close = difflib.get_close_matches(str(key), held)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"it has {', '.join(map(repr, held[:20]))}"
    return MissingKeyError(f"{path} has no dataset {key!r}: {hint}")


def _rows(path: str, tables: dict[str, Any]) -> tuple[int, int]:
    """Returns the number of rows, and the number of rows in the largest chunk of a key, or all.

    Raises:
        ValueError: there are none, or not the same number for all keys.
    """
    lengths = {key: table.shape[0] if table.shape else 0 for key, table in tables.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{key!r} {length:,}" for key, length in lengths.items())
        raise ValueError(f"the datasets of {path} have different numbers of rows ({said}): name those that go together")
    length = max(lengths.values(), default=0)
    if not length:
        raise ValueError(f"there is no row in {path}: its datasets are {list(tables)}")
    return length, max((table.chunks[0] for table in tables.values() if table.chunks), default=length)


def _table(path: str, file: Any, key: str) -> Any:
    """Returns a key's HDF5 dataset; a memory map of it if it lies in one piece; texts are decoded."""
    table = file[key]
    if _h5py().check_string_dtype(table.dtype) is not None:
        return table.asstr() if _h5py().check_string_dtype(table.dtype).encoding == "utf-8" else table
    begin = table.id.get_offset()
    is_mapped = begin is not None and not table.chunks and not table.is_virtual and not table.external
    if is_mapped and not table.dtype.hasobject and not file.userblock_size and table.size:
        return np.memmap(path, table.dtype, "r", begin, table.shape)
    return table


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError(
            f"HDF5Dataset needs h5py, which cannot be imported ({error}): install the extra stoker[hdf5]."
        ) from error
    return h5py
