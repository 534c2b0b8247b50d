"""A store of files whose blocks are kept on the local disk: `cached(storage, folder, size)`."""

from __future__ import annotations

import os

from stoker.datasets.combining import positive
from stoker.sources.block_cache import BlockCache
from stoker.sources.block_file import on_disk, size_of
from stoker.sources.cache_failures import CacheFailures
from stoker.sources.cached_file import CachedFile
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
        OSError: the folder cannot be written.
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
        OSError: the folder cannot be written.
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
        """Opens a file for reading; asks the store for its version.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """
        return self._kept(self.storage.open(path), path)

    def open_known(self, path: str, version: Version) -> File:
        """Opens a file whose version is known, without asking the store if that has this method too.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """
        known = getattr(self.storage, "open_known", None)
        return self.open(path) if known is None else self._kept(known(path, version), path)

    def _kept(self, file: File, path: str) -> File:
        if not _is_known(file.version):
            return file
        return CachedFile(file, path, self.blocks, self.failures, self.block_size, self.name)

    def read(self, path: str, begin: int, length: int) -> bytes:
        """Returns `length` bytes of a file from byte `begin` on; fewer only at its end.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """
        return self.open(path).read(begin, length)

    def read_whole(self, path: str) -> bytes:
        """Returns the contents of a file.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """
        file = self.open(path)
        return file.read(0, file.version.size)


def _is_known(version: Version) -> bool:
    """Returns whether a version tells more than the size."""
    return any(value for field, value in version._asdict().items() if field != "size")
