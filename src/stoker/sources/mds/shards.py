"""The shards of an MDS folder: what its index.json says, and the bytes of their samples.

A shard is the number of its samples n (uint32), the byte at which each begins and the last one ends (n + 1 times
uint32), a description in JSON, and the samples. It may be compressed as a whole.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import FileChangedError, RecordError, ShardError
from stoker.sources.lines.opened_text import zstd_module
from stoker.sources.per_process import OpenFiles, PerProcess
from stoker.sources.storage import LocalStorage, Version
from stoker.sources.urls import check_local

_CACHE = 256 << 20
"""Bytes of decompressed shards that a process keeps; at least one shard."""
_COMPRESSIONS = ("zstd", "gz", "bz2")


@dataclass(frozen=True)
class Shard:
    """A shard, as index.json describes it.

    Attributes:
        path: of the file that is there: the shard, or its compressed form.
        compression: its name; None if the file is the shard itself.
        samples: their number.
        size: of the shard in bytes, decompressed.
        version: of the file.
        names: of the columns.
        encodings: of the columns.
        sizes: of the columns; None where each sample states it.
    """

    path: str
    compression: str | None
    samples: int
    size: int
    version: Version
    names: list[str]
    encodings: list[str]
    sizes: list[int | None]


def shards_in(folder: str) -> list[Shard]:
    """Returns the shards of a folder, in order.

    Raises:
        FileNotFoundError: there is no index.json, or a shard is missing.
        ShardError: index.json is damaged or of another format, or a shard is truncated.
        MissingExtraError: a shard is compressed with zstd, and its package is not installed.
        ValueError: a shard is compressed in another way, or the folder is a URL.
    """
    check_local(
        folder, "folders of MDS", "Or pack it once into tar shards or Parquet (stoker pack), which are read by URL."
    )
    path = os.path.join(folder, "index.json")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no {path}: a folder of MDS has one, each split in a folder of its own")
    try:
        with open(path, encoding="utf-8") as file:
            index = json.load(file)
        if index["version"] != 2:
            raise ValueError(f"its version is {index['version']}, expected 2")
        entries = list(index["shards"])
        for entry in entries:
            if entry["format"] != "mds":
                raise ValueError(f"the format of a shard is {entry['format']!r}, expected 'mds'")
        files = [_file_of(folder, entry) for entry in entries]
        missing = [_path(folder, entry["raw_data"]) for entry, file in zip(entries, files, strict=True) if not file]
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} of {len(entries)} shards of {path} are missing: {missing[:3]}. Copy them into the "
                "folder; Stoker does not download them"
            )
        shards: list[Shard] = []
        for entry, found in zip(entries, files, strict=True):
            assert found is not None
            shards.append(_shard(entry, found, shards[-1] if shards else None))
        return shards
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, _CompressionError):
            raise ValueError(str(error)) from None
        raise ShardError(f"{path} is damaged, or not of MDS: {error!r}") from error


class _CompressionError(ValueError):
    """A compression that cannot be read."""


def _path(folder: str, data: dict[str, Any]) -> str:
    name = str(data["basename"])
    if os.path.basename(name) != name:
        raise ValueError(f"{name!r} is no name of a file in the folder")
    return os.path.join(folder, name)


def _file_of(folder: str, entry: dict[str, Any]) -> tuple[str, str | None, int] | None:
    """Returns path, compression and size of the file of a shard that is there; None if there is none."""
    path = _path(folder, entry["raw_data"])
    if os.path.isfile(path):
        return path, None, int(entry["raw_data"]["bytes"])
    packed = entry.get("zip_data")
    if not packed or not os.path.isfile(path := _path(folder, packed)):
        return None
    compression = str(entry["compression"]).partition(":")[0]
    if compression not in _COMPRESSIONS:
        raise _CompressionError(
            f"{path} is compressed with {compression!r}; {', '.join(_COMPRESSIONS)} can be read. Decompress the shards "
            "beside the compressed ones"
        )
    if compression == "zstd":
        zstd_module()
    return path, compression, int(packed["bytes"])


def _shard(entry: dict[str, Any], file: tuple[str, str | None, int], before: Shard | None) -> Shard:
    """Returns a shard; it shares the lists of its columns with the one before it, if they are alike."""
    path, compression, size = file
    status = os.stat(path)
    if status.st_size != size:
        raise ShardError(
            f"{path} has {status.st_size:,} bytes, and {size:,} in index.json: was it written and copied completely?"
        )
    names, encodings, sizes = (list(entry[f"column_{what}"]) for what in ("names", "encodings", "sizes"))
    if not len(names) == len(encodings) == len(sizes):
        raise ValueError(f"names, encodings and sizes of the columns of {path} are not of one length")
    if before is not None and (names, encodings, sizes) == (before.names, before.encodings, before.sizes):
        names, encodings, sizes = before.names, before.encodings, before.sizes
    version = Version(status.st_size, status.st_mtime_ns)
    raw_size = int(entry["raw_data"]["bytes"])
    return Shard(path, compression, int(entry["samples"]), raw_size, version, names, encodings, sizes)


class ShardReader:
    """Reads samples of shards. Thread safe; each process opens files for itself.

    Args:
        shards: all shards.
    """

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards
        self._open = OpenFiles(LocalStorage())
        self._decompressed: PerProcess[dict[str, bytes]] = PerProcess(dict)

    def sample(self, shard: Shard, number: int) -> bytes:
        """Returns the bytes of a sample of a shard.

        Raises:
            OSError: the shard cannot be read.
            ShardError: it is damaged.
            FileChangedError: it was changed since the dataset was made.
            RecordError: the place of the sample is not in the shard.
        """
        place = 4 * (1 + number)
        begin, end = np.frombuffer(self._read(shard, place, 8), "<u4").tolist()
        if not 4 * (shard.samples + 2) <= begin <= end <= shard.size:
            raise RecordError(f"it should lie at bytes {begin} to {end} of {shard.size}: the shard is damaged")
        return self._read(shard, begin, end - begin)

    def _read(self, shard: Shard, begin: int, length: int) -> bytes:
        if shard.compression is not None:
            data = self._whole(shard)[begin : begin + length]
        else:
            file = self._open.get(shard.path)
            self._check(shard, file.version)
            data = file.read(begin, length)
        if len(data) < length:
            raise ShardError(f"{shard.path} ends at byte {begin + len(data)}, within a sample")
        return data

    def _whole(self, shard: Shard) -> bytes:
        """Returns a compressed shard, decompressed."""
        kept = self._decompressed.get()
        data = kept.pop(shard.path, None)
        if data is None:
            file = LocalStorage().open(shard.path)
            self._check(shard, file.version)
            data = _decompressed(file.read(0, shard.version.size), shard)
            while kept and sum(map(len, list(kept.values()))) + len(data) > _CACHE:
                kept.pop(next(iter(list(kept))), None)
        kept[shard.path] = data  # at the end: the one used last
        return data

    def _check(self, shard: Shard, version: Version) -> None:
        if version != shard.version:
            self._open.close()
            raise FileChangedError(f"{shard.path} was changed since the dataset was made. Make the dataset anew.")


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
