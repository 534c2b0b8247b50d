"""An MDS folder: where it lies, which of its files are there, its shards, and the bytes of their samples."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import FileChangedError, RecordError, ShardError
from stoker.sources.lines.opened_text import zstd_module
from stoker.sources.per_process import OpenFiles, PerProcess
from stoker.sources.places import places_of
from stoker.sources.read_ahead import RangedFile
from stoker.sources.storage import File, LocalFile, LocalStorage, Storage, Version, opened, opened_all
from stoker.sources.storage_of import storage_of
from stoker.sources.urls import check_local, is_remote, scheme_of, shown

INDEX = "index.json"


class FoundFile(NamedTuple):
    """A file of a folder that is there."""

    name: str
    place: str
    version: Version


class MDSFolder:
    """A folder of this machine, or one whose files are read by URL.

    Args:
        folder: its path or URL.
        cache: a folder that keeps the data that is read; None for none.
        cache_size: bytes that the cache may take.

    Raises:
        ValueError: a URL of a scheme that cannot be read, or a pattern leads to several folders.
        OSError: the store cannot be reached, or the folder of the cache cannot be written.

    Attributes:
        path: of the folder; of a URL, without secrets.
        index: the place of index.json.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None,
        cache: str | os.PathLike[str] | None,
        cache_size: int | None,
    ) -> None:
        place = os.fspath(folder)
        if scheme_of(place) == "file" and not os.path.exists(place):
            (place,) = places_of(place, "folders", may_be_folders=True)
        self._is_remote = is_remote(place) and not os.path.exists(place)
        if self._is_remote:
            places = places_of(_joined(place, INDEX), "folders of MDS", storage_options)
            if len(places) > 1:
                raise ValueError(f"{shown(place)} leads to {len(places)} folders: make a dataset of each one")
            self.index = places[0]
            self.path = shown(self.index).removesuffix("/" + INDEX)
        else:
            check_local(place, "folders of MDS")
            self.index, self.path = os.path.join(place, INDEX), place
        self.storage = storage_of(self.index, storage_options, cache, cache_size)

    def read_index(self) -> bytes:
        """Returns the contents of index.json."""
        try:
            file = (self.storage if self._is_remote else LocalStorage()).open(self.index)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"there is no {shown(self.index)}: a folder of MDS has one, each split in a folder of its own"
            ) from None
        return file.read(0, file.version.size)

    def place_of(self, name: str) -> str:
        """Returns the path or the URL of a file of the folder."""
        if not self._is_remote:
            return os.path.join(self.path, name)
        path, mark, query = _split(self.index)
        return path.removesuffix(INDEX) + name + mark + query

    def found(self, names: Sequence[Sequence[str]]) -> list[FoundFile | None]:
        """Returns, for each list of names, the first file that is there; None if none is.

        A store is asked for many files at once, for all by the same place in their lists, and for those that are
        missing one by one.
        """
        if not self._is_remote:
            return [next((file for name in each if (file := self._local(name)) is not None), None) for each in names]
        chosen = [each[0] for each in names]
        several = next((each for each in names if len(each) > 1), None)
        if several is not None and (first := self._first(several)) is not None and first.name == several[-1]:
            chosen = [each[-1] for each in names]
        try:
            places = [self.place_of(name) for name in chosen]
            files = opened_all(self.storage, places)
            return [
                FoundFile(name, place, file.version) for name, place, file in zip(chosen, places, files, strict=True)
            ]
        except (FileNotFoundError, PermissionError):
            return [self._first(each) for each in names]

    def _local(self, name: str) -> FoundFile | None:
        place = self.place_of(name)
        if not os.path.isfile(place):
            return None
        status = os.stat(place)
        return FoundFile(name, place, Version(status.st_size, status.st_mtime_ns))

    def _first(self, names: Sequence[str]) -> FoundFile | None:
        for name in names:
            place = self.place_of(name)
            try:
                return FoundFile(name, place, self.storage.open(place).version)
            except FileNotFoundError:
                pass
            except PermissionError:  # S3's answer for missing objects, to those who may not list
                if name == names[-1]:
                    raise
        return None


def _joined(place: str, name: str) -> str:
    """Returns the URL of a file in a folder."""
    path, mark, query = _split(place)
    return f"{path.rstrip('/')}/{name}{mark}{query}"


def _split(place: str) -> tuple[str, str, str]:
    """Returns a URL up to its query, the question mark, and the query, which signs requests to web servers."""
    return place.partition("?") if scheme_of(place).startswith("http") else (place, "", "")


# The shards of an MDS folder, as its index.json describes them.


_COMPRESSIONS = ("zstd", "gz", "bz2")


@dataclass(frozen=True)
class Shard:
    """A shard, as index.json describes it.

    Attributes:
        path: of the file that is there: the shard, or its compressed form. Of a URL, without secrets.
        compression: its name; None if the file is the shard itself.
        size: of the shard in bytes, decompressed.
        sizes: of the columns; None where each sample states it.
    """

    path: str
    place: str = field(repr=False)
    compression: str | None
    samples: int
    size: int
    version: Version
    names: list[str]
    encodings: list[str]
    sizes: list[int | None]


