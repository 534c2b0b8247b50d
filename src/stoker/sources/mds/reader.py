"""The bytes of samples of MDS shards.

A shard is the number of its samples n (uint32), the byte at which each begins and the last one ends (n + 1 times
uint32), a description in JSON, and the samples. It may be compressed as a whole.
"""

from __future__ import annotations

import bz2
import gzip
import threading
import zlib
from collections.abc import Callable

import numpy as np

from stoker.errors import FileChangedError, RecordError, ShardError
from stoker.sources.lines.opened_text import zstd_module
from stoker.sources.mds.shards import Shard
from stoker.sources.per_process import OpenFiles, PerProcess
from stoker.sources.read_ahead import RangedFile
from stoker.sources.storage import File, LocalFile, Storage, Version, opened

_CACHE = 256 << 20
"""Bytes of decompressed shards that a process keeps; at least one shard."""
_TABLES = 64 << 20
"""Bytes of tables of places that a process keeps, of shards in a store; at least one table."""
_PART = 8 << 20
"""Bytes of each request of several at once for a whole shard."""


class ShardReader:
    """Reads samples of shards. Thread safe; each process opens files for itself.

    Of a shard in a store, the table of places is read once and kept, so a sample is one request.

    Args:
        storage: of the shards.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open = OpenFiles(storage)
        self._tables: PerProcess[dict[str, bytes]] = PerProcess(dict)
        self._decompressed: PerProcess[dict[str, bytes]] = PerProcess(dict)
        self._locks: PerProcess[dict[str, threading.Lock]] = PerProcess(dict)

    def sample(self, shard: Shard, number: int) -> bytes:
        """Returns the bytes of a sample of a shard.

        Raises:
            OSError: the shard cannot be read.
            ShardError: it is damaged.
            FileChangedError: it was changed since the dataset was made.
            RecordError: the place of the sample is not in the shard.
        """
        begin, end = np.frombuffer(self._places(shard, number), "<u4").tolist()
        if not 4 * (shard.samples + 2) <= begin <= end <= shard.size:
            raise RecordError(f"it should lie at bytes {begin} to {end} of {shard.size}: the shard is damaged")
        return self._read(shard, begin, end - begin)

    def _places(self, shard: Shard, number: int) -> bytes:
        """Returns the two numbers in the table of places that are of a sample."""
        if shard.compression is not None or isinstance(self._file(shard), LocalFile):
            return self._read(shard, 4 * (1 + number), 8)
        with self._lock(shard):
            table = _kept(self._tables.get(), shard, _TABLES, lambda: self._read(shard, 4, 4 * (shard.samples + 1)))
        return table[4 * number : 4 * number + 8]

    def _read(self, shard: Shard, begin: int, length: int) -> bytes:
        if shard.compression is not None:
            data = self._whole(shard)[begin : begin + length]
        else:
            data = self._file(shard).read(begin, length)
        if len(data) < length:
            raise ShardError(f"{shard.path} ends at byte {begin + len(data)}, within a sample")
        return data

    def _file(self, shard: Shard) -> File:
        file = self._open.get(shard.place, shard.version)
        self._check(shard, file.version)
        return file

    def _whole(self, shard: Shard) -> bytes:
        """Returns a compressed shard, decompressed; threads that want one at once read it once."""
        with self._lock(shard):
            return _kept(self._decompressed.get(), shard, _CACHE, lambda: self._fetched(shard))

    def _fetched(self, shard: Shard) -> bytes:
        file = opened(self._storage, shard.place, shard.version)
        self._check(shard, file.version)
        size = shard.version.size
        if isinstance(file, RangedFile) and size:
            data = b"".join(file.read_ranges([(at, min(at + _PART, size)) for at in range(0, size, _PART)]))
        else:
            data = file.read(0, size)
        return _decompressed(data, shard)

    def _lock(self, shard: Shard) -> threading.Lock:
        return self._locks.get().setdefault(shard.place, threading.Lock())

    def _check(self, shard: Shard, version: Version) -> None:
        if version != shard.version:
            self._open.close()
            raise FileChangedError(f"{shard.path} was changed since the dataset was made. Make the dataset anew.")


def _kept(kept: dict[str, bytes], shard: Shard, most: int, read: Callable[[], bytes]) -> bytes:
    """Returns the bytes that are kept of a shard, or reads them, and lets those go that were used least recently."""
    data = kept.pop(shard.place, None)
    if data is None:
        data = read()
        while kept and sum(map(len, list(kept.values()))) + len(data) > most:
            kept.pop(next(iter(list(kept)), ""), None)
    kept[shard.place] = data  # at the end: the one used last
    return data


def _decompressed(data: bytes, shard: Shard) -> bytes:
    try:
        if shard.compression == "zstd":
            found = _without_zstd(data)
        else:
            found = gzip.decompress(data) if shard.compression == "gz" else bz2.decompress(data)
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise ShardError(f"{shard.path} cannot be decompressed: {error}. It is damaged") from error
    if len(found) != shard.size:
        raise ShardError(f"{shard.path} has {len(found):,} bytes decompressed, and {shard.size:,} in index.json")
    return found


def _without_zstd(data: bytes) -> bytes:
    zstd = zstd_module()
    try:
        return bytes(zstd.decompress(data))
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
