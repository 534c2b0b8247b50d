"""The rows of an HDF5 file as a dataset by index, and the place of the file."""

from __future__ import annotations

import codecs
import difflib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stoker._core.worker_info import get_worker_info
from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute, positive
from stoker.datasets.gather import inside
from stoker.errors import FileChangedError, HDF5Error, HDF5ValueError, MissingKeyError, StokerError
from stoker.extend import Indices, row_layout
from stoker.sources.arrays.stored import FileContents, MappedFile
from stoker.sources.arrays.zarr_rows import ChunkCache
from stoker.sources.hdf5.open_file import h5py_module, opened
from stoker.sources.hdf5.rows import has_dtype, rows_of
from stoker.sources.per_process import PerProcess
from stoker.sources.storage import File, LocalFile, Version
from stoker.sources.storage import opened as opened_file
from stoker.sources.storage_of import source_files
from stoker.sources.urls import check_local, hub_fingerprint, is_remote, shown

_CHUNK_CACHE = 64 << 20
"""Chunks that the library keeps for all keys, in bytes: those too large for our own cache. Its default, 1 MiB for each
key, is less than one of them: every row would then decompress a chunk."""
_LEAST_CHUNK_CACHE = 1 << 20
"""The library's default for a key, in bytes: the least that a key gets, however many there are."""
_REQUESTS = 8
"""Threads that read chunks of a batch from a store, at least."""


