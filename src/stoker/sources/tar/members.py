"""The members of a tar shard, front to back, and the samples that they make."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any
from zlib import adler32

from stoker.errors import DuplicateKeyError, ShardError, StokerWarning
from stoker.sources.storage import File

WINDOW = 120 << 10
"""Bytes read at once in sequence. The allocator keeps memory of less than 128 kB; more is mapped anew each time."""
SMALL_WINDOW = 8 << 10
"""Bytes read at once for headers alone: when the data of members is skipped, and behind a large member."""
LARGE = 32 << 10
"""Bytes of a member from which its data is read by itself, which saves a copy."""

_NEVER = 1 << 63
_META = re.compile(r"__[^/]*__($|/)")
_MOST_EXTENSION = 1 << 20
"""Bytes of a pax header or a long name. A larger one is damage, and would be read into memory."""


def is_of_a_sample(name: str) -> bool:
    """Returns whether a member with this path belongs to a sample: not if its file name has no dot or begins with one,
    nor below a folder `__name__`, as in WebDataset.
    """
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    return slash < dot < len(name) - 1 and not (name.startswith("__") and _META.match(name))


class MemberReader:
    """Reads the members of one shard in sequence, those that belong to samples.

    The attributes describe the current member: reading them is cheaper than an object for each member.

    Args:
        position: the byte of the first header to read.
        window: bytes read at once.
        on_header: called with each header block.
        on_no_end: called if the shard ends behind a member, without an end mark; it may raise. None for an error.

    Attributes:
        position: the byte of the next header.
        stop: the byte at which the members end, if that is before the end mark.
        key: the member's path up to the first dot of its file name; None before the first member and after the last.
        extension: the rest of its file name, in lower case, without that dot: "jpg", "seg.png".
        begin: the byte at which its headers begin.
        data: the byte at which its data begins.
        size: bytes of its data.
    """

    def __init__(
        self,
        file: File,
        path: str,
        position: int = 0,
        window: int = WINDOW,
        on_header: Callable[[bytes], object] | None = None,
        on_no_end: Callable[[int], object] | None = None,
    ) -> None:
        self._file = file
        self._path = path
        self._window = window
        self._held = b""  # bytes of the shard from `_base` on
        self._base = 0
        self._on_header = on_header
        self._on_no_end = on_no_end
        self._global_name: bytes | None = None
        self._is_sparse = False  # the next member, by its pax header
        self.position = position
        self.stop = _NEVER
        self.key: str | None = None
        self.extension = ""
        self.begin = self.data = self.size = position

    def hold(self, data: bytes, begin: int) -> None:
        """Uses `data`, the bytes of the shard from `begin` on, in place of reading them."""
        self._held, self._base = data, begin

    def advance(self) -> bool:
        """Makes the next member of a sample the current one; returns False at the end.

        Raises:
            ShardError: the shard is truncated or damaged here, or a member cannot be read. If `position` is behind that
                member, reading can continue.
        """
        self.key = None
        begin = self.position
        name: bytes | None = None
        size: int | None = None
        while True:
            at = self.position
            if at >= self.stop:
                return False
            place = at - self._base
            block = self._held[place : place + BLOCK] if place >= 0 else b""
            if len(block) < BLOCK:
                if at and at == begin == self._file.version.size and self._on_no_end is not None:
                    self._on_no_end(at)
                    return False
                block = self._block(at)
            if block == ZEROS:
                return False
            if self._on_header is not None:
                self._on_header(block)
            try:
                kind, own_name, own_size = parsed(block)
            except HeaderError as error:
                raise self._damage(str(error)) from None
            if kind in REGULAR:
                self.begin, self.data, self.size = begin, at + BLOCK, own_size if size is None else size
                self.position = at + BLOCK + (self.size + BLOCK - 1 & -BLOCK)
                if self._is_sparse or (self._global_name is not None and name is None):
                    self._refuse(own_name if name is None else name, at)
                elif self._is_of_a_sample(own_name if name is None else name):
                    return True
                begin, name, size = self.position, None, None
            elif kind in EXTENSIONS:
                text = self._extension_data(own_size)
                if kind == LONG_NAME:
                    name = text.partition(b"\0")[0]
                elif kind != LONG_LINK:
                    name, size = self._from_pax(text, name, size, kind == PAX_GLOBAL)
                self.position = at + BLOCK + padded(own_size)
            else:
                self.position = at + BLOCK + (0 if kind in LINKS else padded(own_size))
                if kind == SPARSE:
                    self.position += self._map_of_sparse(block, at)
                self._is_sparse = False
                self._not_regular(kind, own_name if name is None else name, at)
                begin, name, size = self.position, None, None

    def body(self) -> bytes:
        """Returns the data of the current member.

        Raises:
            ShardError: the shard ends before.
        """
        place, size = self.data - self._base, self.size
        if 0 <= place <= len(self._held) - size:
            return self._held[place : place + size]
        return self._read(self.data, size)

    def _read(self, begin: int, size: int) -> bytes:
        if size >= LARGE or size > self._window:
            data = self._file.read(begin, size)
        else:
            self._fill(begin, self._window)
            data = self._held[:size]
        if len(data) < size:
            raise self._truncated(begin, size)
        return data

    def _block(self, at: int) -> bytes:
        self._fill(at, SMALL_WINDOW if self.size >= LARGE else self._window)
        if len(self._held) < BLOCK:
            raise self._truncated(at, BLOCK)
        return self._held[:BLOCK]

    def _fill(self, at: int, length: int) -> None:
        self._held, self._base = self._file.read(at, length), at

    def _is_of_a_sample(self, name: bytes) -> bool:
        text = name.decode("utf-8", "surrogateescape")
        slash = text.rfind("/") + 1
        dot = text.find(".", slash)
        if dot <= slash or dot + 1 == len(text) or (text.startswith("__") and _META.match(text)):
            return False
        self.key, self.extension = text[:dot], text[dot + 1 :].lower()
        if slash and (text.startswith("/") or (".." in text and ".." in text.split("/"))):
            self.key = None
            raise ShardError(
                f"{self._path}, byte {self.begin}: the member {text!r} has a path that leads out of the archive, and "
                "is refused: written to a disk under its key, it would overwrite other files. Pack the shard again."
            )
        return True

    def _extension_data(self, size: int) -> bytes:
        if size > _MOST_EXTENSION:
            raise self._damage(f"an extension header of {size} bytes")
        place = self.position + BLOCK - self._base
        if 0 <= place <= len(self._held) - size:
            return self._held[place : place + size]
        return self._read(self.position + BLOCK, size)

    def _from_pax(
        self, text: bytes, name: bytes | None, size: int | None, is_global: bool
    ) -> tuple[bytes | None, int | None]:
        try:
            records = pax_records(text)
            length = records.get(b"size")
            if length is not None and not length.isdigit():
                raise HeaderError(f"a pax header holds no size: {length!r}")
        except HeaderError as error:
            raise self._damage(str(error)) from None
        if is_global:
            self._global_name = records.get(b"path", self._global_name)
            return records.get(b"path", name), size
        self._is_sparse = any(keyword.startswith(b"GNU.sparse") for keyword in records)
        value = records.get(b"GNU.sparse.name") or records.get(b"path", name)
        return value, size if length is None else int(length)

    def _map_of_sparse(self, block: bytes, at: int) -> int:
        """Returns the bytes between the header of a sparse member, in the format of GNU tar, and its data."""
        begin, has_more = at + BLOCK, block[482]
        end = begin
        while has_more:
            has_more = self._read(end, BLOCK)[504]
            end += BLOCK
        return end - begin

    def _not_regular(self, kind: int, name: bytes, at: int) -> None:
        text = name.decode("utf-8", "surrogateescape")
        if kind in SKIPPED or not is_of_a_sample(text):
            return
        known = {SPARSE: "a sparse file", **dict.fromkeys(LINKS, "a link, which holds no data")}
        raise ShardError(
            f"{self._path}, byte {at}: the member {text!r} is {known.get(kind, f'of type {chr(kind)!r}')}, and cannot "
            "be read. Pack the files themselves (tar --dereference --hard-dereference, and without --sparse)."
        )

    def _refuse(self, name: bytes, at: int) -> None:
        """Raises an error for a regular member that cannot be read, unless it belongs to no sample."""
        if self._is_sparse:
            self._is_sparse = False
            self._not_regular(SPARSE, name, at)
        elif is_of_a_sample(self._global_name.decode("utf-8", "surrogateescape") if self._global_name else ""):
            raise ShardError(
                f"{self._path}, byte {at}: the member {name!r} has its path from a global header before other members, "
                "so that several members have one path. Pack the shard again."
            )

    def _damage(self, what: str) -> ShardError:
        return ShardError(f"{self._path}, byte {self.position}: {what}")

    def _truncated(self, begin: int, length: int) -> ShardError:
        return ShardError(
            f"{self._path} ends at byte {self._file.version.size}, but {length} bytes were expected from byte {begin} "
            "on: the shard is truncated. Was it copied or written completely?"
        )


def read_sample(reader: MemberReader, path: str) -> dict[str, Any]:
    """Returns the sample that begins with the reader's current member, and advances to the next sample.

    Args:
        reader: has a current member.
        path: of the shard, the sample's `__url__`.

    Raises:
        ShardError: the shard is truncated or damaged; the message names the key.
        DuplicateKeyError: two members of the sample have the same extension. The reader is at the next sample.
    """
    key = reader.key
    sample: dict[str, Any] = {"__key__": key, "__url__": path}
    twice = ""
    try:
        while reader.key == key:
            if reader.extension in sample:
                twice = f"{path}, byte {reader.begin}: the sample {key!r} has two members of {reader.extension!r}"
            sample[reader.extension] = reader.body()
            reader.advance()
    except ShardError as error:
        raise ShardError(f"{error} (the sample with the key {key!r}, or the member after it)") from None
    if twice:
        raise DuplicateKeyError(
            f"{twice}. Samples of one key, one after the other, are one sample: give each its own key."
        )
    return sample


def repeated(key: str, path: str, begin: int) -> DuplicateKeyError:
    """Returns the error for a second sample of one key in a shard."""
    return DuplicateKeyError(
        f"{path}, byte {begin}: a second sample with the key {key!r}. The members of a sample must lie one after the "
        "other in the shard (tar --sort=name), and each sample needs its own key."
    )


def warn_of_no_end(path: str, others: int = 0) -> None:
    """Warns of a shard without an end mark, and of the number of others."""
    more = f" (and {others:,} more shards)" if others else ""
    warnings.warn(
        f"{path}{more} ends behind a member, without the end mark of a tar file: its writer was not closed, or it was "
        "cut there. Its samples are read to the last; if some are missing, write or copy it again.",
        StokerWarning,
        stacklevel=2,
    )


# Headers of tar files: 512 bytes before each member, in the formats ustar, GNU and pax.
#
# Parsing one takes 1 us. Its checksum is compared with Adler-32, whose low half is the sum of the bytes plus one,
# modulo 65,521: 0.2 us instead of 3 us for a sum in Python.


BLOCK = 512
ZEROS = bytes(BLOCK)

REGULAR = frozenset(b"07\0")
LINKS = frozenset(b"12")
LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL, PAX_OF_SOLARIS = b"LKxgX"
EXTENSIONS = frozenset(b"LKxgX")
SKIPPED = frozenset(b"3456VD")
"""Devices, folders and pipes; volume labels, and the lists of folders in incremental dumps."""
SPARSE = ord("S")

_MODULUS = 65521
_ENDS = b"\0 "
"""Bytes that end a number."""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class HeaderError(ValueError):
    """A block is not a header, or not one of a member that can be read."""


def parsed(block: bytes) -> tuple[int, bytes, int]:
    """Returns the type flag, the name and the size of the data in a header, a block of 512 bytes.

    The name and size of a preceding extension header take precedence over these.
    """
    try:
        checksum = int(block[148:154] if block[154] in _ENDS else block[148:156].rstrip(b" \0"), 8)
        actual = adler32(block[156:], adler32(block[:148])) & 0xFFFF
        if actual != (checksum - 255) % _MODULUS and checksum != _signed_sum(block):
            raise ValueError
    except ValueError:
        raise HeaderError(_no_header(block)) from None
    try:
        size = int(block[124:135] if block[135] in _ENDS else b"", 8)  # eleven digits, as nearly all programs write it
    except ValueError:
        size = _unusual_size(block)
    if size < 0:
        raise HeaderError(f"a header holds a negative size: {block[124:136]!r}")
    name = block[: block.find(0, 0, 101)] if not block[99] else block[:100]
    if block[345] and block[257:263] == b"ustar\0":
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return block[156], name, size


def _signed_sum(block: bytes) -> int:
    """Returns the checksum of programs that added the bytes as signed numbers."""
    counted = block[:148] + b" " * 8 + block[156:]
    return sum(counted) - 256 * sum(byte > 127 for byte in counted)


def _unusual_size(block: bytes) -> int:
    if block[124] & 0x80:  # base 256, as GNU tar writes sizes from 8 GiB on
        if block[124] != 0x80:
            raise HeaderError("a header holds a negative or absurd size")
        return int.from_bytes(block[125:136], "big")
    try:
        return int(block[124:136].rstrip(b" \0") or b"0", 8)
    except ValueError:
        raise HeaderError(f"a header holds no size: {block[124:136]!r}") from None


def pax_records(data: bytes) -> dict[bytes, bytes]:
    """Returns the records of a pax header by their keywords."""
    records: dict[bytes, bytes] = {}
    place = 0
    while place < len(data) and data[place]:
        space = data.find(b" ", place, place + 20)
        digits = data[place:space]
        length = int(digits) if space > 0 and digits.isdigit() else 0
        keyword, equals, value = data[space + 1 : place + length - 1].partition(b"=")
        if length <= 0 or place + length > len(data) or data[place + length - 1] != 10 or not equals:
            raise HeaderError("a pax header is damaged")
        records[keyword] = value
        place += length
    return records


def padded(size: int) -> int:
    """Returns a size rounded up to whole blocks."""
    return size + BLOCK - 1 & -BLOCK


def _no_header(block: bytes) -> str:
    for magic, name in _COMPRESSED.items():
        if block.startswith(magic):
            return (
                f"the file is compressed ({name}); only uncompressed tar files can be read by position: decompress it"
            )
    return "there is no tar header here, or its checksum is wrong"
