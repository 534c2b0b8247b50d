"""Orders as functions: the indices of an epoch by position.

The loader does not iterate over a sampler that offers a method `order(key)` (by `stoker_protocol = True`), or a batch
sampler that offers `batches(key)`: it calls the method once for each epoch, with 64 bits derived from the epoch's seed.
The result knows every position at once, so the loader can begin anywhere, divide positions among ranks, and resume in
constant time.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

Int64Array = np.ndarray[Any, np.dtype[np.int64]]


class Order(Protocol):
    """An epoch's indices by position. Immutable and thread safe; the same key gives the same order."""

    def __len__(self) -> int:
        """Returns the number of positions."""

    def take(self, positions: Int64Array) -> Int64Array:
        """Returns the indices at these positions (one dimension, from 0 to `len(self) - 1`), in their order."""


class BatchOrder(Protocol):
    """An epoch's batches by number. Immutable and thread safe; the same key gives the same batches."""

    def __len__(self) -> int:
        """Returns the number of batches."""

    def batch(self, number: int) -> list[int]:
        """Returns the indices of a batch, from 0 to `len(self) - 1`."""

    def position(self, number: int) -> int:
        """Returns the number of samples in the batches before this one. Distinct samples have distinct positions."""


@runtime_checkable
class HasOrder(Protocol):
    """A sampler whose order is a function."""

    def order(self, key: int) -> Order:
        """Returns the order that belongs to `key`, a number of 64 bits."""


@runtime_checkable
class HasBatches(Protocol):
    """A batch sampler whose batches are a function."""

    def batches(self, key: int) -> BatchOrder:
        """Returns the batches that belong to `key`, a number of 64 bits."""
