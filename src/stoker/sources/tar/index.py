"""Indexes of tar shards: the bytes at which samples begin, in a file beside each shard.

The file `shard.tar.index` holds a line of JSON, padded with spaces to a multiple of 64 bytes, and two columns of
little-endian integers: the byte at which each sample begins and the one at which the last ends (n + 1 times uint64),
and the CRC-32 of the first header block of each sample (n times uint32). The line holds the version of the format, the
shard's size and time of modification, and a hash of all its header blocks, by which a changed shard is recognized.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from stoker.errors import ShardIndexError
from stoker.sources.places import Place, places_of
from stoker.sources.storage import File, LocalStorage, Storage, Version
from stoker.sources.tar.members import SMALL_WINDOW, MemberReader, repeated

SUFFIX = ".index"
_FORMAT = "stoker tar index 1"
_ALIGNED = 64
_CANNOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}

Offsets = np.ndarray[Any, np.dtype[np.uint64]]
Checks = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The places of the samples in a shard.

    Attributes:
        offsets: the byte at which each sample begins, and the byte at which the last one ends: n + 1 times uint64.
        checks: the CRC-32 of the first header block of each sample: n times uint32; None in an index of another
            library.
        version: of the shard that was indexed.
        digest: a hash of the shard's header blocks; empty in an index of another library.
    """

    offsets: Offsets
    checks: Checks | None
    version: Version
    digest: str = ""

    def __len__(self) -> int:
        return len(self.offsets) - 1


def scanned(file: File, path: str) -> ShardIndex:
    """Returns the index of a shard, made from its headers. The data of large members is skipped.

    Raises:
        ShardError: the shard is truncated or damaged.
        DuplicateKeyError: two samples have the same key.
    """
    digest = hashlib.blake2b(digest_size=16)
    checks: list[int] = []
    offsets: list[int] = []
    keys: set[str] = set()
    reader = MemberReader(file, path, window=SMALL_WINDOW, on_header=digest.update)
    previous: str | None = None
    while reader.advance():
        key = reader.key
        if key == previous:
            continue
        assert key is not None
        if key in keys:
            raise repeated(key, path, reader.begin)
        keys.add(key)
        offsets.append(reader.begin)
        previous = key
    offsets.append(reader.position)
    for begin in offsets[:-1]:
        checks.append(crc32(file.read(begin, 512)))
    return ShardIndex(np.array(offsets, np.uint64), np.array(checks, np.uint32), file.version, digest.hexdigest())


def written(index: ShardIndex, path: str) -> None:
    """Writes an index to a file, atomically.

    Raises:
        OSError: it cannot be written; no partial file is left.
    """
    assert index.checks is not None
    head = {
        "format": _FORMAT,
        "samples": len(index),
        "shard_size": index.version.size,
        "shard_mtime_ns": index.version.mtime_ns,
        "headers": index.digest,
    }
    line = json.dumps(head).encode()
    line += b" " * (-(len(line) + 1) % _ALIGNED) + b"\n"
    data = line + index.offsets.astype("<u8").tobytes() + index.checks.astype("<u4").tobytes()
    partial = f"{path}.{secrets.token_hex(4)}.partial"
    try:
        with open(partial, "xb") as file:
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def loaded(path: str) -> ShardIndex:
    """Returns the index in a file that `written` has written.

    Raises:
        ShardIndexError: the file is damaged, or of another format.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    line, _, columns = data.partition(b"\n")
    try:
        head = json.loads(line)
        if head["format"] != _FORMAT:
            raise ValueError(f"its format is {head['format']!r}, expected {_FORMAT!r}")
        samples = head["samples"]
        offsets = np.frombuffer(columns, "<u8", samples + 1)
        checks = np.frombuffer(columns, "<u4", samples, 8 * (samples + 1))
        if len(columns) != 8 * (samples + 1) + 4 * samples:
            raise ValueError(f"it has {len(columns)} bytes of columns for {samples} samples")
        version = Version(int(head["shard_size"]), int(head["shard_mtime_ns"]))
        return ShardIndex(offsets, checks, version, str(head["headers"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ShardIndexError(
            f"{path} is not a whole index of Stoker's ({error}). Delete it, or make it anew: "
            "stoker.index_shards(shards, overwrite=True)."
        ) from None


def checked(index: ShardIndex, index_path: str, file: File, path: str) -> ShardIndex:
    """Returns an index of this shard: `index`, if it belongs to the shard as it is now.

    If only the time of modification differs, as after a copy, the headers are read and compared.

    Raises:
        ShardIndexError: the index is not of this shard, or the shard has changed.
    """
    now = file.version
    if index.version == now:
        return index
    if index.version.size == now.size and scanned(file, path).digest == index.digest:
        return ShardIndex(index.offsets, index.checks, now, index.digest)
    raise ShardIndexError(
        f"{index_path} does not belong to {path}: it is of a shard of {index.version.size} bytes, this one has "
        f"{now.size}{' and other members' if now.size == index.version.size else ''}. The shard was changed after it "
        "was indexed, or the index is another shard's. Make it anew: stoker.index_shards(shards, overwrite=True)."
    )


def index_of(path: str, storage: Storage) -> ShardIndex:
    """Returns the index of a shard: the file beside it, or a new one, which is written there if the folder allows it.

    Raises:
        ShardError: the shard is truncated or damaged.
        ShardIndexError: the index beside the shard does not belong to it.
        DuplicateKeyError: two samples have the same key.
        OSError: the shard cannot be read.
    """
    file = storage.open(path)
    index_path = path + SUFFIX
    if os.path.exists(index_path):
        return checked(loaded(index_path), index_path, file, path)
    index = scanned(file, path)
    try:
        written(index, index_path)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:  # else the index lives in memory: it is made anew the next time
            raise
    return index


def index_shards(shards: Place | Iterable[Place], overwrite: bool = False) -> list[str]:
    """Writes an index beside each shard, and returns the paths of the indexes.

    `TarDataset` does this itself at its first use; a job of many processes saves time if it is done once before.
    Indexing reads only headers of large members, about 1 million members in 5 s.

    Args:
        shards: a path, glob or brace pattern, or several.
        overwrite: make indexes anew that exist; without it they are checked and kept.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        ShardError: a shard is truncated or damaged.
        ShardIndexError: an existing index does not belong to its shard.
        DuplicateKeyError: two samples of a shard have the same key.
        OSError: an index cannot be written.
    """
    storage = LocalStorage()
    made = []
    for path in places_of(shards, "shards"):
        file, index_path = storage.open(path), path + SUFFIX
        if os.path.exists(index_path) and not overwrite:
            checked(loaded(index_path), index_path, file, path)
        else:
            written(scanned(file, path), index_path)
        made.append(index_path)
    return made
