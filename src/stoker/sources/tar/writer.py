"""Writes tar shards in the WebDataset layout, each with its index, atomically."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import secrets
import tarfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from zlib import crc32

import numpy as np

from stoker._core.write_errors import explained
from stoker.datasets.combining import positive
from stoker.errors import DuplicateKeyError, ShardError
from stoker.sources.places import Place
from stoker.sources.storage import Version
from stoker.sources.tar.index import SUFFIX, ShardIndex, written
from stoker.sources.tar.members import BLOCK, is_of_a_sample, padded

_INTEGERS = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))
_TEXTS = frozenset(("txt", "text", "transcript"))
_IMAGES = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
_END = bytes(2 * BLOCK)


class TarWriter:
    """Writes samples to tar shards, with an index beside each: a context manager.

        with TarWriter("train-%06d.tar", max_count=10_000) as writer:
            writer.write({"__key__": "0001", "jpg": data, "cls": 7})

    A shard appears under its name when it is complete; until then it has another name in the same folder. If the block
    raises, the unfinished shard is removed and complete ones stay. The same samples make the same bytes: members carry
    no time, owner or other trace of the machine.

    Args:
        pattern: the path of the shards with a place for their number, `%06d`; without one, there is a single shard.
        max_size: bytes of a shard. A sample that would exceed it begins the next shard; one larger than that has a
            shard of its own.
        max_count: samples of a shard.

    Raises:
        ValueError: a limit is less than 1, or there is a limit, but no `%d` in the pattern.

    Attributes:
        shards: the paths of the complete shards, in order.
    """

    def __init__(self, pattern: Place, *, max_size: int | None = None, max_count: int | None = None) -> None:
        self._pattern = os.fspath(pattern)
        self._max_size = None if max_size is None else positive(max_size, "max_size")
        self._max_count = None if max_count is None else positive(max_count, "max_count")
        self._is_numbered = _is_numbered(self._pattern)
        if not self._is_numbered and (max_size is not None or max_count is not None):
            raise ValueError(f"{self._pattern} has no place for the number of a shard, for instance %06d")
        self.shards: list[str] = []
        self._shard: _OpenShardWriter | None = None

    def write(self, sample: Mapping[str, Any]) -> None:
        """Writes a sample.

        Args:
            sample: `__key__`, and a value for each extension: bytes as they are, or a value that the extension
                encodes: `str` for txt, an integer for cls, a NumPy array for npy, a dict of arrays for npz, a Pillow
                image for jpg, png and webp, tensors for pth, anything that JSON can hold for json. Other keys that
                begin with `__` are left out, so samples of `TarStream` can be written again.

        Raises:
            DuplicateKeyError: the shard has a sample with this key, or the sample two entries of one extension.
            FileExistsError: a shard of this name exists.
            TypeError: a value cannot be encoded under its extension.
            ValueError: the sample has no key, no entries, or a key or extension that would not be read back.
            OSError: the shard cannot be written; it is given up.
        """
        key, members = encoded(sample)
        blocks = [(_header(f"{key}.{extension}", len(data)), data) for extension, data in members.items()]
        size = sum(len(header) + padded(len(data)) for header, data in blocks)
        if self._shard is not None and self._is_full(self._shard, size):
            self._complete(self._shard)
        if self._shard is None:
            path = self._pattern % len(self.shards) if self._is_numbered else self._pattern
            with explained(path, self._left):
                self._shard = _OpenShardWriter(path)
        with explained(self._shard.path, self._left):
            self._shard.add(key, blocks)

    def close(self) -> None:
        """Completes the last shard. Called at the end of the `with` block."""
        if self._shard is not None:
            self._complete(self._shard)

    def _is_full(self, shard: _OpenShardWriter, size: int) -> bool:
        by_count = self._max_count is not None and len(shard.offsets) >= self._max_count
        return by_count or (self._max_size is not None and shard.size + size + len(_END) > self._max_size)

    def _complete(self, shard: _OpenShardWriter) -> None:
        self._shard = None
        with explained(shard.path, self._left):
            shard.complete()
        self.shards.append(shard.path)

    def _left(self) -> str:
        stay = f"{len(self.shards)} complete ones stay" if self.shards else "there is no complete one"
        return f"TarWriter cannot write this shard, which leaves nothing behind; {stay}"

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._shard is not None:
            self._shard.remove()
            self._shard = None

    def __del__(self) -> None:
        shard: _OpenShardWriter | None = self.__dict__.get("_shard")
        if shard is not None and shard.process == os.getpid():  # neither closed nor left: the shard may lack samples
            shard.remove()


class _OpenShardWriter:
    """A shard that is being written under a name of its own.

    Attributes:
        path: its name when it is complete.
        offsets: the byte at which each sample begins.
        process: that writes it; in a forked child, the shard is the parent's.
    """

    def __init__(self, path: str) -> None:
        if os.path.exists(path):
            raise FileExistsError(
                f"{path} exists already, and is not overwritten: delete it, or choose another pattern"
            )
        self.path = path
        self.offsets: list[int] = []
        self.size = 0
        self.process = os.getpid()
        self._is_whole = True  # no write has failed
        self._checks: list[int] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._keys: set[str] = set()
        self._partial = f"{path}.{secrets.token_hex(4)}.partial"
        # unbuffered, so that a forked child has nothing to write a second time; closed by complete() or remove()
        self._file = open(self._partial, "xb", buffering=0)  # noqa: SIM115

    def add(self, key: str, blocks: list[tuple[bytes, bytes]]) -> None:
        self._check_whole()
        if key in self._keys:
            raise DuplicateKeyError(f"{self.path} has a sample with the key {key!r} already")
        self._keys.add(key)
        self.offsets.append(self.size)
        self._checks.append(crc32(blocks[0][0][:BLOCK]))
        parts: list[bytes] = []
        for header, data in blocks:
            parts += (header, data, bytes(padded(len(data)) - len(data)))
            # Without the data of a pax header, as a reader passes the blocks.
            self._digest.update(header if len(header) == BLOCK else header[:BLOCK] + header[-BLOCK:])
        self._write(b"".join(parts))

    def _write(self, data: bytes) -> None:
        self.size += len(data)
        rest = memoryview(data)
        self._is_whole = False
        while rest:
            rest = rest[self._file.write(rest) :]
        self._is_whole = True

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise ShardError(f"{self.path} is incomplete: an earlier write failed. Free the disk, and write it again.")

    def complete(self) -> None:
        """Ends the shard, writes its index, and gives it its name."""
        try:
            self._check_whole()
            end = self.size
            self._write(_END)
            os.fsync(self._file.fileno())
            self._file.close()
            status = os.stat(self._partial)
            index = ShardIndex(
                np.array([*self.offsets, end], np.uint64),
                np.array(self._checks, np.uint32),
                Version(status.st_size, status.st_mtime_ns),
                self._digest.hexdigest(),
            )
            written(index, self.path + SUFFIX)
            os.rename(self._partial, self.path)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._partial)


def encoded(sample: Mapping[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Returns the key of a sample, and the bytes of each extension, as `TarWriter.write` writes them.

    Raises:
        DuplicateKeyError, TypeError, ValueError: as `TarWriter.write` says.
    """
    key = sample.get("__key__")
    if not isinstance(key, str) or not key:
        raise ValueError(f"a sample needs a key, a text under '__key__', and this one has {key!r}")
    if key.startswith("/") or ".." in key.split("/"):
        raise ValueError(f"the key {key!r} leads out of the archive: use a relative path without '..'")
    members: dict[str, bytes] = {}
    for name, value in sample.items():
        if name.startswith("__"):
            continue
        extension = name.lower()
        if "." in key.rpartition("/")[2] or not is_of_a_sample(f"{key}.{extension}") or "/" in name or "\0" in key:
            raise ValueError(
                f"the member {key}.{name} would not be read back as extension {name!r} of the key {key!r}: a key's "
                "last part is a name without a dot, an extension has no slash"
            )
        if extension in members:
            raise DuplicateKeyError(f"the sample {key!r} has two entries of extension {extension!r}")
        members[extension] = _bytes_of(key, extension, value)
    if not members:
        raise ValueError(f"the sample {key!r} has no entries: nothing would be written")
    return key, members


