"""A store of files whose blocks are kept on the local disk: `cached(storage, folder, size)`. A failed write disables
the cache.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from stoker.datasets.combining import positive
from stoker.errors import StokerWarning
from stoker.sources.block_cache import BlockCache, BlockClaim
from stoker.sources.block_file import on_disk, size_of
from stoker.sources.storage import File, Storage, Version

BLOCK = 4 << 20
"""Bytes that are read from the store, and kept, together."""


def cached(
    storage: Storage,
    folder: str | os.PathLike[str] | None,
    size_limit: int | None,
    *,
    evict: bool = True,
    name: str = "",
) -> Storage:
    """Returns a store that keeps what it reads of `storage` in `folder`; `storage` itself if that is None.

    The arguments are those of `CachedStorage`.

    Raises:
        TypeError, ValueError: there is a limit without a folder, a folder without a limit, or the limit is no number
            or too small.
    """
    if folder is None:
        if size_limit is not None:
            raise ValueError("cache_size= limits a cache: pass its folder too, cache=")
        return storage
    if size_limit is None:
        raise ValueError(f"cache={os.fspath(folder)!r} needs a limit in bytes: pass cache_size= too")
    return CachedStorage(storage, folder, size_limit, evict=evict, name=name)


class CachedStorage:
    """The files of another store, read in blocks that are kept in a folder of the local disk.

    All processes of a machine may share the folder, read and write it at once, and be killed at any moment. The folder
    takes no more than `size_limit`. Each read verifies a checksum; a damaged block is read again from the store. A
    block belongs to a version of its file: `open` asks the store for the version, and a file that has changed is read
    anew. A file without a known version (its store tells only the size) is read without the cache.

    A block that several threads or processes want at once is read once; the others wait for it, at most 10 s. If the
    folder cannot be written, for instance because the disk is full, files are read without the cache, and one
    `StokerWarning` says so.

    Names of files in the folder are hashes of the URL without user, password and signature, so they hold no secret and
    stay the same when a URL is signed anew. The contents are as secret as the files are: the folder is created for this
    user only. Anyone who may read the folder may read them.

    Picklable; holds nothing open. Thread and process safe as `storage` is.

    Args:
        storage: the store. Its files must raise an error, rather than return bytes of another version than `version`.
        folder: on a local disk; created if it does not exist.
        size_limit: bytes on disk, at least those of two blocks.
        block_size: bytes that are read from the store, and kept, together.
        evict: whether a full cache removes the least recently used blocks. If the data is larger than the cache and
            each epoch reads all of it, False gives more hits: what is in the cache stays.
        name: tells apart stores with the same URLs, for instance the endpoint. It must not hold a secret.

    Raises:
        TypeError, ValueError: a size is no positive integer, or the limit is too small.
        NotImplementedError: the system has no `flock` (Windows).
    """

    def __init__(
        self,
        storage: Storage,
        folder: str | os.PathLike[str],
        size_limit: int,
        *,
        block_size: int = BLOCK,
        evict: bool = True,
        name: str = "",
    ) -> None:
        self.storage = storage
        self.block_size = positive(block_size, "block_size")
        least = 2 * on_disk(size_of(self.block_size))
        if positive(size_limit, "the size of a cache") < least:
            raise ValueError(
                f"a cache of {size_limit} bytes is too small: two blocks of {block_size} take {least}. Pass a larger "
                "size, or none to read without a cache."
            )
        self.blocks = BlockCache(os.fspath(folder), size_limit, evict)
        self.name = name
        self.failures = CacheFailures(self.blocks)

    def open(self, path: str) -> File:
        """Opens a file for reading; asks the store for its version."""
        return self._kept(self.storage.open(path), path)

    def open_known(self, path: str, version: Version) -> File:
        """Opens a file whose version is known, without asking the store if that has this method too."""
        known = getattr(self.storage, "open_known", None)
        return self.open(path) if known is None else self._kept(known(path, version), path)

    def _kept(self, file: File, path: str) -> File:
        if not any(value for field, value in file.version._asdict().items() if field != "size"):
            return file  # its version is unknown
        return CachedFile(file, path, self.blocks, self.failures, self.block_size, self.name)

    def read(self, path: str, begin: int, length: int) -> bytes:
        return self.open(path).read(begin, length)

    def read_whole(self, path: str) -> bytes:
        """Returns the contents of a file."""
        file = self.open(path)
        return file.read(0, file.version.size)


# After a failed write, disables the cache in this process and warns once.


PAUSE = 60.0
"""Seconds for which a process does not write to a cache that it could not write to."""
SILENCE = 600.0
"""Seconds for which no process of the machine tells the user again."""

_log = logging.getLogger("stoker")


class CacheFailures:
    """The failed writes of one process to a cache. Thread safe; a copy in another process knows of none."""

    def __init__(self, blocks: BlockCache) -> None:
        self._blocks = blocks
        self._until = 0.0  # by the monotonic clock

    @property
    def is_usable(self) -> bool:
        """Whether the cache may be written: no write has failed in the last minute."""
        return time.monotonic() >= self._until

    def gave_up(self, error: OSError) -> None:
        """Stops writing for a minute. Warns, unless a process of the machine has done so in the last ten."""
        self._until = time.monotonic() + PAUSE
        cause = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error.strerror or error)
        message = (
            f"the cache in {self._blocks.folder} cannot be written ({cause}): files are read without it. Make room on "
            "the disk, or choose another folder or a smaller size."
        )
        if self._blocks.is_first_to_tell(within=SILENCE):
            warnings.warn(message, StokerWarning, stacklevel=2)
        else:
            _log.info(message)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_until": 0.0}


# A file of another store, read through a cache of blocks.


PATIENCE = 10.0
"""Seconds to wait for a block that another thread or process reads, before it is read here too."""
AT_ONCE = 16
"""Blocks that are read in one request at most: each needs a descriptor until it is written."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SECRETS = re.compile(
    r"x-(amz|goog|oss|cos)-.*|awsaccesskeyid|googleaccessid|signature|expires|key-pair-id"
    r"|.*(token|password|secret|credential).*|api[-_]?key"
)
_OF_AZURE = re.compile(r"sig|s[eptrvis]|spr|srt|sip|ske|skt|sks|skv|skoid|sktid|saoid|suoid|scid")
"""Parameters that belong to a signature of Azure's, where there is a `sig`."""


