"""Allocation of a collator's output: in the batch's own memory while a worker collates, else in new memory.

A worker of a process backend lends the collator the memory in which the batch travels, so that it is written once.
Collators call `empty()` or `empty_tensor()` in both cases. Thread safe: each thread has its own lender.
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
"""Takes a number of bytes; returns a writable buffer of at least that size, aligned to 64 bytes, or None."""


class _Lending(threading.local):
    lender: Lender | None = None


_lending = _Lending()


class lent_by:  # a class, since every batch enters it: a generator would take twice as long
    """Context in which `empty()` and `empty_tensor()` of this thread ask `lender` for memory; None: no lender.

    Lent memory travels and is reused for other batches. User code that may keep its allocations, such as a dataset that
    collates, therefore runs under None.
    """

    def __init__(self, lender: Lender | None) -> None:
        self._lender = lender

    def __enter__(self) -> None:
        self._before, _lending.lender = _lending.lender, self._lender

    def __exit__(self, *error: object) -> None:
        _lending.lender = self._before


def is_lent() -> bool:
    """Returns whether this thread has a lender."""
    return _lending.lender is not None


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Returns an uninitialised, contiguous array, in lent memory if available."""
    if (lender := _lending.lender) is None:
        return np.empty(shape, dtype)
    count = math.prod(shape)
    buffer = lender(count * dtype.itemsize) if count and dtype.itemsize and not dtype.hasobject else None
    return np.empty(shape, dtype) if buffer is None else np.frombuffer(buffer, dtype, count).reshape(shape)


def empty_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns an uninitialised, contiguous CPU tensor, in lent memory if available."""
    import torch

    lent = lent_tensor(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device="cpu") if lent is None else lent


def lent_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Returns an uninitialised, contiguous CPU tensor in lent memory; None if no memory is lent for it.

    Serves callers with a faster way than writing into given memory: `torch.stack` takes twice as long with `out`.
    """
    if (lender := _lending.lender) is None:
        return None
    import torch

    count = math.prod(shape)
    buffer = lender(count * dtype.itemsize) if count else None
    return None if buffer is None else torch.frombuffer(buffer, dtype=dtype, count=count).view(tuple(shape))
