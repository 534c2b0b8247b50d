"""All samples, from the first to the last."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from stoker import _nominal
from stoker.samplers.base import Sampler
from stoker.samplers.order import Int64Array, Order
from stoker.samplers.passes import WalkedInEpochs


class SequentialSampler(WalkedInEpochs, Sampler[int], _nominal.base("SequentialSampler")):  # type: ignore[misc]
    """Yields 0 to n - 1, where n is the length that the dataset has when the iteration begins.

    Args:
        data_source: the dataset, or anything with a length.
    """

    data_source: Sized

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        """Yields the indices in order; with a loader that shares them out among ranks, this rank's."""
        return iter(range(len(self.data_source))) if self._passes is None else self._passes.indices(self)

    def order(self, key: int) -> Order:
        """Returns the same for any key: each position is its index."""
        return _Ascending(len(self.data_source))

    def __len__(self) -> int:
        """Returns the dataset's length of this moment."""
        return len(self.data_source)


class _Ascending:
    """The numbers 0 to n - 1 as they come."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def take(self, positions: Int64Array) -> Int64Array:
        return positions
