"""The text of a file from any byte on, plain, gzip or zstd, without an open descriptor; and where its records begin and
end.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stoker.errors import FileChangedError, MissingExtraError, ObjectStoreError, StateMismatchError
from stoker.sources.storage import File

BLOCK = 1 << 18
"""Bytes read at once. The file is opened for each block, which takes less than a tenth of the time of its lines."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SUFFIXES = (".zst", ".zstd")


def compression_of(begin: bytes) -> str | None:
    """Returns "gzip" or "zstd" if a file that begins with these bytes is compressed so, else None."""
    if begin.startswith(_GZIP):
        return "gzip"
    return "zstd" if begin.startswith(_ZSTD) else None


def check_zstd(files: list[str]) -> None:
    """Checks that files with the suffix of zstd can be decompressed."""
    if any(path.lower().endswith(_ZSTD_SUFFIXES) for path in files):
        zstd_module()


def text_of(file: File | str, offset: int, name: str) -> io.BufferedReader:
    """Returns the text of a file, or of a local path, from `offset` on, which must begin a line, or be the end."""
    text = decompressed(file)
    if offset:
        text.seek(offset - 1)
        before = text.read(1)
        if before != b"\n" and (not before or text.peek(1)):
            raise StateMismatchError(
                f"the state stands at byte {offset} of {name}, but no line begins there: the file is another one"
            )
    return text


def decompressed(file: File | str) -> io.BufferedReader:
    """Returns the bytes of a file, or of a local path, decompressed if it begins as gzip or zstd does."""
    text: io.BufferedReader = io.BufferedReader(_Reopened(file) if isinstance(file, str) else _Positioned(file), BLOCK)
    compression = compression_of(text.peek(4))
    if compression == "gzip":
        text = io.BufferedReader(_Gzip(fileobj=text), BLOCK)
    elif compression == "zstd":
        text = io.BufferedReader(_BlockOfZstd(zstd_module(), text), BLOCK)
    return text


class _Gzip(gzip.GzipFile):
    """A gzip file that returns one block at a time, so that data before a damaged part is not lost with it."""

    def readinto(self, buffer: Any) -> int:
        return self.readinto1(buffer)


class _BlockOfZstd(io.RawIOBase):
    """A zstd file that returns one block at a time. Damage is an OSError."""

    def __init__(self, zstd: Any, file: io.BufferedReader) -> None:
        self._error = zstd.ZstdError
        self._file = zstd.ZstdFile(file)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return int(self._file.seek(offset, whence))
        except self._error as error:
            raise OSError(str(error)) from error

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._file.readinto1(buffer))
        except self._error as error:
            raise OSError(str(error)) from error


class _Positioned(io.RawIOBase):
    """A file that is read by position, as one with a position of its own."""

    def __init__(self, file: File | None) -> None:
        self._file = file
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only absolute positions are supported")
        self._offset = offset
        return offset

    def tell(self) -> int:
        return self._offset

    def readinto(self, buffer: Any) -> int:
        assert self._file is not None
        data = self._file.read(self._offset, len(buffer))
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)


