"""Memory for large batches that stay in the process that makes them, reused once no reference to a batch is left.

An allocator gives large blocks back to the system at once, so that each page of the next batch faults again: 9,400
faults for 38 MB took five times as long as the batch itself. Here the reference count of the memory shows that it is
free: views of views, a tensor's storage and DLPack all count. There are no leases and no messages.
"""

from __future__ import annotations

import sys

import numpy as np

LEAST = 32 << 20
"""Bytes below which malloc reuses memory itself, faster: glibc's `DEFAULT_MMAP_THRESHOLD_MAX` on 64-bit systems."""

REQUESTS = 16
"""Requests after which unused memory goes back to the system. A batch may make several requests."""

_ALIGNED = 64


class Recycled:
    """Memory for the batches of one job. Used by one thread at a time; batches may end in any thread."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._requests = 0

    def lend(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
        """Returns a writable buffer of `size` bytes, aligned to 64; None if an allocator is as fast."""
        if size < LEAST or not _COUNTS:
            return None
        idle = [block for block in self._blocks if _references(block) == _ALONE]
        block = next((block for block in reversed(idle) if block.holds(size)), None)
        if block is None:
            if idle:  # otherwise batches of many sizes would keep one block of each size
                self._blocks.remove(min(idle, key=lambda block: block.request))
            block = _Block(size)
            self._blocks.append(block)
        self._requests = block.request = self._requests + 1
        # Blocks in use are dropped too: the user may keep them for ever.
        self._blocks = [block for block in self._blocks if self._requests - block.request <= REQUESTS]
        begin = -block.memory.ctypes.data % _ALIGNED
        return block.memory[begin : begin + size]


class _Block:
    """Some memory, and the number of the request that used it last."""

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size + _ALIGNED, np.uint8)
        self.request = 0

    def holds(self, size: int) -> bool:
        """Returns whether `size` bytes fit and use at least 80 % of the block."""
        return size <= len(self.memory) - _ALIGNED <= size + size // 4


def _references(block: _Block) -> int:
    """Returns the references to the block's memory. Has no local variable for it: a tracer could keep that alive."""
    return sys.getrefcount(block.memory)


_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
_ALONE = _references(_Block(1)) if _COUNTS else 0
"""Reference count of memory that only its block refers to; depends on the interpreter."""
