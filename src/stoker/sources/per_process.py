"""Handles that belong to one process, opened at first use, never pickled, never used by a forked child; and a warning
given once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from stoker.sources.storage import File, Storage, Version, opened

T = TypeVar("T")

MOST_OPEN = 64
"""Files that `OpenFiles` holds open. Processes may have 1,024 descriptors, and a loader's workers have others."""


class PerProcess(Generic[T]):
    """A handle that each process opens for itself when it first asks.

    A copy made by pickling, and a forked child, open their own. The handle is closed with the last reference to this
    object, with `close()`, or at the end of the process. Thread safe: if two threads open it at once, one handle is
    closed again.

    Args:
        opens: returns a new handle. It is pickled with this object, so it must not hold a handle itself.
        closes: closes a handle.
        keeps_inherited: whether a forked child keeps the parent's handle alive without using it. True for libraries
            whose handles must not be closed in a child, because that would affect the parent; False to drop it.
    """

    def __init__(
        self, opens: Callable[[], T], closes: Callable[[T], None] | None = None, keeps_inherited: bool = False
    ) -> None:
        self._opens = opens
        self._closes = closes
        self._keeps_inherited = keeps_inherited
        self._by_process: dict[int, T] = {}

    def get(self) -> T:
        """Returns the handle of this process, and opens it at the first call.

        Raises:
            Exception: opening it failed. The next call tries again.
        """
        try:
            return self._by_process[os.getpid()]
        except KeyError:
            return self._open()

    def _open(self) -> T:
        me = os.getpid()
        if not self._keeps_inherited:
            for process in [other for other in list(self._by_process) if other != me]:
                self._by_process.pop(process, None)
        mine = self._opens()
        winner = self._by_process.setdefault(me, mine)
        if winner is not mine and self._closes is not None:
            self._closes(mine)
        return winner

    def close(self, getpid: Callable[[], int] = os.getpid) -> None:
        """Closes the handle of this process, if it is open. The next `get` opens another."""
        handle = self._by_process.pop(getpid(), None)
        if handle is not None and self._closes is not None:
            self._closes(handle)

    # At interpreter exit, module globals may be None already.
    def __del__(self, keep: Any = ctypes.pythonapi.Py_IncRef, as_object: Any = ctypes.py_object) -> None:
        if "_by_process" in self.__dict__:
            self.close()
            if self._keeps_inherited:  # it is not closed by its own finaliser either, at the end of the process
                for inherited in self._by_process.values():
                    keep(as_object(inherited))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_process": {}}

    def __copy__(self) -> PerProcess[T]:
        return PerProcess(self._opens, self._closes, self._keeps_inherited)


class OpenFiles:
    """Files of a store, opened at first use, of which each process holds up to `MOST_OPEN`. Thread safe."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._files: PerProcess[dict[str, File]] = PerProcess(dict)

    def get(self, path: str, version: Version | None = None) -> File:
        """Returns the open file at `path`, whose version is known if it is given."""
        files = self._files.get()
        file = files.get(path)
        if file is None:
            file = opened(self.storage, path, version)
            for oldest in list(files)[: max(0, len(files) - MOST_OPEN + 1)]:
                files.pop(oldest, None)  # closed when the last reader drops it
            files[path] = file
        return file

    def close(self) -> None:
        """Closes the files of this process."""
        self._files.close()


class Once:
    """Says to one caller that it is the first, among this process and those that it forks. A copy in a clean
    interpreter begins anew.
    """

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)  # shared with children

    def is_first(self) -> bool:
        """Returns whether nobody has called this before. Two processes at the same moment may both be first."""
        was_called, self._flag[0] = self._flag[0], 1
        return not was_called

    def __reduce__(self) -> tuple[type[Once], tuple[()]]:
        return Once, ()