class HDF5Dataset(Dataset[dict[str, Any]]):
    """Rows of an HDF5 file, by index: with a length, a true shuffle, exact resume. Needs `stoker[hdf5]` (h5py).

    A sample is a dict: for each key, the row at the index of the HDF5 dataset of that name. It is a NumPy array in
    memory of its own; a NumPy scalar where the dataset has one dimension; `str` or `bytes` where it holds texts. A key
    in a group is a path: `"train/images"`. A reference to another dataset is replaced by its contents, also within
    these. Numbers are in the byte order of this machine.

    Each process opens the file at first use; none is open when the dataset is made, and none is inherited or pickled.
    Data that is stored in one piece, without compression, is read from a memory map, which all processes share. Chunks
    are decompressed whole, and each process keeps those used last, up to 64 MiB: a complete shuffle of more than that
    decompresses a chunk for almost every row. `RowGroupSampler(dataset.chunk_sizes)` shuffles chunk by chunk instead.
    Chunks of gzip, with or without shuffled bytes, are decompressed outside the library's lock, by the package isal
    where it is installed (`stoker[hdf5]`).

    Batches of numbers are gathered, unless there is a `transform`: rows are read in file order, each chunk once, and
    copied into the batch.

    A file of a store is not copied: metadata is read in pieces of 64 KiB and more, gzip chunks one by one outside the
    library's lock, other data through the library. Its rows are not mapped.

    The file must not be written to meanwhile. Thread safe; threads take turns in the library, except for data from the
    memory map and for gzip.

    Args:
        path: of the file, or its URL in an object store or on a web server.
        keys: the HDF5 datasets to read, in the order of the sample. None for all
            that lie in its groups; of several hard links to one, one. Soft and external links are named here.
        transform: a function of the dict, whose result is the sample. Batches are then not gathered.
        errors: for texts that are not UTF-8, as of `bytes.decode`: "replace", "surrogateescape", "ignore". "strict"
            raises HDF5ValueError for such a row.
        threads: that decompress gzip chunks of a batch at once, in each worker process. They end with the batch.
            Without worker processes there are none. Of a URL, 8 at least: each waits for a request.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: there is no such file.
        MissingExtraError: h5py is not installed.
        HDF5Error: the file is no HDF5 file, is truncated, or is locked by a program that writes to it.
        MissingKeyError: the file has no dataset of this name.
        TypeError: `keys` is a single text, or `transform` cannot be called.
        PermissionError: a store refuses the credentials.
        ObjectStoreError: a store cannot be reached.
        ValueError: the path is a URL that cannot be read or leads to several files, there are no keys or rows, the
            datasets have different lengths, `errors` is unknown, or `threads` is not positive.

    Attributes:
        path: of the file; a URL without its signature.
        keys: of a sample.

    At each access:
        IndexError: the index is out of range.
        FileChangedError: the file was changed since the dataset was made.
        HDF5Error: the row cannot be read: the chunk is damaged, or its filter is not installed.
        HDF5ValueError: the row has no equivalent: a type that NumPy lacks, a text that is not UTF-8, a reference that
            leads to no dataset, or references within a compound type.
    """

    stoker_protocol = True
    _layout_of_files = True  # so loaders ask for it in a worker
    prefer_whole_batches = True  # the next row is in the same chunk

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keys: Sequence[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        errors: str = "strict",
        threads: int = 1,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        if isinstance(keys, str):
            raise TypeError(f"keys is a text, {keys!r}, expected a list of names: [{keys!r}]")
        if keys is not None and not all(isinstance(key, str) for key in keys):
            raise TypeError(f"keys is {list(keys)!r}, expected names")
        if keys is not None and not keys:
            raise ValueError("keys is an empty list: name at least one dataset, or leave it out to read all")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a row")
        try:
            codecs.lookup_error(errors)
        except LookupError as error:
            raise ValueError(f'errors is {errors!r}, expected "strict", "replace", "surrogateescape", ...') from error
        threads = positive(threads, "threads")
        h5py = h5py_module()
        place = HDF5Place(path, storage_options, cache, cache_size)
        self.path = place.name
        self._threads = threads
        self._made_in = os.getpid()
        self._transform = transform
        self._place = place
        self._version, contents = place.opened(None)
        with opened(self.path, _LEAST_CHUNK_CACHE, contents) as file:
            tables = _held(h5py, file)
            self.keys = list(tables if keys is None else dict.fromkeys(keys))
            for key in self.keys:
                if key not in tables and not isinstance(file.get(key), h5py.Dataset):
                    raise _missing(key, list(tables), self.path)
            self._length, self._chunk_rows = _rows(self.path, {key: file[key] for key in self.keys})
            self._layout = _layout({key: file[key] for key in self.keys})
        # A forked child keeps what it inherited: closing it would take the lock of the parent's file
        opens = _TableOpener(place, self.keys, self._version, errors)
        self._process: PerProcess[_OpenTables] = PerProcess(opens, keeps_inherited=True)

    @property
    def chunk_sizes(self) -> list[int]:
        """The number of rows in each chunk of the key with the largest ones: the argument of `RowGroupSampler`.

        One entry with all rows, if no key is stored in chunks.
        """
        whole, rest = divmod(self._length, self._chunk_rows)
        return [self._chunk_rows] * whole + [rest] * bool(rest)

    @property
    def fingerprint(self) -> str | None:
        """The commit of a file on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint([self.path])

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Returns the row at `index`; a negative index counts from the end."""
        sample = self._process.get().row(absolute(index, self._length))
        return sample if self._transform is None else self._transform(sample)

    def gather_layout(self) -> Any:
        """Returns the layout of a sample; None with a `transform`, or if a key holds no numbers."""
        return None if self._transform is not None else self._layout

    def gather(self, indices: Indices, out: Any) -> Any:
        """Writes the rows at `indices`, unless one cannot be read: the samples, fetched one by one, show which."""
        rows = inside(indices, self._length)
        try:
            self._process.get().take(rows, out, self._threads_here())
        except (HDF5Error, OSError):
            return NotImplemented
        return None

    def _threads_here(self) -> int:
        """Returns the threads of a batch: several only in the process of a worker, which nobody forks."""
        threads = max(self._threads, _REQUESTS) if self._place.is_remote else self._threads
        is_worker = threads > 1 and os.getpid() != self._made_in and get_worker_info() is not None
        return threads if is_worker else 1

    def describe(self, index: int) -> str:
        """Returns the file, the keys and the row, counted from 0, of the sample at `index`."""
        row = absolute(index, self._length)
        return f"sample {row}: row {row} of {', '.join(self.keys)} in {self.path}"


class _TableOpener:
    """Opens the file, if it is the one that the dataset was made of."""

    def __init__(self, place: HDF5Place, keys: list[str], version: Version, errors: str) -> None:
        self._place = place
        self._keys = keys
        self._version = version
        self._errors = errors

    def __call__(self) -> _OpenTables:
        version, contents = self._place.opened(self._version)
        if version != self._version:
            raise FileChangedError(
                f"{self._place.name} was changed since the dataset was made: it has {version.size:,} bytes, and had "
                f"{self._version.size:,}. Make the dataset anew, and give new data another name."
            )
        return _OpenTables(self._place.name, self._keys, self._version, contents, self._errors)


class _OpenTables:
    """The open file of a process, and for each key its rows."""

    def __init__(self, path: str, keys: list[str], version: Version, contents: File | None, errors: str) -> None:
        self._path = path
        self._keys = keys
        self._version = version
        chunk_cache = max(_LEAST_CHUNK_CACHE, _CHUNK_CACHE // len(keys))
        self._file = opened(path, chunk_cache, contents)
        if contents is not None:
            weakref.finalize(self, self._file.close)  # before the interpreter ends
        self._map: MappedFile | None = None
        cache = ChunkCache()
        self._rows = [rows_of(self._file, key, cache, self._mapped, contents, errors) for key in keys]

    def row(self, row: int) -> dict[str, Any]:
        """Returns a row of all keys."""
        sample = {}
        for key, rows in zip(self._keys, self._rows, strict=True):
            try:
                sample[key] = rows.row(row)
            except (StokerError, FileNotFoundError, PermissionError):
                raise
            except (OSError, RuntimeError, TypeError, ValueError) as error:
                raise self._unread(f"row {row}", key, error) from error
        return sample

    def take(self, rows: Indices, out: dict[str, Any], threads: int) -> None:
        """Writes rows, counted from 0, into the leaves of `out`."""
        for key, of_key in zip(self._keys, self._rows, strict=True):
            try:
                of_key.take(rows, out[key], threads)  # type: ignore[union-attr]  # references are not gathered
            except (StokerError, FileNotFoundError, PermissionError):
                raise
            except (OSError, RuntimeError, TypeError, ValueError) as error:
                raise self._unread("a row", key, error) from error

    def _mapped(self) -> MappedFile:
        if self._map is None:
            self._map = MappedFile(FileContents(self._path, self._path, self._version, {}))
        return self._map

    def _unread(self, row: str, key: str, error: Exception) -> HDF5Error:
        message = f"{row} of {key!r} in {self._path} cannot be read: {error}. "
        if isinstance(error, UnicodeDecodeError):
            return HDF5ValueError(
                message + 'Is it a text in another encoding? Pass errors="replace" or "surrogateescape".'
            )
        if isinstance(error, (TypeError, ValueError)) or "conversion path" in str(error):
            return HDF5ValueError(message + "Leave this key out: name the others by keys=[...].")
        return HDF5Error(
            f"{message}The file is damaged, or its filter is not installed: plugins come with `import hdf5plugin` in a "
            "worker_init_fn."
        )


def _held(h5py: Any, file: Any) -> dict[str, None]:
    """Returns the names of all datasets with rows, those in groups as paths."""
    names: dict[str, None] = {}

    def visit(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset) and thing.shape:
            names[name] = None

    file.visititems(visit)
    return names


def _missing(key: str, keys: list[str], path: str) -> MissingKeyError:
    close = difflib.get_close_matches(str(key), keys)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"it has {', '.join(map(repr, keys[:20]))}"
    return MissingKeyError(f"{path} has no dataset {key!r}: {hint}")


def _rows(path: str, tables: dict[str, Any]) -> tuple[int, int]:
    """Returns the number of rows, and the number of rows in the largest chunk of a key, or all."""
    lengths = {key: table.shape[0] if table.shape else 0 for key, table in tables.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key!r} {length:,}" for key, length in lengths.items())
        raise ValueError(
            f"the datasets of {path} have different numbers of rows ({shown}): name those that go together"
        )
    length = max(lengths.values(), default=0)
    if not length:
        raise ValueError(f"there is no row in {path}: its datasets are {list(tables)}")
    return length, max((table.chunks[0] for table in tables.values() if table.chunks), default=length)


def _layout(tables: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the layout of a row; None if a key holds no numbers."""
    leaves = {}
    for key, table in tables.items():
        if not has_dtype(table) or table.dtype.subdtype is not None:
            return None
        leaves[key] = row_layout(np.empty((0, *table.shape[1:]), table.dtype))
    return None if any(leaf is None for leaf in leaves.values()) else leaves


class HDF5Place:
    """A file of this machine, which the library opens by its path, or a file that is read through a store.

    Picklable, with the options of the store.

    Args:
        path: of the file, or its URL.
        cache: a folder that keeps the data that is read; None for none. With it a local file is read through a store.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError, ValueError, OSError: as `source_files` says; or a pattern leads to several files.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None,
        cache: str | os.PathLike[str] | None,
        cache_size: int | None,
    ) -> None:
        self._place = os.fspath(path)
        is_url = is_remote(self._place) and not os.path.exists(self._place)
        self.is_remote = is_url or cache is not None or cache_size is not None
        if self.is_remote:
            files = source_files(self._place, storage_options, cache, cache_size)
            if len(files.places) > 1:
                raise ValueError(f"{shown(self._place)} leads to {len(files.places)} files: make a dataset of each one")
            self._place, self._storage = files.places[0], files.storage
        else:
            check_local(self._place, "HDF5 files")
        self.name = shown(self._place)

    def opened(self, version: Version | None) -> tuple[Version, File | None]:
        """Returns the version of the file, and the file if it is read through a store.

        Args:
            version: which it had; None if that is not known. A file that has another one now may be found when it is
                read.
        """
        if not self.is_remote:
            return LocalFile(self._place).version, None
        file = opened_file(self._storage, self._place, version)
        return file.version, file
