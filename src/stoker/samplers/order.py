"""Orders as functions: what an epoch yields, asked for by position instead of walked.

A sampler that has a method `order(key)`, or a batch sampler that has `batches(key)`, is not walked by the loader: it is
asked, once for each epoch, with 64 bits that follow from the epoch's seed. The answer knows every position at once, so
the loader can begin anywhere, share positions out among ranks, and resume in constant time.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

Int64Array = np.ndarray[Any, np.dtype[np.int64]]


class Order(Protocol):
    """An epoch's indices by position. Immutable: any thread may ask, in any order; the same key gives the same."""

    def __len__(self) -> int:
        """How many positions there are."""

    def take(self, positions: Int64Array) -> Int64Array:
        """The indices at these positions (one dimension, from 0 to `len(self) - 1`), in their order."""


class BatchOrder(Protocol):
    """An epoch's batches by number. Immutable: any thread may ask, in any order; the same key gives the same."""

    def __len__(self) -> int:
        """How many batches there are."""

    def batch(self, number: int) -> list[int]:
        """The indices of a batch, from 0 to `len(self) - 1`."""

    def position(self, number: int) -> int:
        """How many samples the batches before this one hold. Distinct samples of an epoch stand at distinct places."""


@runtime_checkable
class HasOrder(Protocol):
    """A sampler whose order is a function."""

    def order(self, key: int) -> Order:
        """The order that belongs to `key`, a number of 64 bits."""


@runtime_checkable
class HasBatches(Protocol):
    """A batch sampler whose batches are a function."""

    def batches(self, key: int) -> BatchOrder:
        """The batches that belong to `key`, a number of 64 bits."""
