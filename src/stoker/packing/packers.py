"""The formats: each packer writes rows in order, commits them, and reads them back."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from stoker.errors import MissingExtraError, PackError
from stoker.packing.manifest import Manifest
from stoker.packing.rows import EncodedFile, Row
from stoker.sources.hdf5.open_file import h5py_module
from stoker.sources.lmdb_dataset import LMDBDataset, lmdb_module
from stoker.sources.parquet.dataset import ParquetDataset
from stoker.sources.tar.dataset import TarDataset
from stoker.sources.tar.writer import TarWriter, encoded

LMDB_COMMIT = 1000
"""Samples of a transaction."""
ARRAYS_COMMIT = 4096
"""Samples after which arrays are flushed to the disk."""


class Packer(Protocol):
    """Writes rows of one format. Begins after the samples that the manifest calls safe."""

    def write(self, index: int, row: Row) -> None:
        """Writes the row of sample `index`; rows come in order."""

    def finish(self, count: int) -> None:
        """Ends the last file, and commits all samples."""

    def close(self) -> None:
        """Gives up uncommitted rows, and closes open files."""

    def read(self, count: int) -> Sequence[Any]:
        """Returns the written samples, by index."""

    def expected(self, index: int, row: Row) -> Any:
        """Returns the value that `read` gives for a row."""


class TarPacker:
    """Tar shards in the WebDataset layout, each with its index: `shard-000000.tar`."""

    def __init__(self, manifest: Manifest, max_count: int | None, max_size: int | None) -> None:
        self._manifest = manifest
        folder = manifest.folder
        self._pattern = os.path.join(folder.replace("%", "%%"), "shard-%06d.tar")
        _remove_unfinished(folder, manifest.files)
        self._writer = TarWriter(self._pattern, max_count=max_count, max_size=max_size)
        self._writer.shards.extend(os.path.join(folder, name) for name in manifest.files)

    def write(self, index: int, row: Row) -> None:
        before = len(self._writer.shards)
        self._writer.write(_members(index, row))
        if len(self._writer.shards) > before:
            self._manifest.commit(index, self._files())

    def finish(self, count: int) -> None:
        self._writer.close()
        self._manifest.commit(count, self._files())

    def close(self) -> None:
        self._writer.__exit__(PackError, None, None)

    def read(self, count: int) -> Sequence[Any]:
        dataset = TarDataset([os.path.join(self._manifest.folder, name) for name in self._files()], decode=False)
        return _Members(dataset)

    def expected(self, index: int, row: Row) -> Any:
        key, members = encoded(_members(index, row))
        return {"__key__": key, **members}

    def _files(self) -> list[str]:
        return [os.path.basename(path) for path in self._writer.shards]


class _Members(Sequence[Any]):
    """Samples of shards without their places."""

    def __init__(self, dataset: TarDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return {name: value for name, value in self._dataset[index].items() if name != "__url__"}


def _members(index: int, row: Row) -> Row:
    """Returns a row as a sample of a tar shard; a row that has a key is one already."""
    if "__key__" in row:
        return row
    return {"__key__": f"{index:09d}", **dict(_member(name, value) for name, value in row.items())}


def _member(name: str, value: Any) -> tuple[str, Any]:
    """Returns the extension and the value of a member of a tar shard."""
    if isinstance(value, EncodedFile):
        return (value.extension if name == "image" else f"{name}.{value.extension}"), value.data
    if isinstance(value, bytes):
        return f"{name}.bin", value
    if isinstance(value, np.ndarray):
        return f"{name}.npy", value
    if isinstance(value, str):
        return f"{name}.txt", value
    if name == "label" and isinstance(value, int) and not isinstance(value, bool):
        return "cls", value
    return f"{name}.json", value


class ParquetPacker:
    """Parquet files of row groups of 1,000 samples: `part-00000.parquet`."""

    def __init__(self, manifest: Manifest, max_count: int) -> None:
        self._arrow, self._parquet = _pyarrow()
        self._manifest = manifest
        self._count = max_count
        self._rows: list[Row] = []
        _remove_unfinished(manifest.folder, manifest.files)

    def write(self, index: int, row: Row) -> None:
        self._rows.append(self.expected(index, row))
        if len(self._rows) == self._count:
            self._flush(index + 1)

    def _flush(self, samples: int) -> None:
        name = f"part-{len(self._manifest.files):05d}.parquet"
        path = os.path.join(self._manifest.folder, name)
        table = self._table()
        self._parquet.write_table(table, f"{path}.partial", row_group_size=1000)
        os.rename(f"{path}.partial", path)
        self._rows = []
        self._manifest.commit(samples, [*self._manifest.files, name])

    def _table(self) -> Any:
        first, columns = self._rows[0], {}
        for name in first:
            try:
                columns[name] = _arrow_column(self._arrow, [row[name] for row in self._rows])
            except (self._arrow.ArrowInvalid, self._arrow.ArrowTypeError, KeyError) as error:
                raise PackError(
                    f"the column {name!r} cannot be written as Parquet: {error}. All samples need the same fields and "
                    "types; tar shards hold samples that differ"
                ) from error
        extra = {name for row in self._rows for name in row} - set(first)
        if extra:
            raise PackError(f"some samples have the field {min(extra)!r}, and others have not: pack them as tar shards")
        return self._arrow.table(columns)

    def finish(self, count: int) -> None:
        if self._rows:
            self._flush(count)

    def close(self) -> None:
        self._rows = []

    def read(self, count: int) -> Sequence[Any]:
        files = [os.path.join(self._manifest.folder, name) for name in self._manifest.files]
        return ParquetDataset(files, partitioning=None)

    def expected(self, index: int, row: Row) -> Any:
        return {name: _of_parquet(value) for name, value in row.items()}


def _of_parquet(value: Any) -> Any:
    """Returns a value as `ParquetDataset` gives it."""
    if isinstance(value, EncodedFile):
        return value.data
    if isinstance(value, list) and value and all(isinstance(each, type(value[0])) for each in value):
        return np.asarray(value) if isinstance(value[0], (bool, int, float)) else value
    return value


def _arrow_column(arrow: Any, values: list[Any]) -> Any:
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) == len(values) and arrays[0].ndim > 1:
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            few = ", ".join(map(str, sorted(shapes)[:3]))
            raise arrow.ArrowInvalid(f"arrays of differing shapes: {few}")
        return arrow.FixedShapeTensorArray.from_numpy_ndarray(np.stack(arrays))
    if len(arrays) == len(values):
        return arrow.array(arrays, type=arrow.list_(arrow.from_numpy_dtype(arrays[0].dtype)))
    return arrow.array(values)


class LMDBPacker:
    """One LMDB: the key of a sample is its number, or the path of its file; the value its bytes."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._environment: Any = None
        self._transaction: Any = None

    def write(self, index: int, row: Row) -> None:
        if self._environment is None:
            self._environment = _opened(self._manifest.folder)
        if self._transaction is None:
            self._transaction = self._environment.begin(write=True)
        self._transaction.put(*self._entry(index, row))
        if (index + 1) % LMDB_COMMIT == 0:
            self._commit(index + 1)

    def _commit(self, samples: int) -> None:
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            try:
                transaction.commit()
            except lmdb_module().Error as error:  # which has no number: of a full disk "Input/output error"
                raise OSError(errno.EIO, f"{error}, as where the disk is full") from error
        self._manifest.commit(samples, ["data.mdb"])

    def finish(self, count: int) -> None:
        self._commit(count)

    def close(self) -> None:
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def read(self, count: int) -> Sequence[Any]:
        return LMDBDataset(self._manifest.folder)

    def expected(self, index: int, row: Row) -> bytes:
        return self._entry(index, row)[1]

    def _entry(self, index: int, row: Row) -> tuple[bytes, bytes]:
        number, values = f"{index:09d}", list(row.values())
        if isinstance(values[0], EncodedFile):
            return (f"{number}/{values[0].path}" if values[0].path else number).encode(), values[0].data
        if len(values) != 1 or not isinstance(values[0], (bytes, str)):
            raise PackError(
                f"an LMDB holds one value of bytes or text for each sample, and sample {index} has the fields "
                f"{', '.join(row)}: pack it as tar shards or Parquet, or make bytes of it (stoker.MapDataset)"
            )
        return number.encode(), values[0].encode() if isinstance(values[0], str) else values[0]


