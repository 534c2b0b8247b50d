"""Rows of array files as a dataset by index."""

from __future__ import annotations

import difflib
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute
from stoker.datasets.gather import LARGE_ROW, Array, inside
from stoker.errors import ArrayFileError, MissingKeyError, SchemaMismatchError
from stoker.extend import Indices, row_layout
from stoker.sources.arrays.npy_format import check_torch, raw_rows
from stoker.sources.arrays.open_arrays import ArrayOpener, OpenArrays, contents_of_all, is_zarr_url
from stoker.sources.arrays.stored import PLAIN, FileContents, StoredArray, check_rows_are_together
from stoker.sources.per_process import PerProcess
from stoker.sources.places import Place, places_of
from stoker.sources.storage_of import storage_of
from stoker.sources.urls import hub_fingerprint, shown


class ArrayDataset(Dataset[Any]):
    """Rows of arrays in files, by index, along their first dimension: with a length, a true shuffle, exact resume.

        ArrayDataset("train.npy")                                     # a sample is a row
        ArrayDataset("shards/*.npz", keys=["image", "label"])         # a sample is a dict of rows
        ArrayDataset("rows.bin", dtype=np.float32, shape=(64, 64))    # numbers without a header
        ArrayDataset("embeddings.safetensors")
        ArrayDataset("volumes.zarr")                                  # needs stoker[zarr]

    The format follows from the name: `.npy`, `.npz`, `.safetensors`; a folder is a Zarr array or group (version 2 or
    3); any other file is raw and needs `dtype`. Several files are read one after another, as one dataset.

    A sample of a `.npy` file, a raw file or a Zarr array is the row: a NumPy array in memory of its own and in the byte
    order of this machine, or a NumPy scalar where the array has one dimension. A sample of the other formats is a dict
    of rows by key. Tensors of dtypes that NumPy lacks (bfloat16, float8) give torch tensors.

    Files are mapped into memory, by each process at first use: nothing is read ahead, all processes share the pages,
    and a pickle holds the paths. A batch is gathered: rows are copied once, from the map into the batch. There are two
    exceptions. A compressed member of a `.npz` archive is decompressed when the dataset is made; forked workers share
    that memory, others decompress again. Zarr is decompressed chunk by chunk, and each process keeps those used last,
    up to 64 MiB; `RowGroupSampler(dataset.chunk_sizes)` shuffles chunk by chunk.

    Files of object stores are read by ranges: a row with a request, a batch with the requests of its rows together,
    those near each other in one. Of Zarr they are read chunk by chunk; a group needs consolidated metadata there.

    Nothing may write to the files meanwhile. Thread safe.

    Args:
        places: a path, a URL of an object store or a web server, a list of these, a glob or a brace pattern.
        keys: the arrays to read, in the order of the sample; others may be single numbers, objects or texts. None for
            all.
        dtype: of the numbers in raw files.
        shape: of a row in raw files, an integer or a tuple; None for single numbers.
        offset: the number of bytes before the first row of each raw file.
        transform: a function of the sample, whose result takes its place. Batches are then not gathered.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for bytes that are read from stores, shared by all processes of the machine;
            needs `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a place leads to no file.
        ArrayFileError: a file is empty, truncated, damaged or of an unknown format, or holds pickled objects; or one of
            a store holds an array column by column.
        MissingKeyError: a file has no array of this name.
        SchemaMismatchError: the rows of two files differ in dtype, shape or keys.
        MissingExtraError: a tensor needs torch, which is not installed.
        TypeError: `keys` is a single text, or `transform` cannot be called.
        ValueError: there are no keys or no rows; the arrays of a file have different lengths; `dtype` is given for a
            file with a header.

    Attributes:
        paths: of the files.
        keys: of a sample; None if a sample is a row.

    At each access:
        IndexError: the index is out of range.
        FileChangedError: the file was changed since the dataset was made.
        ArrayFileError: a chunk is damaged.
        ObjectStoreError: the store of the file failed.
    """

    stoker_protocol = True
    _layout_of_files = True  # so loaders ask for it in a worker
    prefer_whole_batches = True  # the next row is in the same chunk

    def __init__(
        self,
        places: Place | Iterable[Place],
        *,
        keys: Sequence[str] | None = None,
        dtype: Any = None,
        shape: int | Sequence[int] | None = None,
        offset: int = 0,
        transform: Callable[[Any], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        if isinstance(keys, str):
            raise TypeError(f"keys is a text, {keys!r}, expected a list of names: [{keys!r}]")
        if keys is not None and not keys:
            raise ValueError("keys is an empty list: name at least one array, or leave it out to read all")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a sample")
        raw = raw_rows(dtype, shape, offset)
        paths = places_of(_without_slash(places), "array files", storage_options, may_be_folders=True)
        self.paths = [shown(place) for place in paths]
        storage = storage_of(paths, storage_options, cache, cache_size)
        files = [_chosen(contents, keys) for contents in contents_of_all(paths, storage, raw)]
        for file in files[1:]:
            _check_alike(files[0], file)
        rows = [_rows(file) for file in files]
        self._files = files
        self._starts = np.cumsum([0, *rows])
        self._begins: list[int] = self._starts.tolist()
        self._length: int = self._begins[-1]
        if not self._length:
            raise ValueError(f"there is no row in {', '.join(self.paths[:3])}: all arrays have length 0")
        self.keys = None if PLAIN in files[0].arrays else list(files[0].arrays)
        self._forms = list(files[0].arrays.values())
        self._transform = transform
        opener = ArrayOpener(files)
        opener.decompress()
        self._process: PerProcess[OpenArrays] = PerProcess(opener)

    @property
    def chunk_sizes(self) -> list[int]:
        """The number of rows in each file, and of Zarr in each chunk: the argument of `RowGroupSampler`."""
        sizes = []
        for file, rows in zip(self._files, np.diff(self._starts).tolist(), strict=True):
            of_chunk = max(stored.chunk_rows for stored in file.arrays.values()) or max(1, rows)
            sizes += [of_chunk] * (rows // of_chunk) + [rows % of_chunk] * bool(rows % of_chunk)
        return sizes

    @property
    def fingerprint(self) -> str | None:
        """The commits of files on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint(self.paths)

    def __len__(self) -> int:
        """Returns the number of rows of all files."""
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Returns the row at `index`, or the dict of rows; a negative index counts from the end."""
        file, row = self._place(absolute(index, self._length))
        tables = self._process.get().get(file)
        values = [_finished(table.row(row), form) for table, form in zip(tables, self._forms, strict=True)]
        sample = values[0] if self.keys is None else dict(zip(self.keys, values, strict=True))
        return sample if self._transform is None else self._transform(sample)

    def gather_layout(self) -> Any:
        """Returns the layout of a sample; None with a `transform`, or if an array holds no numbers."""
        leaves = [None if self._transform is not None else _leaf(form) for form in self._forms]
        if any(leaf is None for leaf in leaves):
            return None
        return leaves[0] if self.keys is None else dict(zip(self.keys, leaves, strict=True))

    def gather(self, indices: Indices, out: Any) -> Any:
        """Writes the rows at `indices`, unless one cannot be read: the samples, fetched one by one, show which."""
        try:
            self._gather(indices, out)
        except OSError:  # of a file, or of a store
            return NotImplemented
        return None

    def _gather(self, indices: Indices, out: Any) -> None:
        leaves = [_as_array(leaf) for leaf in ([out] if self.keys is None else [out[key] for key in self.keys])]
        rows = inside(indices, self._length)
        if not len(rows):
            return
        process = self._process.get()
        if len(self._files) == 1:
            for table, leaf in zip(process.get(0), leaves, strict=True):
                table.take(rows, leaf)
            return
        files = np.searchsorted(self._starts, rows, "right") - 1
        order = np.argsort(files, kind="stable")
        files = files[order]
        local = rows[order] - self._starts[files]
        begins = [0, *(np.flatnonzero(files[1:] != files[:-1]) + 1).tolist()]
        # Small rows of a file are written one behind the other, and moved to their places together
        beside = [np.empty_like(leaf) if leaf[:1].nbytes < LARGE_ROW else None for leaf in leaves]
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
            for table, leaf, some in zip(process.get(int(files[begin])), leaves, beside, strict=True):
                if some is None:
                    table.put(local[begin:end], leaf, order[begin:end])
                else:
                    table.take(local[begin:end], some[begin:end])
        for leaf, some in zip(leaves, beside, strict=True):
            if some is not None:
                leaf[order] = some

    def describe(self, index: int) -> str:
        """Returns the file, the keys and the row, counted from 0, of the sample at `index`."""
        number = absolute(index, self._length)
        file, row = self._place(number)
        keys = "" if self.keys is None else f" of {', '.join(self.keys[:5])}{', …' * (len(self.keys) > 5)}"
        return f"sample {number}: row {row}{keys} in {self.paths[file]}"

    def _place(self, number: int) -> tuple[int, int]:
        """Returns the number of the file that holds a sample, and the row in it."""
        if len(self._files) == 1:
            return 0, number
        file = bisect_right(self._begins, number) - 1
        return file, number - self._begins[file]


def _without_slash(places: Place | Iterable[Place]) -> list[Place]:
    """Returns places; URLs of Zarr folders without the slash at their end, which else names no file."""
    texts = [places] if isinstance(places, str | os.PathLike) else list(places)
    return [text.rstrip("/") if isinstance(text, str) and is_zarr_url(text) else text for text in texts]


def _chosen(file: FileContents, keys: Sequence[str] | None) -> FileContents:
    """Returns a file with the arrays of these keys alone. Only they are checked."""
    if PLAIN in file.arrays and keys is not None:
        raise ValueError(f"{file.path} holds one array without a name: leave keys= out")
    for key in file.unreadable if keys is None else keys:
        if key in file.unreadable:
            raise _unreadable(key, file)
        if key not in file.arrays:
            raise _missing(key, list(file.arrays), file.path)
    if not file.arrays:
        raise ArrayFileError(f"{file.path} holds no array with rows")
    if keys is not None:
        file = file._replace(arrays={key: file.arrays[key] for key in keys})
    file = file._replace(unreadable={})
    if file.storage is not None:
        check_rows_are_together(file)
    for key, stored in file.arrays.items():
        check_torch(file.path, key, stored)
    return file


def _unreadable(key: str, file: FileContents) -> ArrayFileError:
    others = [other for other in file.arrays if other != PLAIN][:5]
    hint = f"\nOther arrays of the file can be read without it: keys={others}" if others else ""
    return ArrayFileError(f"{file.unreadable[key]}{hint}")


def _missing(key: str, keys: list[str], path: str) -> MissingKeyError:
    close = difflib.get_close_matches(str(key), keys)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"it has {', '.join(map(repr, keys[:20]))}"
    return MissingKeyError(f"{path} has no array {key!r}: {hint}")


def _check_alike(first: FileContents, file: FileContents) -> None:
    if first.arrays.keys() != file.arrays.keys():
        key_lists = [", ".join(map(repr, list(each.arrays)[:20])) for each in (first, file)]
        raise SchemaMismatchError(
            f"{first.path} holds {key_lists[0]} and {file.path} holds {key_lists[1]}: choose arrays that both have by "
            "keys="
        )
    for key, stored in first.arrays.items():
        if stored.said() != file.arrays[key].said():
            name = f"{key!r} of " if key != PLAIN else ""
            raise SchemaMismatchError(
                f"rows differ: those of {name}{first.path} are {stored.said()}, and those of {name}{file.path} are "
                f"{file.arrays[key].said()}"
            )


def _rows(file: FileContents) -> int:
    """Returns the number of rows of a file."""
    lengths = {key: stored.shape[0] for key, stored in file.arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key!r} {length:,}" for key, length in list(lengths.items())[:20])
        raise ValueError(
            f"the arrays of {file.path} have different numbers of rows ({shown}): name those that go together"
        )
    return next(iter(lengths.values()))


def _finished(row: Any, form: StoredArray) -> Any:
    """Returns a row as the sample's value: a tensor where NumPy lacks the dtype."""
    if not form.torch_dtype:
        return row
    import torch

    return torch.from_numpy(np.asarray(row)).view(getattr(torch, form.torch_dtype))


def _leaf(form: StoredArray) -> Any:
    """Returns the layout of an array's rows; None if they are no numbers."""
    if form.torch_dtype:
        import torch

        return torch.empty((0, *form.shape[1:]), dtype=getattr(torch, form.torch_dtype))
    return row_layout(np.empty((0, *form.shape[1:]), form.row_dtype))


def _as_array(leaf: Any) -> Array:
    """Returns an array over the memory of a leaf; of integers if NumPy lacks the dtype."""
    if isinstance(leaf, np.ndarray):
        return leaf
    torch = sys.modules["torch"]
    array: Array = leaf.view({1: torch.uint8, 2: torch.uint16}[leaf.itemsize]).numpy()
    return array