class _Reopened(_Positioned):
    """A local file that is open only during a read."""

    def __init__(self, path: str) -> None:
        super().__init__(None)
        self._path = path
        self._first_seen: tuple[int, ...] | None = None

    def readinto(self, buffer: Any) -> int:
        with open(self._path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if seen != (self._first_seen or seen):
                raise OSError(f"{self._path} has changed while it was read: its lines cannot be trusted")
            self._first_seen = seen
            file.seek(self._offset)
            size = file.readinto(buffer) or 0
        self._offset += size
        return size


def told_again(error: BaseException, message: str) -> OSError:
    """Returns an error of a file that could not be read, with another message."""
    number = getattr(error, "errno", None)
    for kind in (FileNotFoundError, PermissionError, ObjectStoreError, FileChangedError):
        if number is None and isinstance(error, kind):
            return kind(message)
    return OSError(number or errno.EIO, message)


def zstd_module() -> Any:
    """Returns the standard library's zstd module, or its copy for older versions of Python."""
    try:
        from compression import zstd  # from Python 3.14 on
    except ImportError:
        try:
            from backports import zstd
        except ImportError as error:
            raise MissingExtraError(
                f"files of zstd need the package backports.zstd, which cannot be imported ({error}): install the extra "
                "stoker[zstd], or decompress the files."
            ) from error
    return zstd


# Where records of a text begin and end: at lines, or where a CSV file has a line end outside of quotes.


MOST_RECORD = 1 << 26
"""Bytes of a CSV record with quotes, at most. A longer one has a quote that is not closed."""
UTF8_MARK = b"\xef\xbb\xbf"
_STATEFUL = ("iso2022", "hz", "utf-7", "utf_7")


@dataclass(frozen=True)
class Cutting:
    """How a text is cut into records.

    Attributes:
        skips_blank: whether lines with nothing but a line end are no records.
        skips_spaces: whether lines of spaces and tabs are no records either.
        delimiter: of CSV fields, one byte; empty if lines are not CSV.
        quote: of CSV fields, one byte; empty if every line end ends a record.
    """

    skips_blank: bool = False
    delimiter: bytes = b""
    quote: bytes = b""
    skips_spaces: bool = False

    @property
    def rule(self) -> str:
        """The text that identifies these rules in an index."""
        if self.delimiter:
            return f"csv {self.delimiter.hex()} {self.quote.hex() or 'unquoted'}"
        if self.skips_spaces:
            return "lines that are not blank"
        return "lines that are not empty" if self.skips_blank else "lines"

    def is_blank(self, line: bytes) -> bool:
        """Returns whether a line, with its end, is no record because it is empty."""
        if self.skips_spaces:
            return line.isspace() and not line.strip(b" \t\r\n")
        return self.skips_blank and len(line) <= 2 and line in (b"\n", b"\r\n", b"\r")

    def is_open(self, line: bytes, was_open: bool = False) -> bool:
        """Returns whether a line ends within quotes, as Python's csv module reads it.

        A quote opens a field only at its begin, is doubled inside of quotes, and is a character like others elsewhere.

        Args:
            line: with its line end.
            was_open: whether the line begins within quotes.
        """
        if not was_open and (self.quote not in line or self._whole.fullmatch(line)):
            return False
        place = 0
        while True:
            if was_open or line.startswith(self.quote, place):
                match = self._quoted.match(line, place if was_open else place + 1)
                assert match is not None  # it matches nothing, too
                if match.end() == len(line):
                    return True
                was_open, place = False, match.end() + 1
            place = line.find(self.delimiter, place) + 1
            if not place:
                return False

    @cached_property
    def _whole(self) -> re.Pattern[bytes]:
        """Matches a line of fields with no quote, or in quotes that are closed before the delimiter."""
        quote, delimiter = re.escape(self.quote), re.escape(self.delimiter)
        inner = b"(?:[^" + quote + b"]++|" + quote + quote + b")*+"
        field = b"(?:" + quote + inner + quote + b"|[^" + quote + delimiter + b"]*+)"
        return re.compile(field + b"(?:" + delimiter + field + b")*+[\\r\\n]*+")

    @cached_property
    def _quoted(self) -> re.Pattern[bytes]:
        quote = re.escape(self.quote)
        return re.compile(b"(?:[^" + quote + b"]++|" + quote + quote + b")*+")


def begin_of_text(begin: bytes, encoding: str) -> int:
    """Returns the byte at which the text of a file begins: 3 behind a byte order mark in UTF-8, else 0."""
    return len(UTF8_MARK) if begin.startswith(UTF8_MARK) and is_utf8(encoding) else 0


def is_utf8(encoding: str) -> bool:
    """Returns whether an encoding is UTF-8, with or without a mark."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def check_encoding(encoding: str, errors: str) -> str:
    """Returns the encoding of a line: UTF-8 without a mark in place of "utf-8-sig".

    Raises:
        ValueError: the encoding or the error handler is unknown, or a text in it cannot be cut at bytes of value 10.
    """
    try:
        codecs.lookup_error(errors)
        ends_lines = b"\n".decode(encoding) == "\n"
    except LookupError as error:
        raise ValueError(str(error)) from error
    except UnicodeDecodeError:
        ends_lines = False
    if not ends_lines:
        raise ValueError(
            f"a text in {encoding} cannot be cut at bytes of value 10, so its lines cannot be found: convert the "
            "files, preferably to UTF-8"
        )
    return "utf-8" if is_utf8(encoding) else encoding


def one_byte(character: str, name: str, encoding: str) -> bytes:
    """Returns a delimiter or a quote as the byte that it is in a file.

    Raises:
        ValueError: it is not one ASCII character, is a line end, or the encoding uses its byte for others too.
    """
    if not isinstance(character, str) or len(character) != 1 or not character.isascii() or character in "\r\n":
        raise ValueError(f"{name} is {character!r}, expected one ASCII character that ends no line")
    byte = character.encode()
    if codecs.lookup(encoding).name.startswith(_STATEFUL) or byte.decode(encoding) != character:
        raise ValueError(
            f"a text in {encoding} cannot be cut at bytes of {name}={character!r}, because they are parts of other "
            "characters: convert the files, preferably to UTF-8"
        )
    return byte
