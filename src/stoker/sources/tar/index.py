"""Indexes of tar shards: the bytes at which samples begin, in a file beside each shard.

The file `shard.tar.index` holds a line of JSON, padded with spaces to a multiple of 64 bytes, and two columns of
little-endian integers: the byte at which each sample begins and the one at which the last ends (n + 1 times uint64),
and the CRC-32 of the first header block of each sample (n times uint32). The line holds the version of the format, the
shard's size, time of modification and ETag, and a hash of all its header blocks: a changed shard is recognized by them.

The index of a shard in an object store is searched for beside the shard, and in a folder of this machine, where those
that are made lie: the user's cache folder, or one that is given.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np

from stoker.errors import ShardIndexError
from stoker.sources.index_file import index_place
from stoker.sources.object_client import WHOLE
from stoker.sources.object_store import ObjectStorage
from stoker.sources.places import Place, places_of
from stoker.sources.read_ahead import ahead
from stoker.sources.storage import File, Storage, Version, opened_all
from stoker.sources.storage_of import storage_of
from stoker.sources.tar.members import SMALL_WINDOW, MemberReader, repeated, warn_of_no_end
from stoker.sources.urls import STORES, is_remote, scheme_of, shown, with_suffix

SUFFIX = ".index"
_FORMAT = "stoker tar index 1"
_ALIGNED = 64
_CANNOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}

Offsets = np.ndarray[Any, np.dtype[np.uint64]]
Checks = np.ndarray[Any, np.dtype[np.uint32]]
Folder = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The places of the samples in a shard.

    Attributes:
        offsets: the byte at which each sample begins, and the byte at which the last one ends: n + 1 times uint64.
        checks: the CRC-32 of the first header block of each sample: n times uint32; None in an index of another
            library.
        digest: a hash of the shard's header blocks; empty in an index of another library.
    """

    offsets: Offsets
    checks: Checks | None
    version: Version
    digest: str = ""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def has_end(self) -> bool:
        """Whether the shard has a mark of its end, or members of no sample, behind the last sample."""
        return int(self.offsets[-1]) < self.version.size


def scanned(file: File, path: str) -> ShardIndex:
    """Returns the index of a shard, made from its headers. The data of large members is skipped.

    Raises:
        ShardError: the shard is truncated or damaged.
        DuplicateKeyError: two samples have the same key.
    """
    file = ahead(file)
    digest = hashlib.blake2b(digest_size=16)
    checks: list[int] = []
    offsets: list[int] = []
    keys: set[str] = set()
    sums: dict[int, int] = {}  # of the headers of the current member, by their bytes

    def seen(block: bytes) -> None:
        digest.update(block)
        sums[reader.position] = crc32(block)

    reader = MemberReader(file, path, window=SMALL_WINDOW, on_header=seen, on_no_end=lambda at: None)
    previous: str | None = None
    while reader.advance():
        key, check = reader.key, sums[reader.begin]
        sums.clear()
        if key == previous:
            continue
        assert key is not None
        if key in keys:
            raise repeated(key, path, reader.begin)
        keys.add(key)
        offsets.append(reader.begin)
        checks.append(check)
        previous = key
    offsets.append(reader.position)
    return ShardIndex(np.array(offsets, np.uint64), np.array(checks, np.uint32), file.version, digest.hexdigest())


def encoded(index: ShardIndex) -> bytes:
    """Returns the contents of an index's file."""
    assert index.checks is not None
    head = {
        "format": _FORMAT,
        "samples": len(index),
        "shard_size": index.version.size,
        "shard_mtime_ns": index.version.mtime_ns,
        "shard_tag": index.version.tag,
        "headers": index.digest,
    }
    line = json.dumps(head).encode()
    line += b" " * (-(len(line) + 1) % _ALIGNED) + b"\n"
    return line + index.offsets.astype("<u8").tobytes() + index.checks.astype("<u4").tobytes()


def written(index: ShardIndex, path: str) -> None:
    """Writes an index to a file, atomically.

    Raises:
        OSError: it cannot be written; no partial file is left.
    """
    data = encoded(index)
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
        return _parsed(file.read(), path)


