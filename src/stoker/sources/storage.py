"""Files and the stores that hold them: the interface through which sources read, and local files.

A `Storage` is a small picklable value; it opens a `File`, which belongs to one process. Sources read by position only,
so threads can share a file. Object stores are `ObjectStorage`, in `object_store.py`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Version(NamedTuple):
    """The version of a file: if it differs, the file has changed.

    Attributes:
        size: in bytes.
        mtime_ns: of the last modification, in nanoseconds since 1970; 0 if there is a tag.
        tag: an object store's name for the contents (ETag); empty for local files.
    """

    size: int
    mtime_ns: int
    tag: str = ""


class File(Protocol):
    """An open file, read by position. Thread safe. Closed when the last reference to it is dropped."""

    @property
    def version(self) -> Version:
        """The version when the file was opened."""

    def read(self, begin: int, length: int) -> bytes:
        """Returns `length` bytes from byte `begin` on; fewer only at the end of the file.

        Raises:
            OSError: the file cannot be read.
        """


class Storage(Protocol):
    """A store of files. Picklable; holds nothing open."""

    def open(self, path: str) -> File:
        """Opens a file for reading.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """

    def read(self, path: str, begin: int, length: int) -> bytes:
        """Returns `length` bytes of a file from byte `begin` on; fewer only at its end.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """


@runtime_checkable
class OpensKnown(Storage, Protocol):
    """A store that need not be asked when a file is opened whose version is known."""

    def open_known(self, path: str, version: Version) -> File:
        """Returns a file of this version, without a request. Reads raise `FileChangedError` if it has another one."""


@runtime_checkable
class OpensTogether(Storage, Protocol):
    """A store of which files are opened together more quickly than one by one."""

    def open_all(self, paths: Sequence[str], tail: int = 0) -> Iterator[File]:
        """Yields files in order. Their last `tail` bytes may be read already."""


def opened_all(storage: Storage, paths: Sequence[str], tail: int = 0) -> Iterator[File]:
    """Yields files of a store in order.

    Args:
        storage: the store.
        paths: of the files.
        tail: the last bytes of each file that will be read at once.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    return storage.open_all(paths, tail) if isinstance(storage, OpensTogether) else map(storage.open, paths)


def opened(storage: Storage, path: str, version: Version | None) -> File:
    """Opens a file of a store, whose version is known if it is given: it may have changed since.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    if version is not None and isinstance(storage, OpensKnown):
        return storage.open_known(path, version)
    return storage.open(path)


class LocalFile:
    """A regular file of this machine."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file, so it cannot be read by position")
        self.version = Version(status.st_size, status.st_mtime_ns)

    def read(self, begin: int, length: int) -> bytes:
        found = os.pread(self._descriptor, length, begin)
        while len(found) < length and (more := os.pread(self._descriptor, length - len(found), begin + len(found))):
            found += more
        return found

    def __del__(
        self, close: Callable[[int], None] = os.close
    ) -> None:  # module globals may be None at interpreter exit
        if self._descriptor >= 0:
            close(self._descriptor)


class LocalStorage:
    """The files of this machine, by path."""

    def open(self, path: str) -> LocalFile:
        return LocalFile(path)

    def read(self, path: str, begin: int, length: int) -> bytes:
        return LocalFile(path).read(begin, length)