def shards_in(folder: MDSFolder) -> list[Shard]:
    """Returns the shards of a folder, in order.

    Raises:
        ShardError: index.json is damaged or of another format, or a shard is truncated.
    """
    path, contents = shown(folder.index), folder.read_index()
    try:
        index = json.loads(contents)
        if index["version"] != 2:
            raise ValueError(f"its version is {index['version']}, expected 2")
        entries = list(index["shards"])
        for entry in entries:
            if entry["format"] != "mds":
                raise ValueError(f"the format of a shard is {entry['format']!r}, expected 'mds'")
        names = [_names(entry) for entry in entries]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(path, error) from error
    files = folder.found(names)
    if missing := [shown(folder.place_of(each[0])) for each, file in zip(names, files, strict=True) if file is None]:
        raise FileNotFoundError(
            f"{len(missing)} of {len(entries)} shards of {path} are missing: {missing[:3]}. Copy them there"
        )
    shards: list[Shard] = []
    for entry, shard_file in zip(entries, files, strict=True):
        assert shard_file is not None
        compression = _compression(entry, shard_file)
        try:
            shards.append(_shard(entry, shard_file, compression, shards[-1] if shards else None))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _damaged(path, error) from error
    return shards


def _damaged(path: str, error: Exception) -> ShardError:
    return ShardError(f"{path} is damaged, or not of MDS: {error!r}")


def _names(entry: dict[str, Any]) -> list[str]:
    """Returns the names of the files that hold a shard: of the shard, and of its compressed form if there is one."""
    forms = [entry["raw_data"], *([entry["zip_data"]] if entry.get("zip_data") else [])]
    names = [str(form["basename"]) for form in forms]
    for name in names:
        if os.path.basename(name) != name:
            raise ValueError(f"{name!r} is no name of a file in the folder")
    return names


def _compression(entry: dict[str, Any], file: FoundFile) -> str | None:
    """Returns the name of the compression of the file that is there; None if it is the shard itself."""
    if file.name == entry["raw_data"]["basename"]:
        return None
    compression = str(entry["compression"]).partition(":")[0]
    if compression not in _COMPRESSIONS:
        raise ValueError(
            f"{shown(file.place)} is compressed with {compression!r}; {', '.join(_COMPRESSIONS)} can be read. "
            "Decompress the shards beside the compressed ones"
        )
    if compression == "zstd":
        zstd_module()
    return compression


def _shard(entry: dict[str, Any], file: FoundFile, compression: str | None, before: Shard | None) -> Shard:
    """Returns a shard; it shares the lists of its columns with the one before it, if they are alike."""
    path = shown(file.place)
    raw_size = int(entry["raw_data"]["bytes"])
    size = raw_size if compression is None else int(entry["zip_data"]["bytes"])
    if file.version.size != size:
        raise ShardError(
            f"{path} has {file.version.size:,} bytes, and {size:,} in index.json: was it written and copied completely?"
        )
    names, encodings, sizes = (list(entry[f"column_{what}"]) for what in ("names", "encodings", "sizes"))
    if not len(names) == len(encodings) == len(sizes):
        raise ValueError(f"names, encodings and sizes of the columns of {path} are not of one length")
    if before is not None and (names, encodings, sizes) == (before.names, before.encodings, before.sizes):
        names, encodings, sizes = before.names, before.encodings, before.sizes
    samples = int(entry["samples"])
    return Shard(path, file.place, compression, samples, raw_size, file.version, names, encodings, sizes)


# The bytes of samples of MDS shards.
#
# A shard is the number of its samples n (uint32), the byte at which each begins and the last one ends (n + 1 times
# uint32), a description in JSON, and the samples. It may be compressed as a whole.


_CACHE = 256 << 20
"""Bytes of decompressed shards that a process keeps; at least one shard."""
_TABLES = 64 << 20
"""Bytes of tables of places that a process keeps, of shards in a store; at least one table."""
_PART = 8 << 20
"""Bytes of each request of several at once for a whole shard."""


class ShardReader:
    """Reads samples of shards. Thread safe; each process opens files for itself.

    Of a shard in a store, the table of places is read once and kept, so a sample is one request.
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
            ShardError: it is damaged.
            FileChangedError: it was changed since the dataset was made.
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


def _kept(cache: dict[str, bytes], shard: Shard, most: int, read: Callable[[], bytes]) -> bytes:
    """Returns the bytes that are kept of a shard, or reads them, and lets those go that were used least recently."""
    data = cache.pop(shard.place, None)
    if data is None:
        data = read()
        while cache and sum(map(len, list(cache.values()))) + len(data) > most:
            cache.pop(next(iter(list(cache)), ""), None)
    cache[shard.place] = data  # at the end: the one used last
    return data


def _decompressed(data: bytes, shard: Shard) -> bytes:
    try:
        if shard.compression == "zstd":
            content = _without_zstd(data)
        else:
            content = gzip.decompress(data) if shard.compression == "gz" else bz2.decompress(data)
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise ShardError(f"{shard.path} cannot be decompressed: {error}. It is damaged") from error
    if len(content) != shard.size:
        raise ShardError(f"{shard.path} has {len(content):,} bytes decompressed, and {shard.size:,} in index.json")
    return content


def _without_zstd(data: bytes) -> bytes:
    zstd = zstd_module()
    try:
        return bytes(zstd.decompress(data))
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
