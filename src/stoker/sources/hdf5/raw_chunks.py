"""Chunks read as they are stored, and decompressed outside the lock of the HDF5 library.

h5py holds one lock while the library works, decompression included: threads take turns. Here the lock is held only
while the compressed bytes are read.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from stoker.datasets.gather import Array
from stoker.errors import StokerError
from stoker.sources.hdf5.open_file import h5py_module
from stoker.sources.storage import File

_DEFLATE, _SHUFFLE = 1, 2
_WINDOW = 15


class RawChunks:
    """Chunks of an HDF5 dataset whose filters are gzip, or byte shuffle and gzip. Thread safe.

    Args:
        table: the `h5py.Dataset`, for which `can_be_read_raw` is true.
        contents: the file in its store, from which chunks are read outside the lock too; None for one of this machine.

    Attributes:
        is_remote: whether they are.
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
            found: tuple[int, Any] = self._id.read_direct_chunk(corner)
            return found
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
    found = [settings.get_filter(number) for number in range(settings.get_nfilters())]
    return [(code, values[0] if values else 0) for code, _, values, _ in found]


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
