"""A file of clips: one of this machine, which the libraries open by its path, or one of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

from stoker.sources.cached_storage import CachedStorage
from stoker.sources.file_object import FileObject
from stoker.sources.storage import File, LocalFile, Storage, Version, opened
from stoker.sources.urls import is_remote

_HEAD = 4096
"""Bytes in which a Matroska file names the size of its segment: usually within the first 60."""


class ClipFile(NamedTuple):
    """A file, and the store it lies in. Picklable; nothing is open.

    Attributes:
        place: path or URL.
        name: the place for messages, without secrets.
        storage: from which it is read.
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
        """Returns the version that the file has now.

        Raises:
            OSError: it cannot be read.
        """
        return (LocalFile(self.place) if self.is_local else self.storage.open(self.place)).version

    def open(self) -> OpenClipFile:
        """Opens the file.

        Raises:
            OSError: it cannot be read.
        """
        file = LocalFile(self.place) if self.is_local else opened(self.storage, self.place, self.known)
        return OpenClipFile(self.name, file, self.place if self.is_local else None)


class OpenClipFile:
    """An open file. Belongs to one process and, at a time, to one thread.

    Args:
        name: for messages.
        file: the open file.
        path: of a file of this machine; None for one of a store.

    Attributes:
        name: for messages.
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
        """The first bytes, read once.

        Raises:
            OSError: they cannot be read.
        """
        return self._file.read(0, _HEAD)

    def read(self, begin: int, length: int) -> bytes:
        """Returns `length` bytes from byte `begin` on; fewer only at the end, or where `stream()` ended.

        Raises:
            OSError: they cannot be read.
        """
        if self._stream is None or self._stream.size != self.version.size:
            return self._file.read(begin, length)
        place = self._stream.tell()  # where the library goes on
        self._stream.seek(begin)
        found = self._stream.read(length) or b""
        self._stream.seek(place)
        return found

    def stream(self, begin: int = 0) -> FileObject:
        """Returns the file as a new file object, which ends where the store fails: see `errors_of_store`.

        Args:
            begin: the byte at which the file object begins.
        """
        self._stream = _Stream(_Rest(self._file, begin) if begin else self._file)
        self._stream.name = self.name.rpartition("/")[2]  # its suffix is one of the hints at the format
        return self._stream

    @contextmanager
    def errors_of_store(self) -> Iterator[None]:
        """Raises the error that ended the last file object, if one did, in place of what the library made of it.

        Raises:
            OSError: the store failed, or the file was changed.
        """
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
