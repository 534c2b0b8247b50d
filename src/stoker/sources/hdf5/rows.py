"""The rows of one dataset in an open HDF5 file, read in the way that suits how they are stored."""

from __future__ import annotations

import itertools
import math
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from stoker.datasets.gather import Array
from stoker.errors import StokerError
from stoker.extend import Indices
from stoker.sources.arrays.stored import MappedFile, MappedRows, StoredArray
from stoker.sources.arrays.zarr_rows import CACHE, ChunkCache
from stoker.sources.hdf5.open_file import h5py_module
from stoker.sources.storage import File

_LOCKS = 16
_WORTH_THREADS = 1 << 20
"""Bytes of chunks for which handing them to threads takes little time."""


class BlockRows:
    """Rows in chunks. The chunks that hold a row are read as a whole, once, and kept in a cache. Thread safe.

    Args:
        table: the `h5py.Dataset`, whose chunks the library does not keep.
        cache: shared by the keys of a file.
        contents: the file in its store; None for one of this machine.
    """

    def __init__(self, name: str, table: Any, cache: ChunkCache, contents: File | None = None) -> None:
        self._name = name
        self._table = table
        self._cache = cache
        self._length: int = table.shape[0]
        self._rows: int = table.chunks[0]
        self._bytes = block_bytes(table)
        self._dtype = table.dtype.newbyteorder("=")
        self._raw = RawChunks(table, contents) if can_be_read_raw(table) else None
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def row(self, row: int) -> Any:
        """Returns a row in memory of its own, in the byte order of this machine."""
        number = row // self._rows
        return np.array(self._block(number)[row - number * self._rows], self._dtype)[()]

    def take(self, rows: Indices, out: Array, threads: int) -> None:
        """Writes rows into `out`. Chunks are read in file order, each once.

        Args:
            rows: counted from 0, in any order.
            out: of the same dtype and row shape.
            threads: that decompress chunks at once.
        """
        order = np.argsort(rows, kind="stable")
        blocks = rows[order] // self._rows
        begins = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist()] if len(rows) else []

        def copy(begin: int, end: int) -> None:
            places = order[begin:end]
            number = int(blocks[begin])
            out[places] = self._block(number)[rows[places] - number * self._rows]

        has_work = self._raw is not None and (self._raw.is_remote or len(begins) * self._bytes >= _WORTH_THREADS)
        _each(copy, begins, [*begins[1:], len(rows)], threads if has_work else 1)

    def _block(self, number: int) -> Array:
        key = (self._name, number)
        block = self._cache.get(key)
        if block is None:
            with self._locks[number % _LOCKS]:  # threads that want rows of one chunk wait for the first of them
                block = self._cache.get(key)
                if block is None:
                    block = self._read(number * self._rows)
                    self._cache.add(key, block)
        return block

    def _read(self, first: int) -> Array:
        end = min(first + self._rows, self._length)
        block = None if self._raw is None else self._raw.block(first, end)
        if block is None:
            block = self._table[first:end]
        return block


class LibraryRows:
    """Rows that the library gives one by one: virtual, external, of very large chunks, or texts. Thread safe.

    Args:
        table: the `h5py.Dataset`, or a view of it.
        dtype: of numbers in the byte order of this machine; None if the rows are no numbers.
    """

    def __init__(self, table: Any, dtype: Any) -> None:
        self._table = table
        self._dtype = dtype

    def row(self, row: int) -> Any:
        """Returns a row in memory of its own."""
        value = self._table[row]
        return value if self._dtype is None else np.array(value, self._dtype)[()]

    def take(self, rows: Indices, out: Array, threads: int) -> None:
        """Writes rows, counted from 0, into `out`. They are read in file order, consecutive ones at once."""
        order = np.argsort(rows, kind="stable")
        in_order = rows[order]
        begins = [0, *(np.flatnonzero(np.diff(in_order) > 1) + 1).tolist()] if len(rows) else []
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
            first = int(in_order[begin])
            values = self._table[first : int(in_order[end - 1]) + 1]
            out[order[begin:end]] = values[in_order[begin:end] - first]


