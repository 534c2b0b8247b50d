"""A file of another store, read through a cache of blocks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from stoker.sources.block_cache import BlockCache, BlockClaim
from stoker.sources.cache_failures import CacheFailures
from stoker.sources.storage import File, Version

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
        file: the file of the store.
        path: of the file.
        blocks: the cache.
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
        """Returns `length` bytes from byte `begin` on; fewer only at the end of the file.

        Raises:
            OSError: a part that is not in the cache cannot be read.
        """
        end = min(begin + length, self.version.size)
        return self.read_ranges([(begin, end)])[0] if end > begin else b""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns ranges, given as the first byte and the byte behind the last; those that are missing at once.

        They are not empty, and lie within the file.

        Raises:
            OSError: a part that is not in the cache cannot be read.
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
        found = self._from_store([(run[0].at, run[-1].at + run[-1].length) for run in runs])
        for run, data in zip(runs, found, strict=True):
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
        found = self._from_store([(run[0].at + run[0].begin, run[-1].at + run[-1].end) for run in runs])
        for run, data in zip(runs, found, strict=True):
            begin = run[0].at + run[0].begin
            for piece in run:
                piece.data = data[piece.at + piece.begin - begin : piece.at + piece.end - begin]

    def _from_store(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Returns ranges of the file below, read at once if it can do that."""
        at_once = getattr(self._file, "read_ranges", None)
        if at_once is not None and len(ranges) > 1:
            found: list[bytes] = at_once(ranges)
            return found
        return [self._file.read(begin, end - begin) for begin, end in ranges]


class _BlockPart:
    """The part of a block that is to be read.

    Attributes:
        number: of the block.
        name: of the block in the cache.
        at: byte of the file at which the block begins.
        length: of the block.
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
    given = parse_qsl(url.query, keep_blank_values=True)
    is_azure = any(name.lower() == "sig" for name, _ in given)
    kept = [
        (name, value)
        for name, value in given
        if not _SECRETS.fullmatch(name.lower()) and not (is_azure and _OF_AZURE.fullmatch(name.lower()))
    ]
    return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, urlencode(kept), ""))
