"""Blocks of bytes in a folder that all processes of a machine share: bounded, checksummed, least recently used out.

**The folder.** A block is a file `xx/NAME.block`. While it is written it is `xx/NAME.part`; a rename ends that. The
file `used` holds the sum of the sizes of both kinds.

**Writing.** A process locks the part with `flock` before it makes the data, so that others wait for it in place of
making the same. The lock ends with its owner: the next one takes over the part of a process that was killed.

**The bound.** A writer reserves its size in `used`, and gives the part that size, before it writes. If the limit would
be exceeded, blocks are removed first: the least recently used tenth of the folder or, in a folder of more than 20,000
blocks, of that many chosen at random. The part of a process that was killed counts until it is removed in this way.

**Reading** takes no lock. A block whose checksum is wrong is removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

from stoker.sources import block_file
from stoker.sources.block_file import BlockAccount, account, on_disk, size_of

if sys.platform != "win32":
    import fcntl

SAMPLED = 20_000
"""Blocks among which the least recently used are looked for."""
FRESH = 10.0
"""Seconds for which a block counts as just used, so that not every read writes its time of use."""

_log = logging.getLogger("stoker")


class BlockCache:
    """A bounded folder of blocks. Any number of threads and processes may use it at once, and may be killed.

    Picklable; holds nothing open. If processes use the folder with different limits, each keeps its own as it writes.

    Args:
        folder: created, for this user only, if it does not exist.
        limit: bytes on disk.
        evict: whether a full cache removes the least recently used blocks; if not, it keeps all and takes no more.

    Raises:
        NotImplementedError: the system has no `flock`.
    """

    def __init__(self, folder: str, limit: int, evict: bool = True) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("blocks can be cached only on systems with flock: Linux and macOS")
        self.folder = os.path.abspath(folder)
        self.limit = limit
        self.evict = evict
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        with self._account():
            pass

    @property
    def _used(self) -> str:
        return os.path.join(self.folder, "used")

    def path_of(self, name: str) -> str:
        """Returns the file of a block."""
        return os.path.join(self.folder, name[:2], f"{name}.block")

    def get(self, name: str, length: int, begin: int, end: int) -> bytes | None:
        """Returns bytes `begin` to `end` of a block, verified; None if it is missing, damaged or unreadable.

        Args:
            name: 32 hexadecimal digits.
            length: of the whole block, in bytes.
            begin: first byte to return, counted in the block.
            end: byte behind the last one to return.
        """
        path = self.path_of(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = block_file.read(descriptor, name, length, begin, end)
            if data is None:
                self._discard(descriptor, path)
            elif time.time() - os.fstat(descriptor).st_mtime > FRESH:
                os.utime(descriptor)
            return data
        except OSError as error:
            _log.info("the cached block %s cannot be read: %s", path, error)
            return None
        finally:
            os.close(descriptor)

    def _discard(self, descriptor: int, path: str) -> None:
        """Removes a damaged block, unless another process has done so."""
        with self._account() as own:
            if own is not None and _is_at(descriptor, path):
                _log.warning("the cached block %s is damaged: it is removed, and its data is read again", path)
                os.unlink(path)
                own.used -= on_disk(os.fstat(descriptor).st_size)

    def claim(self, name: str) -> BlockClaim | None:
        """Returns the right to write a block, to be used as a context; None while another thread or process has it.

        Raises:
            OSError: the folder cannot be written, or its file system has no locks.
        """
        part = self.path_of(name).removesuffix("block") + "part"
        while True:
            try:
                descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(part), mode=0o700, exist_ok=True)
                continue
            try:
                if not _is_locked(descriptor):
                    os.close(descriptor)
                    return None
                if _is_at(descriptor, part):
                    return BlockClaim(self, name, descriptor, part)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its owner has just renamed or removed it

    def reserve(self, descriptor: int, size: int) -> bool:
        """Counts a part and gives it its size; returns False, and does nothing, if there is no room for it."""
        with self._account() as own:
            taken = on_disk(size) - on_disk(os.fstat(descriptor).st_size)  # that of a killed process is counted
            if own is None or on_disk(size) > self.limit:
                return False
            if own.used + taken > self.limit and self.evict:
                self._make_room(own, taken)
            if own.used + taken > self.limit:
                return False
            own.used += taken
            own.write()  # first: if this process is killed here, the count is too large and not too small
            os.ftruncate(descriptor, size)
            return True

    def finish(self, part: str, name: str) -> bool:
        """Makes a part that is written a block; returns False if the account is not free.

        The account is held because a process that counts files would see one that is renamed meanwhile twice, or never.
        """
        path = self.path_of(name)
        with self._account() as own:
            if own is None:
                return False
            replaced = 0
            with contextlib.suppress(FileNotFoundError):  # a block that could not be read
                replaced = on_disk(os.stat(path).st_size)
            os.rename(part, path)
            own.used -= replaced
            return True

    def remove(self, descriptor: int, part: str) -> None:
        """Removes a part that this thread has locked."""
        taken = on_disk(os.fstat(descriptor).st_size)
        if not taken:  # it was not counted
            os.unlink(part)
            return
        with self._account() as own:
            if own is not None:  # else it is removed when room is needed
                os.unlink(part)
                own.used -= taken

    def is_first_to_tell(self, within: float) -> bool:
        """Returns whether no process has called this in the last `within` seconds. False if that is not known."""
        try:
            with self._account() as own:
                now = time.time()
                if own is None or now - within < own.told <= now:
                    return False
                own.told = now
                return True
        except OSError:
            return True

    def _account(self) -> AbstractContextManager[BlockAccount | None]:
        return account(self._used, self._count)

    def _count(self) -> int:
        return sum(taken for path, taken, _ in self._files() if _is_kept(path))

    def _make_room(self, own: BlockAccount, size: int) -> None:
        """Removes blocks until there is room for `size` bytes more, and a tenth of those that were looked at."""
        blocks: list[tuple[int, int, str]] = []
        used = 0
        for path, taken, used_at in self._files():
            if path.endswith(".block"):
                blocks.append((used_at, taken, path))
                if len(blocks) >= SAMPLED:
                    break
            elif _is_kept(path):
                used += taken
            else:
                own.used -= taken
        seen = sum(taken for _, taken, _ in blocks)
        if len(blocks) < SAMPLED:
            own.used = seen + used
        if own.used + size <= self.limit:
            return
        goal = min(self.limit - size, own.used - seen // 10)
        for _, taken, path in sorted(blocks):
            if own.used <= goal:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
                own.used -= taken

    def _files(self) -> Iterator[tuple[str, int, int]]:
        """Yields the path of each block and part, its bytes on disk, and when it was last used, in random order."""
        folders = [f"{number:02x}" for number in range(256)]
        random.SystemRandom().shuffle(folders)
        for folder in folders:
            with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(self.folder, folder)) as entries:
                for entry in entries:
                    if entry.name.endswith((".block", ".part")):
                        with contextlib.suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            yield entry.path, on_disk(status.st_size), status.st_mtime_ns


class BlockClaim:
    """The right of one thread to write a block. Given back at the end of the context."""

    def __init__(self, cache: BlockCache, name: str, descriptor: int, part: str) -> None:
        self._cache = cache
        self._name = name
        self._descriptor = descriptor
        self._part = part
        self._is_stored = False

    def store(self, data: memoryview) -> None:
        """Writes the block, if there is room for it."""
        if self._cache.reserve(self._descriptor, size_of(len(data))):
            block_file.write(self._descriptor, self._name, data)
            self._is_stored = self._cache.finish(self._part, self._name)

    def __enter__(self) -> BlockClaim:
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            if not self._is_stored:
                with contextlib.suppress(OSError):
                    self._cache.remove(self._descriptor, self._part)
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked child may have inherited the file
            os.close(self._descriptor)


def _is_locked(descriptor: int) -> bool:
    """Locks a file, or returns False if another thread or process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: str) -> bool:
    """Returns whether an open file is the one that is now at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _is_kept(path: str) -> bool:
    """Removes a part that no process writes, and returns False; True for one that is being written, and for a block."""
    if path.endswith(".block"):
        return True
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not _is_locked(descriptor):
            return True
        if _is_at(descriptor, path):
            os.unlink(path)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)