class ReferenceRows:
    """Rows of references to other datasets of the file, whose contents are the sample's. Thread safe."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def row(self, row: int) -> Any:
        """Returns the array that the reference of a row leads to, a list of them where a row has several; None for a
        reference to nothing. References in what they lead to are replaced too.

        Raises:
            TypeError: a reference leads to a group, to itself, or to what holds references within a compound type.
        """
        return self._contents(self._table[row], ())

    def _contents(self, reference: Any, above: tuple[int, ...]) -> Any:
        h5py = h5py_module()
        if isinstance(reference, np.ndarray):
            return [self._contents(each, above) for each in reference]
        if not reference:
            return None
        there = self._table.file[reference]
        if not isinstance(there, h5py.Dataset):
            raise TypeError(f"a reference leads to the group {there.name!r}, and not to a dataset")
        contents = there[reference] if isinstance(reference, h5py.RegionReference) else there[()]
        if not holds_references(there.dtype):
            return contents
        address = h5py.h5o.get_info(there.id).addr
        if address in above:
            raise TypeError(f"a reference leads to {there.name!r}, which leads back to itself")
        if there.dtype.names:
            raise TypeError(f"a reference leads to {there.name!r}, a compound type that holds references")
        return self._contents(contents, (*above, address))


def holds_references(dtype: Any) -> bool:
    """Returns whether a dtype of h5py's is of references, or holds some: lists of them, or a compound type."""
    h5py = h5py_module()
    if dtype.names:
        return any(holds_references(dtype[name]) for name in dtype.names)
    of_list = h5py.check_vlen_dtype(dtype) or (dtype.subdtype and dtype.subdtype[0])
    return h5py.check_ref_dtype(dtype) is not None or bool(of_list and holds_references(np.dtype(of_list)))


class CompoundReferences:
    """Rows of a compound type that holds references, which lead nowhere without the open file."""

    def row(self, row: int) -> Any:
        raise TypeError("it is a compound type that holds references")


class SharedMapRows:
    """Rows that lie in one piece, read from a memory map of the file. Thread safe.

    Args:
        table: the `h5py.Dataset`, for which `is_in_one_piece` is true.
    """

    def __init__(self, table: Any, file: MappedFile) -> None:
        stored = StoredArray(table.dtype, table.shape, table.id.get_offset())
        self._rows = MappedRows(file.array(stored), stored, file)
        self.row = self._rows.row

    def take(self, rows: Indices, out: Array, threads: int) -> None:
        """Writes rows, counted from 0, into `out`."""
        self._rows.take(rows, out)


Rows = SharedMapRows | BlockRows | LibraryRows | ReferenceRows | CompoundReferences


def rows_of(
    file: Any, name: str, cache: ChunkCache, mapped: Callable[[], MappedFile], contents: File | None, errors: str
) -> Rows:
    """Returns the rows of a dataset in an open file.

    Args:
        cache: of chunks, shared by the keys of a file.
        mapped: returns the file as a map, which is made at the first call.
        contents: the file in its store; None for one of this machine, which is mapped.
        errors: for texts that are no UTF-8, as of `bytes.decode`.
    """
    h5py, table = h5py_module(), file[name]
    if not has_dtype(table):
        return LibraryRows(table, None)  # which says why
    text = h5py.check_string_dtype(table.dtype)
    if text is not None:
        return LibraryRows(table.asstr(errors=errors) if text.encoding == "utf-8" else table, None)
    if holds_references(table.dtype):
        return CompoundReferences() if table.dtype.names else ReferenceRows(table)
    if table.dtype.hasobject or table.dtype.subdtype is not None:
        return LibraryRows(table, None)
    is_own = table.file == file  # an external link leads to another file
    if contents is None and is_own and is_in_one_piece(table):
        return SharedMapRows(table, mapped())
    if table.chunks and block_bytes(table) <= CACHE // 2:
        contents = contents if is_own and not file.userblock_size else None
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(1, 0, 0.75)  # each chunk is read once, and kept here
        return BlockRows(name, h5py.Dataset(h5py.h5d.open(file.id, name.encode(), access)), cache, contents)
    return LibraryRows(table, table.dtype.newbyteorder("="))


def has_dtype(table: Any) -> bool:
    """Returns whether NumPy has a type like that of an `h5py.Dataset`."""
    try:
        return table.dtype is not None
    except TypeError:
        return False


def is_in_one_piece(table: Any) -> bool:
    """Returns whether a memory map of the file holds the numbers of an `h5py.Dataset` one behind the other."""
    is_plain = not table.chunks and not table.is_virtual and not table.external and table.size
    return bool(is_plain and not table.file.userblock_size and table.id.get_offset()) and is_stored_as_read(table)


def block_bytes(table: Any) -> int:
    """Returns the bytes of all chunks of an `h5py.Dataset` that hold parts of the same rows, decompressed."""
    return int(min(table.chunks[0], table.shape[0]) * math.prod(table.shape[1:]) * table.dtype.itemsize)


def _each(function: Callable[[int, int], None], begins: Sequence[int], ends: Sequence[int], threads: int) -> None:
    """Calls a function for each pair; in several threads, which end before it returns."""
    if threads > 1 and len(begins) > 1:
        with ThreadPoolExecutor(min(threads, len(begins)), "stoker: chunks") as pool:
            list(pool.map(function, begins, ends))
    else:
        for begin, end in zip(begins, ends, strict=True):
            function(begin, end)


# Chunks read as they are stored, and decompressed outside the lock of the HDF5 library.
#
# h5py holds one lock while the library works, decompression included: threads take turns. Here the lock is held only
# while the compressed bytes are read.


_DEFLATE, _SHUFFLE = 1, 2
_WINDOW = 15


