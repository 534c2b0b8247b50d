"""Rows of a Zarr array, with a cache of decompressed chunks, read without the threads of zarr's own event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from stoker.datasets.gather import Array
from stoker.errors import ArrayFileError, MissingExtraError, StokerError
from stoker.extend import Indices
from stoker.sources.arrays.stored import StoredArray
from stoker.sources.arrays.zarr_metadata import changed, metadata_file, version_of
from stoker.sources.storage import Version

CACHE = 64 << 20
"""Bytes of decompressed chunks that a process keeps for a dataset."""


class ChunkCache:
    """Decompressed chunks, those used last, up to `CACHE` bytes. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # made where it is used: a fork cannot copy it locked
        self._held: dict[tuple[Any, int], Array] = {}
        self._size = 0

    def get(self, key: tuple[Any, int]) -> Array | None:
        """Returns a chunk; None if it is not held."""
        with self._lock:
            chunk = self._held.pop(key, None)
            if chunk is not None:
                self._held[key] = chunk  # now the last one
            return chunk

    def add(self, key: tuple[Any, int], chunk: Array) -> None:
        """Keeps a chunk, and drops those that were not used for longest."""
        with self._lock:
            if key not in self._held:
                self._held[key] = chunk
                self._size += chunk.nbytes
            while self._size > CACHE:
                self._size -= self._held.pop(next(iter(self._held))).nbytes


class FolderOfArray(Protocol):
    """The folder of an array, on this machine or in a store.

    Attributes:
        zarr_format: 2 or 3.
    """

    name: str
    store: Any
    zarr_format: int

    def check(self) -> None:
        """Raises FileChangedError if the array is another one than when it was opened, unless reads check that."""


class ZarrFolder:
    """The folder of an array on this machine."""

    def __init__(self, path: str) -> None:
        self.name = path
        self.store: Any = path
        self._metadata = metadata_file(path)
        self._version = _version(self._metadata)
        self.zarr_format = version_of(self._metadata)

    def check(self) -> None:
        """Raises FileChangedError if the array is another one now: lost chunks would read as fill values."""
        if _version(self._metadata) != self._version:
            raise changed(self._metadata)


class ZarrRows:
    """Rows of one array. Thread safe.

    Args:
        cache: shared by the arrays of a dataset.
        identity: of the array in the cache.

    Raises:
        ArrayFileError: it cannot open the array.
        FileChangedError: the array is another one than when the dataset was made.
    """

    def __init__(self, folder: FolderOfArray, stored: StoredArray, cache: ChunkCache, identity: Any) -> None:
        zarr = zarr_module()
        self._folder = folder
        self._dtype = stored.row_dtype
        self._cache = cache
        self._identity = identity
        self._length = stored.shape[0]
        self._chunk_rows = max(1, stored.chunk_rows)
        row_bytes = int(np.prod(stored.shape[1:])) * stored.dtype.itemsize
        self._keeps = self._chunk_rows * row_bytes <= CACHE // 2
        try:
            opened = zarr.open_array(store=folder.store, mode="r", zarr_format=folder.zarr_format)
            self._array = result_of(opened)
        except StokerError:
            raise
        except Exception as error:
            self._raise_of_store(error)
            raise ArrayFileError(f"{folder.name} cannot be opened as a Zarr array: {error}") from error
        if (self._array.shape, np.dtype(self._array.dtype).newbyteorder("=")) != (stored.shape, self._dtype):
            raise changed(folder.name)

    def _raise_of_store(self, error: Exception) -> None:
        """Raises an error that says which credentials a store does not take."""
        if isinstance(error, PermissionError) and not isinstance(self._folder, ZarrFolder):
            raise error

    def row(self, row: int) -> Any:
        """Returns a row in memory of its own, in the byte order of this machine."""
        chunk, first = self._chunk(row)
        return np.array(chunk[row - first], self._dtype)[()]

    def take(self, rows: Indices, out: Array) -> None:
        """Writes rows, counted from 0, into `out`."""
        self.put(rows, out, np.arange(len(rows)))

    def put(self, rows: Indices, out: Array, places: Indices) -> None:
        """Writes rows into these places of `out`. Each chunk is decompressed once."""
        order = np.argsort(rows, kind="stable")
        in_order, places = rows[order], places[order]
        begin = 0
        while begin < len(rows):
            chunk, first = self._chunk(int(in_order[begin]))
            end = int(np.searchsorted(in_order, first + len(chunk)))
            out[places[begin:end]] = chunk[in_order[begin:end] - first]
            begin = end

    def _chunk(self, row: int) -> tuple[Array, int]:
        """Returns the chunk that holds a row, and the number of its first row; of large chunks only the row."""
        if not self._keeps:
            return self._read(row, row + 1), row
        number = row // self._chunk_rows
        first = number * self._chunk_rows
        key = (self._identity, number)
        chunk = self._cache.get(key)
        if chunk is None:
            chunk = self._read(first, min(first + self._chunk_rows, self._length))
            self._cache.add(key, chunk)
        return chunk, first

    def _read(self, begin: int, end: int) -> Array:
        try:
            rows: Array = np.asarray(result_of(self._array.getitem((slice(begin, end),))))
        except StokerError:
            raise
        except Exception as error:  # codecs raise errors of any class
            self._raise_of_store(error)
            raise ArrayFileError(
                f"rows {begin} to {end - 1} of {self._folder.name} cannot be read: {type(error).__name__}: {error}. A "
                "chunk is damaged or truncated, or its codec is not installed."
            ) from error
        self._folder.check()
        return rows


def _version(path: str) -> Version:
    """Returns the version of a file."""
    status = os.stat(path)
    return Version(status.st_size, status.st_mtime_ns)


def zarr_module() -> Any:
    """Returns the asynchronous functions of zarr: the others start threads."""
    try:
        import zarr.api.asynchronous
    except ImportError as error:
        raise MissingExtraError(
            f"a Zarr folder needs the package zarr, which cannot be imported ({error}): install the extra stoker[zarr]."
        ) from error
    return zarr.api.asynchronous


class _AtOnce(ThreadPoolExecutor):
    """Calls each function in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            # Without this frame, which holds the future: the cycle would keep the callers' memory until it is collected
            future.set_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        else:
            future.set_result(result)
        return future


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of a coroutine; what it hands to threads is called here instead. Thread safe.

    In a thread that runs an event loop, as in a notebook, it runs in a thread of its own, which ends with it.
    """
    if not _runs_a_loop():
        return _run(coroutine)
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(_run(coroutine))
        except BaseException as error:
            future.set_exception(error)

    beside = threading.Thread(target=run, name="stoker: one read of zarr")
    beside.start()
    beside.join()
    return future.result()


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.SelectorEventLoop()
    loop.set_default_executor(_AtOnce())
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
