"""Where a collator's output is allocated: the batch's own memory while a worker collates, else fresh memory.

A worker of a process backend lends the collator the memory in which the batch will travel, so that it is written once.
Collators ask `empty()` or `empty_tensor()` and need not know. Thread safe: each thread has its own lender.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]

Lender = Callable[[int], Any]
"""Takes a number of bytes; gives a writable buffer of at least that size, aligned to 64 bytes, or None."""


class _Lending(threading.local):
    lender: Lender | None = None


_lending = _Lending()


class lent_by:  # every batch enters it: a generator would take twice as long
    """Within this context, `empty()` and `empty_tensor()` of this thread ask `lender` first; none if it is None.

    What is lent travels, and is another batch's later: code of the user's that may keep what it allocates, such as a
    dataset that collates, runs under None.
    """

    def __init__(self, lender: Lender | None) -> None:
        self._lender = lender

    def __enter__(self) -> None:
        self._before, _lending.lender = _lending.lender, self._lender

    def __exit__(self, *error: object) -> None:
        _lending.lender = self._before


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array, contiguous, in lent memory where there is some."""
    if (lender := _lending.lender) is None:
        return np.empty(shape, dtype)
    count = math.prod(shape)
    buffer = lender(count * dtype.itemsize) if count and dtype.itemsize and not dtype.hasobject else None
    return np.empty(shape, dtype) if buffer is None else np.frombuffer(buffer, dtype, count).reshape(shape)


def empty_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor, contiguous, in lent memory where there is some."""
    import torch

    lent = lent_tensor(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device="cpu") if lent is None else lent


def lent_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """An uninitialised CPU tensor, contiguous, in lent memory; None where there is none for it.

    For who has a quicker way than to write into given memory: `torch.stack` takes twice as long with `out`.
    """
    if (lender := _lending.lender) is None:
        return None
    import torch

    count = math.prod(shape)
    buffer = lender(count * dtype.itemsize) if count else None
    return None if buffer is None else torch.frombuffer(buffer, dtype=dtype, count=count).view(tuple(shape))