class RawChunks:
    """Chunks of an HDF5 dataset whose filters are gzip, or byte shuffle and gzip. Thread safe.

    Args:
        table: the `h5py.Dataset`, for which `can_be_read_raw` is true.
        contents: the file in its store, from which chunks are read outside the lock too; None for one of this machine.
    """

    def __init__(self, table: Any, contents: File | None = None) -> None:
        self._id = table.id
        self._contents = contents
        self.is_remote = contents is not None
        self._shape: tuple[int, ...] = table.shape
        self._chunks: tuple[int, ...] = table.chunks
        self._dtype = table.dtype
        self._size = math.prod(self._chunks) * self._dtype.itemsize
        self._filters = _filters(table)
        self._inflate, self._damage = _inflate()

    def block(self, first: int, end: int) -> Array | None:
        """Returns the rows of one row of chunks, from `first` to before `end`; read-only.

        None if the library should read them: a chunk was never written, is damaged, or is stored in another way.
        """
        starts = [
            range(0, length, of_chunk) for length, of_chunk in zip(self._shape[1:], self._chunks[1:], strict=True)
        ]
        whole = None
        if any(len(each) > 1 for each in starts):
            whole = np.empty((end - first, *self._shape[1:]), self._dtype)
        for corner in itertools.product([first], *starts):
            chunk = self._chunk(corner)
            if chunk is None:
                return None
            ends = [min(at + size, length) for at, size, length in zip(corner, self._chunks, self._shape, strict=True)][
                1:
            ]
            chunk = chunk[: end - first, *(slice(stop - at) for at, stop in zip(corner[1:], ends, strict=True))]
            if whole is None:
                return chunk
            whole[:, *map(slice, corner[1:], ends)] = chunk
        return whole

    def _chunk(self, corner: tuple[int, ...]) -> Array | None:
        try:
            mask, data = self._stored(corner)
            if data is None:
                return None
            for number in reversed(range(len(self._filters))):
                if mask >> number & 1:  # left out for this chunk
                    continue
                kind, width = self._filters[number]
                data = self._inflate(data, _WINDOW, self._size) if kind == _DEFLATE else _unshuffled(data, width)
        except StokerError:
            raise
        except (OSError, RuntimeError, ValueError, self._damage):
            return None
        if len(data) != self._size:
            return None
        return np.frombuffer(data, self._dtype).reshape(self._chunks)

    def _stored(self, corner: tuple[int, ...]) -> tuple[int, Any]:
        """Returns the mask of filters that were left out, and the bytes of a chunk; None if it was never written."""
        if self._contents is None:
            chunk: tuple[int, Any] = self._id.read_direct_chunk(corner)
            return chunk
        place = self._id.get_chunk_info_by_coord(corner)
        if place.byte_offset is None or not place.size:
            return 0, None
        return place.filter_mask, self._contents.read(place.byte_offset, place.size)


def can_be_read_raw(table: Any) -> bool:
    """Returns whether `RawChunks` reads an `h5py.Dataset`: its bytes are its numbers, and its filters are known."""
    if not table.chunks or not table.id.get_storage_size():  # h5py fails at a chunk of data that nobody wrote
        return False
    filters, width = _filters(table), table.dtype.itemsize
    is_known = [kind for kind, _ in filters] == [_DEFLATE] or (
        [kind for kind, _ in filters] == [_SHUFFLE, _DEFLATE] and filters[0][1] == width
    )
    return is_known and is_stored_as_read(table)


def is_stored_as_read(table: Any) -> bool:
    """Returns whether the numbers lie in the file as in an array of the dtype that h5py gives."""
    if table.dtype.hasobject or table.dtype.subdtype is not None:
        return False
    stored, create = table.id.get_type(), h5py_module().h5t.py_create
    return any(stored == create(table.dtype, logical=logical) for logical in (False, True))


def _filters(table: Any) -> list[tuple[int, int]]:
    """Returns the filters in the order in which they were applied: the number of each, and its first parameter."""
    settings = table.id.get_create_plist()
    filters = [settings.get_filter(number) for number in range(settings.get_nfilters())]
    return [(code, values[0] if values else 0) for code, _, values, _ in filters]


def _unshuffled(data: bytes, width: int) -> bytes | memoryview:
    """Returns the items of `width` bytes whose first bytes come first in `data`, then their second ones, and so on."""
    if width == 1:
        return data
    planes = np.frombuffer(data, np.uint8).reshape(width, -1)
    items = np.empty(planes.shape[::-1], np.uint8)
    for number in range(width):  # NumPy's copy of the transposed array takes three times as long
        items[:, number] = planes[number]
    return items.reshape(-1).data


def _inflate() -> tuple[Callable[[Any, int, int], bytes], type[Exception]]:
    """Returns the decompression, which releases the GIL, and the error of damaged data: isal's, else Python's."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.decompress, zlib.error
    library: Any = isal_zlib  # its types call the class of the errors an error
    return library.decompress, library.error
