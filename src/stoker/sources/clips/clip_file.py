"""A file of clips, of this machine or of a store, and the size that its own header states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Literal, NamedTuple

from stoker.errors import MediaFileError
from stoker.sources.cached_storage import CachedStorage
from stoker.sources.storage import File, FileObject, LocalFile, Storage, Version, opened
from stoker.sources.urls import is_remote

_HEAD = 4096
"""Bytes in which a Matroska file names the size of its segment: usually within the first 60."""


class ClipFile(NamedTuple):
    """A file, and the store it lies in. Picklable; nothing is open.

    Attributes:
        name: the place for messages, without secrets.
        known: its version, if that is known.
    """

    place: str
    name: str
    storage: Storage
    known: Version | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"  # a URL may hold a secret

    @property
    def is_local(self) -> bool:
        """Whether libraries read the file of this machine itself."""
        return not is_remote(self.place) and not isinstance(self.storage, CachedStorage)

    def version(self) -> Version:
        """Returns the version that the file has now."""
        return (LocalFile(self.place) if self.is_local else self.storage.open(self.place)).version

    def open(self) -> OpenClipFile:
        """Opens the file."""
        file = LocalFile(self.place) if self.is_local else opened(self.storage, self.place, self.known)
        return OpenClipFile(self.name, file, self.place if self.is_local else None)


class OpenClipFile:
    """An open file. Belongs to one process and, at a time, to one thread.

    Args:
        name: for messages.

    Attributes:
        version: of the file, when it was opened.
        path: by which the library opens the file; None if it is given `stream()`.
    """

    def __init__(self, name: str, file: File, path: str | None) -> None:
        self.name = name
        self.version = file.version
        self.path = path
        self._file = file
        self._stream: _Stream | None = None

    @cached_property
    def head(self) -> bytes:
        """The first bytes, read once."""
        return self._file.read(0, _HEAD)

    def read(self, begin: int, length: int) -> bytes:
        """Returns `length` bytes from byte `begin` on; fewer only at the end, or where `stream()` ended."""
        if self._stream is None or self._stream.size != self.version.size:
            return self._file.read(begin, length)
        place = self._stream.tell()  # where the library goes on
        self._stream.seek(begin)
        data = self._stream.read(length) or b""
        self._stream.seek(place)
        return data

    def stream(self, begin: int = 0) -> FileObject:
        """Returns the file as a new file object, which ends where the store fails: see `errors_of_store`."""
        self._stream = _Stream(_Rest(self._file, begin) if begin else self._file)
        self._stream.name = self.name.rpartition("/")[2]  # its suffix is one of the hints at the format
        return self._stream

    @contextmanager
    def errors_of_store(self) -> Iterator[None]:
        """Raises the error that ended the last file object, if one did, in place of what the library made of it."""
        try:
            yield
        except Exception as error:
            if self._stream is not None and self._stream.failure is not None:
                raise self._stream.failure from error
            raise
        if self._stream is not None and self._stream.failure is not None:
            raise self._stream.failure


class _Rest:
    """A file from a byte on."""

    def __init__(self, file: File, begin: int) -> None:
        self._file = file
        self._begin = begin
        self.version = file.version._replace(size=file.version.size - begin)

    def read(self, begin: int, length: int) -> bytes:
        return self._file.read(self._begin + begin, length)


class _Stream(FileObject):
    name: str
    failure: BaseException | None = None

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            return super().readinto(buffer)
        except BaseException as error:  # an interrupt too: the library cannot pass it on
            self.failure = error
            return 0


# The size of a file by its own header: libraries read a truncated file of these formats as a shorter one.


_UNKNOWN_RIFF = 0x7FFF_0000
"""The least length in a RIFF header of programs that do not know it yet, as those that write into a pipe."""
_EBML, _SEGMENT = bytes.fromhex("1a45dfa3"), bytes.fromhex("18538067")


def check_is_whole(file: OpenClipFile) -> None:
    """Compares the size of a file with what its header promises, in WAV, AIFF, AVI, Matroska and WebM files."""
    size, promised = file.version.size, promised_size(file.head)
    if promised is not None and size < promised and not _data_are_whole(file):
        raise MediaFileError(f"{file.name} is truncated: it has {size:,} bytes, and its header promises {promised:,}")


def _data_are_whole(file: OpenClipFile) -> bool:
    """Returns whether all sound or pictures of a WAV, AIFF or AVI file are there: programs miscount the whole file."""
    order: Literal["little", "big"] = "little" if file.head[:4] == b"RIFF" else "big"
    size, place = file.version.size, 12
    while place + 8 <= size and file.head[:4] in (b"RIFF", b"FORM"):
        chunk = file.read(place, 12)
        end = place + 8 + int.from_bytes(chunk[4:8], order)
        if chunk[:4] in (b"data", b"SSND") or chunk[8:] == b"movi":
            return end <= size
        place = end + end % 2
    return False


def promised_size(head: bytes) -> int | None:
    """Returns the size that the header of a file promises, in bytes; None if it promises none."""
    if head[:4] == b"RIFF":
        length = int.from_bytes(head[4:8], "little")
        return 7 + length if length < _UNKNOWN_RIFF else None  # 8, and some programs leave out the last byte of padding
    if head[:4] == b"FORM":  # AIFF
        return 7 + int.from_bytes(head[4:8], "big")
    if head[:4] == _EBML:
        length, place = _number(head, 4)
        place += length
        if head[place : place + 4] == _SEGMENT:
            length, begin = _number(head, place + 4)
            return begin + length if length != (1 << 7 * (begin - place - 4)) - 1 else None  # all ones: unknown
    return None


def _number(head: bytes, place: int) -> tuple[int, int]:
    """Returns a number of variable length at a place of a Matroska file, and the place behind it."""
    width = 9 - head[place].bit_length() if place < len(head) else 1
    number = int.from_bytes(head[place : place + width], "big")
    return number & ((1 << 7 * width) - 1), place + width