def _parsed(data: bytes, path: str) -> ShardIndex:
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
        version = Version(int(head["shard_size"]), int(head["shard_mtime_ns"]), str(head.get("shard_tag", "")))
        return ShardIndex(offsets, checks, version, str(head["headers"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ShardIndexError(
            f"{path} is not a whole index of Stoker's ({error}). Delete it, or make it anew: "
            "stoker.index_shards(shards, overwrite=True)."
        ) from None


def belongs(index: ShardIndex, version: Version) -> bool:
    """Returns whether an index is of a shard of this version, as far as versions tell.

    An index that was made of a local copy, and uploaded with it, knows no ETag: sizes are compared. Every read compares
    the sample's first header with the index.
    """
    is_copy = bool(version.tag) and not index.version.tag
    return index.version == version or (is_copy and index.version.size == version.size)


def checked(index: ShardIndex, index_path: str, file: File, path: str) -> ShardIndex:
    """Returns an index of this shard: `index`, if it belongs to the shard as it is now.

    If only the time of modification differs, as after a copy, the headers are read and compared.

    Raises:
        ShardIndexError: the index is not of this shard, or the shard has changed.
    """
    now = file.version
    if belongs(index, now):
        return replace(index, version=now)
    if index.version.size == now.size and scanned(file, path).digest == index.digest:
        return replace(index, version=now)
    raise ShardIndexError(
        f"{index_path} does not belong to {path}: it is of a shard of {index.version.size} bytes, this one has "
        f"{now.size}{' and other members' if now.size == index.version.size else ''}. The shard was changed after it "
        "was indexed, or the index is another shard's. Make it anew: stoker.index_shards(shards, overwrite=True)."
    )


def local_place(path: str, folder: Folder | None) -> str:
    """Returns the file of this machine in which the index of a shard lies, or would.

    Args:
        folder: of indexes; None for the shard's own folder, or the user's cache folder if the shard is remote.
    """
    return index_place(path, SUFFIX, folder)


def existing_index(path: str, storage: Storage, folder: Folder | None = None) -> tuple[ShardIndex, str] | None:
    """Returns the index of a shard, and where it was found: on this machine, or beside a remote shard. None if there is
    none. It may be of another version of the shard.

    Raises:
        ShardIndexError: it is damaged.
    """
    place = local_place(path, folder)
    if os.path.exists(place):
        return loaded(place), place
    return _beside(path, storage) if is_remote(path) else None


def _beside(path: str, storage: Storage) -> tuple[ShardIndex, str] | None:
    """Returns the index beside a remote shard, and its URL; None if there is none."""
    beside = with_suffix(path, SUFFIX)
    try:
        data = storage.read(beside, 0, WHOLE)
    except (FileNotFoundError, PermissionError):  # stores that may not be listed refuse names that are not there
        return None
    return (_parsed(data, shown(beside)), shown(beside)) if _FORMAT.encode() in data[:_ALIGNED] else None


def index_of(path: str, file: File, storage: Storage, folder: Folder | None = None) -> ShardIndex:
    """Returns the index of a shard: the one that exists, or a new one, which is written if its folder allows it.

    Raises:
        ShardError: the shard is truncated or damaged.
        ShardIndexError: the index does not belong to the shard. An index of a remote shard is then made anew.
        DuplicateKeyError: two samples have the same key.
    """
    name, place = shown(path), local_place(path, folder)
    existing = existing_index(path, storage, folder)
    if existing is not None and (not is_remote(path) or belongs(existing[0], file.version)):
        index = checked(*existing, file, name)
        if existing[1] == place or not is_remote(path):
            return index
    else:
        index = scanned(file, name)
    try:
        _written_locally(index, place, folder is not None or is_remote(path))
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:  # else the index lives in memory: it is made anew the next time
            raise
    return index


def _written_locally(index: ShardIndex, place: str, makes_folder: bool) -> None:
    if makes_folder:
        os.makedirs(os.path.dirname(place), exist_ok=True)
    written(index, place)


def index_shards(
    shards: Place | Iterable[Place],
    overwrite: bool = False,
    *,
    index_folder: Folder | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Writes an index beside each shard, and returns the paths of the indexes.

    `TarDataset` does this itself at its first use; a job of many processes saves time if it is done once before.
    Indexing reads only headers of large members, about 1 million members in 5 s. Of remote shards, members below 1 MB
    are read whole.

    Args:
        shards: a path, URL, glob or brace pattern, or several.
        overwrite: make indexes anew that exist; without it they are checked and kept.
        index_folder: a folder of this machine to write the indexes to. None for beside the shard: that of a shard in a
            bucket is uploaded, that of one on a web server is written to the user's cache folder.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        ShardError: a shard is truncated or damaged.
        ShardIndexError: an existing index does not belong to its shard.
        DuplicateKeyError: two samples of a shard have the same key.
        OSError: an index cannot be written.
    """
    places = places_of(shards, "shards", storage_options)
    storage = storage_of(places, storage_options)
    indexes = []
    for path, file in zip(places, opened_all(storage, places), strict=True):
        uploads = index_folder is None and is_remote(path) and STORES[scheme_of(path)] not in ("http", "hf")
        existing = None
        if not overwrite:
            existing = _beside(path, storage) if uploads else existing_index(path, storage, index_folder)
        if existing is not None:
            checked(*existing, file, shown(path))
            indexes.append(existing[1])
            continue
        index = scanned(file, shown(path))
        if not index.has_end:
            warn_of_no_end(shown(path))
        if uploads:
            ObjectStorage(storage_options).write(path + SUFFIX, encoded(index))
        else:
            _written_locally(index, local_place(path, index_folder), index_folder is not None or is_remote(path))
        indexes.append(path + SUFFIX if uploads else local_place(path, index_folder))
    return indexes
