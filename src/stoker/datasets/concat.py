"""Datasets one after the other, by index."""

from __future__ import annotations

import itertools
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from stoker import _nominal
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.described import describe
from stoker.datasets.gather import Indices, alike, gather_from, inside, layout_of, leaves_of, mapped

T_co = TypeVar("T_co", covariant=True)

_FEW = 8
"""With fewer samples of each dataset in a batch, asking them one by one is as quick."""


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

    def describe(self, idx: int) -> Any:
        """Returns what the dataset that has the sample at `idx` says of it, by a `describe(index)` of its own; else
        None.
        """
        if not -len(self) <= idx < len(self):  # as whoever asks for it is told
            return None
        idx = idx % len(self)
        place = bisect_right(self.cumulative_sizes, idx)
        return describe(self.datasets[place], idx - (self.cumulative_sizes[place - 1] if place else 0))

    def gather_layout(self) -> Any:
        """Returns what the samples of all datasets look like, if they can gather and are alike."""
        layouts = [layout_of(dataset) for dataset in self.datasets]
        if any(layout is None for layout in layouts) or not all(alike(layouts[0], layout) for layout in layouts):
            return None
        return layouts[0]

    def gather(self, indices: Indices, out: Any) -> Any:
        """Has each dataset write its part of the batch; not where that would be a few samples of each."""
        ends = np.asarray(self.cumulative_sizes)
        positions = inside(indices, int(ends[-1]))
        datasets = np.searchsorted(ends, positions, side="right")
        order = np.argsort(datasets, kind="stable")
        bounds = np.flatnonzero(np.diff(datasets[order], prepend=-1, append=-1))  # where another dataset's part begins
        parts = len(bounds) - 1
        if parts > 2 and len(indices) < parts * _FEW:
            return NotImplemented
        in_order = bool((order[1:] > order[:-1]).all())
        # Rows of one dataset may lie anywhere in the batch, but are written side by side: then they are put in place
        into = out if in_order else mapped(_beside, out)
        for start, stop in itertools.pairwise(bounds.tolist()):
            which = int(datasets[order[start]])
            local = positions[order[start:stop]] - (ends[which - 1] if which else 0)
            part = mapped(itemgetter(slice(start, stop)), into)
            if gather_from(self.datasets[which], local, part) is NotImplemented:
                return NotImplemented
        if not in_order:
            for leaf, rows in zip(leaves_of(out), leaves_of(into), strict=True):
                leaf[order] = rows
        return None

    @property
    def cummulative_sizes(self) -> Sequence[int]:
        """Deprecated: `cumulative_sizes` under its old, misspelt name."""
        warnings.warn(
            "`cummulative_sizes` attribute is renamed to `cumulative_sizes`", category=FutureWarning, stacklevel=2
        )
        return self.cumulative_sizes


def _beside(leaf: Any) -> Any:
    """Memory of the same size and kind."""
    return np.empty_like(leaf) if isinstance(leaf, np.ndarray) else leaf.new_empty(leaf.shape)
