"""Memory for large batches that stay in the process that makes them: written again when nobody sees it any more.

An allocator gives what is large back to the system at once, and each page of the next batch is a fault again: of
38 MB 9,400, which took five times as long as the batch itself. Here the last reference says that nobody sees it: that
of a view of a view, of a tensor's storage, of DLPack, all count. So nothing is lent for a time, and nobody has to tell.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

LEAST = 32 << 20
"""Bytes. What is smaller malloc keeps itself, and quicker: glibc's `DEFAULT_MMAP_THRESHOLD_MAX` on 64 bits."""

REQUESTS = 16
"""Memory that was of no use for so many of them goes back to the system. A batch may have several large leaves."""

_ALIGNED = 64


class Recycled:
    """Memory that lies under the batches of one job. One thread at a time; batches may end in any."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray[Any, Any]] = []  # also what is in use
        self._used: list[int] = []  # the request for which each was lent last
        self._requests = 0

    def lend(self, size: int) -> Any:
        """A writable buffer of `size` bytes, aligned to 64; None where an allocator does as well."""
        if size < LEAST or not _COUNTS:
            return None
        self._requests += 1
        chosen = None
        for place in reversed(range(len(self._kept))):
            held = self._kept[place]
            room = len(held) - _ALIGNED
            if chosen is None and sys.getrefcount(held) == _ALONE and size <= room <= size + size // 4:
                chosen = held
                self._used[place] = self._requests
            elif self._requests - self._used[place] > REQUESTS:  # or the user keeps it, perhaps for ever
                del self._kept[place], self._used[place]
        if chosen is None:
            chosen = np.empty(size + _ALIGNED, np.uint8)
            self._kept.append(chosen)
            self._used.append(self._requests)
        begin = -chosen.ctypes.data % _ALIGNED
        return chosen[begin : begin + size]


def _alone() -> int:
    """What is counted for memory that only a list has, and who asks: it depends on the interpreter."""
    kept = [np.empty(1, np.uint8)]
    for place in reversed(range(len(kept))):
        held = kept[place]
        return sys.getrefcount(held)
    raise AssertionError


_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
_ALONE = _alone() if _COUNTS else 0
