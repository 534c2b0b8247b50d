"""Memory under a small or copied tensor of a batch, which stays as long as somebody may look at it.

`share_memory_()` and multiprocessing queues move a tensor's storage to other memory, and free the old. A NumPy view
that was taken before still looks there. With torch's loader nothing of it happens, since its batches lie in shared
memory from the beginning. Such a view keeps its tensor, and that keeps the storage: so when this memory is let go of
while the storage lives, it is kept until the storage is gone.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


moved: deque[Owned] = deque()
"""What has to stay because a storage was moved away from it, of all loaders: some of them may have ended."""


AT_ONCE = 64
"""A training loop may keep any number of them, and pays for looking."""


def look_again() -> None:
    """At some of what has to stay; the others have their turn."""
    for _ in range(min(AT_ONCE, len(moved))):
        try:
            kept = moved.popleft()
        except IndexError:  # another thread looks at them
            return
        kept.look_again()


class Owned(np.ndarray[Any, Any]):
    """An array that nobody sees but the tensor that is made over it."""

    __slots__ = ("_weak",)  # to the storage, once there is one
    _weak: Any

    def look_again(self) -> None:
        """Lets go if the storage is gone by now, else comes back into `moved`. Only by who has taken it from there."""
        _, has_expired, forget = _storages()
        weak = self._weak
        if has_expired(weak):
            del self._weak
            forget(weak)
        else:
            moved.append(self)

    # By whoever lets go of it, in any thread; at the interpreter's end modules may be empty
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_weak") and not is_finalizing():
            self.look_again()


def tensor_over(array: Owned) -> torch.Tensor:
    """The one tensor that is made over this memory."""
    tensor: torch.Tensor = _storages()[0](array)
    array._weak = tensor.untyped_storage()._weak_ref()
    return tensor


@functools.cache
def _storages() -> tuple[Callable[[Any], Any], Callable[[Any], bool], Callable[[Any], None]]:
    import torch

    kind: Any = torch.UntypedStorage
    return torch.from_numpy, kind._expired, kind._free_weak_ref
