"""Datasets one after another, by index."""

from __future__ import annotations

import itertools
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from stoker._core import nominal
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.described import describe
from stoker.datasets.gather import Indices, inside
from stoker.datasets.gather_parts import common_layout, gather_parts

T_co = TypeVar("T_co", covariant=True)


class ConcatDataset(Dataset[T_co], nominal.base("ConcatDataset")):  # type: ignore[misc]
    """The samples of the first dataset, then those of the second, and so on.

    Lengths are read once, at construction. A sample is found in O(log k) among k datasets.

    Args:
        datasets: at least one; each has `__len__` and `__getitem__`.

    Attributes:
        datasets: the datasets, as a list.
        cumulative_sizes: the end of each dataset in the whole.

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
        """Returns the number of samples of all datasets, as it was at construction."""
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> T_co:
        """Returns the sample at `idx`; a negative index counts from the end.

        Raises:
            ValueError: `idx` is negative and beyond the beginning.
            IndexError: `idx` is beyond the end.
        """
        if idx < 0:
            if -idx > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            idx = idx + len(self)  # not `+=`, which would change the caller's tensor
        place = bisect_right(self.cumulative_sizes, idx)
        start = self.cumulative_sizes[place - 1] if place else 0
        sample: T_co = self.datasets[place][idx - start]
        return sample

    def describe(self, idx: int) -> Any:
        """Returns the description of the sample at `idx` by the dataset that holds it, if that offers `describe`; else
        None.
        """
        if not -len(self) <= idx < len(self):  # `__getitem__` raises for it
            return None
        idx = idx % len(self)
        place = bisect_right(self.cumulative_sizes, idx)
        return describe(self.datasets[place], idx - (self.cumulative_sizes[place - 1] if place else 0))

    def gather_layout(self) -> Any:
        """Returns the layout of a sample, if all datasets can gather and have the same layout."""
        return common_layout(self.datasets)

    def gather(self, indices: Indices, out: Any) -> Any:
        """Makes each dataset write its part of the batch, unless each part would be only a few samples."""
        ends = np.asarray(self.cumulative_sizes)
        positions = inside(indices, int(ends[-1]))
        datasets = np.searchsorted(ends, positions, side="right")
        local = positions - np.concatenate([[0], ends])[datasets]
        return gather_parts(self.datasets, datasets, local, out)

    @property
    def cummulative_sizes(self) -> Sequence[int]:
        """Deprecated: `cumulative_sizes` under its former, misspelt name."""
        warnings.warn(
            "`cummulative_sizes` attribute is renamed to `cumulative_sizes`", category=FutureWarning, stacklevel=2
        )
        return self.cumulative_sizes
