"""Memory of a small or copied tensor of a batch, kept as long as an array may view it.

`share_memory_()` and multiprocessing queues move a tensor's storage to other memory and free the old memory. A NumPy
view taken before still points to the old memory. Torch's loader avoids this because its batches lie in shared memory
from the start. Such a view keeps its tensor alive, and the tensor its storage. So when the last reference to this
memory is dropped while the storage lives, the memory is kept until the storage is gone.
"""

from __future__ import annotations

import functools
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
            kept = moved.popleft()
        except IndexError:  # another thread took it
            return
        kept.look_again()


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