class CachedFile:
    """A file of a store, of which blocks are kept in a cache. Thread safe if the file below is.

    Args:
        failures: whether the cache may be written.
        block_size: in bytes.
        name: of the store, part of the blocks' names.
    """

    def __init__(
        self, file: File, path: str, blocks: BlockCache, failures: CacheFailures, block_size: int, name: str
    ) -> None:
        self.version: Version = file.version
        self._file = file
        self._blocks = blocks
        self._failures = failures
        self._block_size = block_size
        key = [name, without_secrets(path), [str(field) for field in file.version], block_size]
        self._digest = hashlib.sha256(json.dumps(key).encode("utf-8", "surrogatepass"))

    def read(self, begin: int, length: int) -> bytes:
        end = min(begin + length, self.version.size)
        return self.read_ranges([(begin, end)])[0] if end > begin else b""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns ranges, given as the first byte and the byte behind the last; those that are missing at once.

        They are not empty, and lie within the file.
        """
        size = self._block_size
        parts = [
            [self._piece(number, *both) for number in range(both[0] // size, -(-both[1] // size))] for both in ranges
        ]
        missing = [piece for pieces in parts for piece in pieces if not self._find(piece)]
        for first in range(0, len(missing), AT_ONCE):
            self._fill(missing[first : first + AT_ONCE])
        return [b"".join(piece.data for piece in pieces) if len(pieces) > 1 else pieces[0].data for pieces in parts]

    def _piece(self, number: int, begin: int, end: int) -> _BlockPart:
        at = number * self._block_size
        length = min(self._block_size, self.version.size - at)
        name = self._digest.copy()
        name.update(number.to_bytes(8, "little"))
        return _BlockPart(number, name.hexdigest()[:32], at, length, max(begin - at, 0), min(end - at, length))

    def _find(self, piece: _BlockPart) -> bool:
        """Takes a piece from the cache; returns whether it is there."""
        data = self._blocks.get(piece.name, piece.length, piece.begin, piece.end)
        piece.data = data or b""
        return data is not None

    def _fill(self, pieces: Sequence[_BlockPart]) -> None:
        """Reads pieces from the store, and keeps their blocks. No claim is held while it waits for others'."""
        if not self._failures.is_usable:
            self._read_past(pieces)
            return
        mine: list[tuple[_BlockPart, BlockClaim]] = []
        others: list[_BlockPart] = []
        with contextlib.ExitStack() as claims:
            try:
                for piece in pieces:
                    claim = self._blocks.claim(piece.name)
                    if claim is None:
                        others.append(piece)
                        continue
                    claims.enter_context(claim)
                    if not self._find(piece):  # else it was written just before
                        mine.append((piece, claim))
            except OSError as error:
                self._failures.gave_up(error)
                claims.close()
                self._read_past(pieces)
                return
            self._fetch(mine)
        for piece in others:
            self._await(piece)

    def _fetch(self, mine: Sequence[tuple[_BlockPart, BlockClaim]]) -> None:
        """Reads blocks from the store, adjacent ones in one request, and keeps them."""
        claims = {id(piece): claim for piece, claim in mine}
        runs = list(_runs(piece for piece, _ in mine))
        pieces = self._from_store([(run[0].at, run[-1].at + run[-1].length) for run in runs])
        for run, data in zip(runs, pieces, strict=True):
            whole = memoryview(data)
            if len(whole) != run[-1].at + run[-1].length - run[0].at:  # the file has another size now
                self._read_past(run)
                continue
            blocks = [whole[piece.at - run[0].at :][: piece.length] for piece in run]
            for piece, block in zip(run, blocks, strict=True):
                piece.data = bytes(block[piece.begin : piece.end])
            try:
                for piece, block in zip(run, blocks, strict=True):
                    claims[id(piece)].store(block)
            except OSError as error:
                self._failures.gave_up(error)

    def _await(self, piece: _BlockPart) -> None:
        """Takes a block that another thread or process reads, when it is there."""
        deadline, pause = time.monotonic() + PATIENCE, 0.001
        while not self._find(piece):
            if time.monotonic() >= deadline:
                self._read_past([piece])
                return
            try:
                claim = self._blocks.claim(piece.name)
            except OSError as error:
                self._failures.gave_up(error)
                deadline = 0
                continue
            if claim is None:
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
                continue
            with claim:
                if not self._find(piece):
                    self._fetch([(piece, claim)])
                return

    def _read_past(self, pieces: Iterable[_BlockPart]) -> None:
        """Reads just these pieces from the store, and keeps nothing."""
        runs = list(_runs(pieces, of_parts=True))
        blocks = self._from_store([(run[0].at + run[0].begin, run[-1].at + run[-1].end) for run in runs])
        for run, data in zip(runs, blocks, strict=True):
            begin = run[0].at + run[0].begin
            for piece in run:
                piece.data = data[piece.at + piece.begin - begin : piece.at + piece.end - begin]

    def _from_store(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Returns ranges of the file below, read at once if it can do that."""
        at_once = getattr(self._file, "read_ranges", None)
        if at_once is not None and len(ranges) > 1:
            blocks: list[bytes] = at_once(ranges)
            return blocks
        return [self._file.read(begin, end - begin) for begin, end in ranges]


class _BlockPart:
    """The part of a block that is to be read.

    Attributes:
        at: byte of the file at which the block begins.
        begin: first byte of the part, counted in the block.
        end: byte behind its last.
        data: the bytes, when they are known.
    """

    __slots__ = ("at", "begin", "data", "end", "length", "name", "number")

    def __init__(self, number: int, name: str, at: int, length: int, begin: int, end: int) -> None:
        self.number = number
        self.name = name
        self.at = at
        self.length = length
        self.begin = begin
        self.end = end
        self.data = b""


def _runs(pieces: Iterable[_BlockPart], of_parts: bool = False) -> Iterator[list[_BlockPart]]:
    """Yields lists of pieces whose blocks are adjacent; `of_parts` also requires that of the bytes that are wanted."""
    run: list[_BlockPart] = []
    for piece in pieces:
        is_next = bool(run) and piece.number == run[-1].number + 1
        if is_next and of_parts:
            is_next = not piece.begin and run[-1].end == run[-1].length
        if run and not is_next:
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def without_secrets(path: str) -> str:
    """Returns a URL without user, password and signature, and a path as an absolute one. For hashes: see `shown`."""
    if not _URL.match(path):
        return os.path.abspath(path)
    url = urlsplit(path)
    query = parse_qsl(url.query, keep_blank_values=True)
    is_azure = any(name.lower() == "sig" for name, _ in query)
    parameters = [
        (name, value)
        for name, value in query
        if not _SECRETS.fullmatch(name.lower()) and not (is_azure and _OF_AZURE.fullmatch(name.lower()))
    ]
    return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, urlencode(parameters), ""))