def _bytes_of(key: str, extension: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    kind = extension.rpartition(".")[2]
    data = io.BytesIO()
    if isinstance(value, str) and kind in _TEXTS:
        return value.encode()
    if kind in _INTEGERS and hasattr(value, "__index__"):
        return str(value.__index__()).encode()
    if kind == "json":
        return json.dumps(value).encode()
    if kind == "npy" and isinstance(value, np.ndarray) and not value.dtype.hasobject:
        np.lib.format.write_array(data, value, allow_pickle=False)
    elif kind == "npz" and isinstance(value, Mapping):
        arrays: dict[str, Any] = {name: np.asarray(array) for name, array in value.items()}
        np.savez(data, **arrays)
    elif kind in _IMAGES and callable(getattr(value, "save", None)):
        value.save(data, format=_IMAGES[kind])
    elif kind in ("pth", "pt"):
        importlib.import_module("torch").save(value, data)
    else:
        raise TypeError(
            f"the entry {extension!r} of the sample {key!r} is a {type(value).__name__}, which this extension cannot "
            "encode: pass bytes"
        )
    return data.getvalue()


def _header(name: str, size: int) -> bytes:
    """Returns the header of a member; with a pax header before it if the name is long or not ASCII."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.PAX_FORMAT)


def _is_numbered(pattern: str) -> bool:
    try:
        return pattern % 0 != pattern % 1
    except (TypeError, ValueError):
        return False
