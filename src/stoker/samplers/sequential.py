"""All samples, from the first to the last."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from stoker._core import nominal
from stoker.samplers.base import Sampler, described
from stoker.samplers.order import Int64Array, Order
from stoker.samplers.passes import WalkedInEpochs


class SequentialSampler(WalkedInEpochs, Sampler[int], nominal.base("SequentialSampler")):  # type: ignore[misc]
    """Yields 0 to n - 1; n is the length of the dataset when the iteration begins.

    Args:
        data_source: the dataset, or any object with a length.
    """

    data_source: Sized

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        """Yields the indices in order; if the loader divides them among ranks, those of this rank."""
        return iter(range(length_of(self.data_source))) if self._passes is None else self._passes.indices(self)

    def order(self, key: int) -> Order:
        """Returns the same for any key: each position is its index."""
        return _Ascending(length_of(self.data_source))

    def __len__(self) -> int:
        """Returns the current length of the dataset."""
        return length_of(self.data_source)

    def __repr__(self) -> str:
        return described(self, "data_source")


def length_of(dataset: Sized) -> int:
    """Returns the length of a dataset.

    Raises:
        TypeError: it has none; of a class in its place, the message says so.
    """
    try:
        return len(dataset)
    except TypeError as error:
        if not isinstance(dataset, type):
            raise
        name = dataset.__name__
        raise TypeError(f"{error}: {name} is a class. Call it, as in DataLoader({name}(...)).") from None


class _Ascending:
    """The numbers 0 to n - 1 in ascending order."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def take(self, positions: Int64Array) -> Int64Array:
        return positions
