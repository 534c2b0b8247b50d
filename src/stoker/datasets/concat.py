"""Datasets one after the other, by index."""

from __future__ import annotations

import itertools
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from stoker import _nominal
from stoker.datasets.base import Dataset, is_stream

T_co = TypeVar("T_co", covariant=True)


class ConcatDataset(Dataset[T_co], _nominal.base("ConcatDataset")):  # type: ignore[misc]
    """The samples of the first dataset, then those of the second, and so on.

    Lengths are asked once, when it is built. A sample is found in O(log k) among k datasets.

    Args:
        datasets: at least one; each has `__len__` and `__getitem__`.

    Attributes:
        datasets: the datasets, as a list.
        cumulative_sizes: for each dataset, where it ends.

    Raises:
        AssertionError: there is no dataset, or one is an `IterableDataset`.
    """

    datasets: list[Any]
    cumulative_sizes: list[int]

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """Returns the running sum of the lengths."""
        return list(itertools.accumulate(map(len, sequence)))

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(map(is_stream, self.datasets)):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = self.cumsum(self.datasets)

    def __len__(self) -> int:
        """Returns the number of samples of all datasets, as it was when this one was built."""
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> T_co:
        """Returns the sample at `idx`, from the end where it is negative.

        Raises:
            ValueError: `idx` is negative and beyond the beginning.
            IndexError: `idx` is beyond the end.
        """
        if idx < 0:
            if -idx > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            idx = idx + len(self)  # not `+=`: a tensor would change in the caller's hands
        place = bisect_right(self.cumulative_sizes, idx)
        start = self.cumulative_sizes[place - 1] if place else 0
        sample: T_co = self.datasets[place][idx - start]
        return sample

    @property
    def cummulative_sizes(self) -> Sequence[int]:
        """Deprecated: `cumulative_sizes` under its old, misspelt name."""
        warnings.warn(
            "`cummulative_sizes` attribute is renamed to `cumulative_sizes`", category=FutureWarning, stacklevel=2
        )
        return self.cumulative_sizes
