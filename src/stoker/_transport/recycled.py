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
        self._blocks: list[_Block] = []
        self._requests = 0

    def lend(self, size: int) -> Any:
        """A writable buffer of `size` bytes, aligned to 64; None where an allocator does as well."""
        if size < LEAST or not _COUNTS:
            return None
        idle = [block for block in self._blocks if _references(block) == _ALONE]
        block = next((block for block in reversed(idle) if block.holds(size)), None)
        if block is None:
            if idle:  # batches of many sizes would keep one of each
                self._blocks.remove(min(idle, key=lambda block: block.request))
            block = _Block(size)
            self._blocks.append(block)
        self._requests = block.request = self._requests + 1
        # Those in use too: the user may keep them for ever
        self._blocks = [block for block in self._blocks if self._requests - block.request <= REQUESTS]
        begin = -block.memory.ctypes.data % _ALIGNED
        return block.memory[begin : begin + size]


class _Block:
    """Some memory, and the request for which it was lent last."""

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size + _ALIGNED, np.uint8)
        self.request = 0

    def holds(self, size: int) -> bool:
        """Whether there is room for so many bytes, and not much more."""
        return size <= len(self.memory) - _ALIGNED <= size + size // 4


def _references(block: _Block) -> int:
    """To its memory. There must be no variable for that: whoever traces this function might refer to it as well."""
    return sys.getrefcount(block.memory)


_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
_ALONE = _references(_Block(1)) if _COUNTS else 0
"""The count of one that only its block has: it depends on the interpreter."""
