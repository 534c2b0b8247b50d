"""The text of a file from any byte on: plain, gzip or zstd, without a descriptor that stays open."""

from __future__ import annotations

import errno
import gzip
import io
import os
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
    """Checks that files with the suffix of zstd can be decompressed.

    Raises:
        MissingExtraError: there is such a file, and the package is not installed.
    """
    if any(path.lower().endswith(_ZSTD_SUFFIXES) for path in files):
        zstd_module()


def text_of(file: File | str, offset: int, name: str) -> io.BufferedReader:
    """Returns the text of a file, or of a local path, from `offset` on, which must be the start of a line, or the end.

    Raises:
        OSError: the file cannot be read.
        MissingExtraError: it is compressed with zstd, and the package is not installed.
        StateMismatchError: no line begins at `offset`.
    """
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
    """Returns the bytes of a file, or of a local path, decompressed if it begins as gzip or zstd does.

    Raises:
        OSError: the file cannot be read.
        MissingExtraError: it is compressed with zstd, and the package is not installed.
    """
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
    """Returns the standard library's zstd module, or its copy for older versions of Python.

    Raises:
        MissingExtraError: there is none.
    """
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