class ArrayPacker:
    """An `.npy` file for each field; all samples have arrays of one shape and dtype, or numbers."""

    def __init__(self, manifest: Manifest, count: int) -> None:
        self._manifest = manifest
        self._count = count
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}

    def write(self, index: int, row: Row) -> None:
        row = self.expected(index, row)
        if not self._arrays:
            self._arrays = {name: self._opened(name, np.asarray(value)) for name, value in row.items()}
        if row.keys() != self._arrays.keys():
            raise PackError(f"sample {index} has the fields {', '.join(row)}, earlier ones {', '.join(self._arrays)}")
        for name, value in row.items():
            array, given = self._arrays[name], np.asarray(value)
            if given.dtype != array.dtype or given.shape != array.shape[1:]:
                raise PackError(
                    f"the field {name!r} of sample {index} is {given.dtype} of shape {given.shape}, earlier ones are "
                    f"{array.dtype} of shape {array.shape[1:]}: arrays need one shape; tar shards do not"
                )
            array[index] = given
        if (index + 1) % ARRAYS_COMMIT == 0:
            self._flush(index + 1)

    def _opened(self, name: str, first: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        path = self._partial(name)
        if self._manifest.samples:
            if os.path.exists(path.removesuffix(".partial")):  # the end came while the files were renamed
                os.rename(path.removesuffix(".partial"), path)
            return np.lib.format.open_memmap(path, mode="r+")
        array = np.lib.format.open_memmap(path, mode="w+", dtype=first.dtype, shape=(self._count, *first.shape))
        _reserve(path, array.offset, array.nbytes)
        return array

    def _partial(self, name: str) -> str:
        return os.path.join(self._manifest.folder, f"{name}.npy.partial")

    def _flush(self, samples: int) -> None:
        for array in self._arrays.values():
            array.flush()  # type: ignore[attr-defined]
        self._manifest.commit(samples, [])

    def finish(self, count: int) -> None:
        self._flush(count)
        self._arrays = {}
        folder = self._manifest.folder
        for name in os.listdir(folder):
            if name.endswith(".npy.partial"):
                os.rename(os.path.join(folder, name), os.path.join(folder, name.removesuffix(".partial")))
        self._manifest.commit(count, sorted(name for name in os.listdir(folder) if name.endswith(".npy")))

    def close(self) -> None:
        self._arrays = {}

    def read(self, count: int) -> Sequence[Any]:
        folder = self._manifest.folder
        files = {name.removesuffix(".npy"): os.path.join(folder, name) for name in self._manifest.files}
        return _Columns({name: np.load(path, mmap_mode="r") for name, path in files.items()}, count)

    def expected(self, index: int, row: Row) -> Any:
        for name, value in row.items():
            if not isinstance(value, (np.ndarray, int, float)) or "/" in name:
                raise PackError(
                    f"the field {name!r} of sample {index} is a {type(value).__name__}; arrays hold numbers and "
                    "arrays: pack it as tar shards or Parquet"
                )
        return row


class HDF5Packer(ArrayPacker):
    """One HDF5 file with a dataset for each field, each in one piece: flushed rows are readable after a kill."""

    def __init__(self, manifest: Manifest, count: int) -> None:
        super().__init__(manifest, count)
        self._h5py = h5py_module()
        self._path = os.path.join(manifest.folder, "data.h5")
        self._file: Any = None

    def _opened(self, name: str, first: np.ndarray[Any, Any]) -> Any:
        partial = f"{self._path}.partial"
        if self._file is None and self._manifest.samples:
            if os.path.exists(self._path):  # the end came after the file was renamed
                os.rename(self._path, partial)
            self._file = self._h5py.File(partial, "r+")
        elif self._file is None:
            self._file = self._h5py.File(partial, "w")
        if first.dtype.kind in "mMOU" or not name.strip("."):
            raise PackError(
                f"HDF5 holds no field {name!r} of {first.dtype}: rename it, or pack as npy, tar or Parquet, which hold "
                "texts and times"
            )
        if name in self._file:
            return self._file[name]
        how = self._h5py.h5p.create(self._h5py.h5p.DATASET_CREATE)
        how.set_alloc_time(self._h5py.h5d.ALLOC_TIME_EARLY)
        how.set_fill_time(self._h5py.h5d.FILL_TIME_NEVER)
        array = self._file.create_dataset(name, (self._count, *first.shape), first.dtype, dcpl=how)
        try:
            _reserve(partial, array.id.get_offset() or 0, array.nbytes)
        except OSError:
            del self._file[name]  # else closing it lengthens the file
            raise
        return array

    def _flush(self, samples: int) -> None:
        if self._file is not None:
            self._file.flush()
        self._manifest.commit(samples, [])

    def finish(self, count: int) -> None:
        self._flush(count)
        self.close()
        if os.path.exists(f"{self._path}.partial"):
            os.rename(f"{self._path}.partial", self._path)
        self._manifest.commit(count, ["data.h5"])

    def close(self) -> None:
        super().close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, count: int) -> Sequence[Any]:
        self._file = self._h5py.File(self._path, "r")
        return _Columns(dict(self._file), count)


class _Columns(Sequence[Any]):
    """Rows of arrays."""

    def __init__(self, arrays: dict[str, Any], count: int) -> None:
        self._arrays = arrays
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        rows = {name: array[index] for name, array in self._arrays.items()}
        return {name: row if isinstance(row, np.ndarray) and row.ndim else row.item() for name, row in rows.items()}


def _reserve(path: str, offset: int, size: int) -> None:
    """Takes the disk space of an array: in a file with holes a full disk ends the process by a signal, at any row."""
    if size and hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), offset, size)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # of a file system that reserves nothing
                    raise


def _opened(folder: str) -> Any:
    # the file is sparse: the size of the map is a bound, and no reservation
    return lmdb_module().open(folder, map_size=1 << 44, lock=False, max_readers=1)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow, which is not installed: stoker[parquet]") from error
    return pyarrow, parquet


def _remove_unfinished(folder: str, files: list[str]) -> None:
    """Removes files that an earlier pack of this folder began and did not commit."""
    for name in os.listdir(folder):
        if name.startswith(("shard-", "part-")) and name.removesuffix(".index") not in files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
