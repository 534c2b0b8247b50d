"""Lifetime of a batch's memory: small or copied tensors, large batches of the process itself, and copies to a device
that still read.

`share_memory_()` and multiprocessing queues move a tensor's storage to other memory and free the old memory. A NumPy
view taken before still points to the old memory. Torch's loader avoids this because its batches lie in shared memory
from the start. Such a view keeps its tensor alive, and the tensor its storage. So when the last reference to this
memory is dropped while the storage lives, the memory is kept until the storage is gone.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

if TYPE_CHECKING:
    import torch


if TYPE_CHECKING:
    AnyDtype: TypeAlias = np.dtype[np.generic[object]]
    Array: TypeAlias = np.ndarray[tuple[int, ...], AnyDtype]
else:  # NumPy's scalars are generic for type checkers alone
    AnyDtype, Array = np.dtype, np.ndarray

moved: deque[Owned] = deque()
"""Memory of all loaders, ended ones too, whose storage was moved elsewhere and still lives."""


AT_ONCE = 64
"""Entries that one call of `look_again` examines: bounds the cost when a training loop keeps many of them."""


def look_again() -> None:
    """Examines up to `AT_ONCE` entries of `moved`; later calls examine the others."""
    for _ in range(min(AT_ONCE, len(moved))):
        try:
            entry = moved.popleft()
        except IndexError:  # another thread took it
            return
        entry.look_again()


class Owned(Array):
    """An array referenced only by the tensor made over it."""

    __slots__ = ("_weak",)  # weak reference to the storage, once the tensor is made
    _weak: object

    def look_again(self) -> None:
        """Frees the memory if the storage is gone, else appends it to `moved`. Requires that the caller removed it."""
        _, has_expired, forget = _storages()
        weak = self._weak
        if has_expired(weak):
            del self._weak
            forget(weak)
        else:
            moved.append(self)

    # Runs in any thread. At interpreter exit, module globals may be None already.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_weak") and not is_finalizing():
            self.look_again()


def array_over(shape: tuple[int, ...], dtype: str | AnyDtype, memory: object, offset: int = 0) -> Array:
    """Returns an array over memory that a worker has written.

    Raises:
        UnpicklingError: its values would be addresses of objects, which are never sent so. A worker on another machine
            could name any address.
    """
    if np.dtype(dtype).hasobject:
        raise pickle.UnpicklingError(f"a worker sent memory as an array of {dtype}, whose values are addresses")
    return np.ndarray(shape, dtype, memory, offset)  # type: ignore[arg-type] # takes any buffer


def tensor_over(array: Owned) -> torch.Tensor:
    """Returns a tensor over this memory. Called once for each array."""
    tensor = _storages()[0](array)
    array._weak = tensor.untyped_storage()._weak_ref()
    return tensor


@functools.cache
def _storages() -> tuple[Callable[[Array], torch.Tensor], Callable[[object], bool], Callable[[object], None]]:
    import torch

    kind = torch.UntypedStorage
    has_expired = cast("Callable[[object], bool]", kind._expired)
    return torch.from_numpy, has_expired, cast("Callable[[object], None]", kind._free_weak_ref)


# Large batches that stay in this process reuse memory once its reference count shows that it is free: views of views,
# a tensor's storage and DLPack all count. An allocator returns large blocks to the system at once, so that the pages
# of the next batch fault again: 9,400 faults for 38 MB took five times as long as the batch itself.


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


# Leases held by a copy to a device, which reads the slot until it completes. A `Hold` is one more reference to the
# exporter under a batch's arrays (see `reader.py`); `release()` ends it, or an event (`until`):
#
#     batch = reader.read(slot, written)
#     hold = reader.hold()
#     event = start_copy(batch)  # returns at once
#     hold.until(event.query)
#
# The copy has to be complete before the process unmaps the slot: the owner waits for its events when it closes
# (`event.synchronize()`), and then calls `look()`.


_waiting: deque[tuple[Hold, Callable[[], bool]]] = deque()  # of all readers: a loader may end before its copies


class Hold:
    """Keeps the slot of a batch from being written again. Any thread may release it.

    Args:
        exporter: memory of the batch; None if it lies in no slot.
    """

    def __init__(self, exporter: object | None) -> None:
        self._exporter = exporter

    @property
    def is_active(self) -> bool:
        """Whether a slot is held."""
        return self._exporter is not None

    def release(self) -> None:
        """Gives up the hold. Idempotent."""
        self._exporter = None

    def until(self, is_over: Callable[[], bool]) -> None:
        """Releases the hold once `is_over()` returns true, or raises. It is asked whenever a loader's trainer looks for
        slots, thus at each batch, and must not wait.
        """
        if self.is_active:
            _waiting.append((self, is_over))


def look() -> None:
    """Releases the holds whose events have come. An exception of an event ends its hold, and is raised."""
    for _ in range(len(_waiting)):
        try:
            hold, is_over = _waiting.popleft()
        except IndexError:  # another thread took it
            return
        if not hold.is_active:
            continue
        over = True
        try:
            over = is_over()
        finally:
            if over:
                hold.release()
            else:
                _waiting.append((hold, is_over))


def pending() -> bool:
    """Returns whether a hold waits for its event."""
    return bool(_waiting)


def _leave_to_parent() -> None:
    _of_parent.extend(_waiting)  # not dropped: tensors of a device would be freed by a process without its context
    _waiting.clear()


_of_parent: list[object] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)  # an event belongs to the process that made it
