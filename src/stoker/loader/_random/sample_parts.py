"""The part of a dataset that a sample hangs on: of a concatenation, one of its datasets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

HeldBy = Callable[[Any], "list[Any] | None"]
"""Returns the datasets to which a wrapper of Stoker's or torch's forwards, or None."""

Route = Callable[[int], int]
"""Returns the number of the part that has a sample."""

_SAME_INDEX = ("MapDataset", "RetryDataset", "RateLimitDataset")
_PLAIN = (list, tuple, range, np.ndarray)


class SampleParts:
    """The parts of a dataset below its concatenations, subsets and wrappers.

    Args:
        dataset: map-style.
        held_by: tells wrappers from other datasets.

    Attributes:
        parts: the innermost datasets, each once; only `dataset` itself if it is no wrapper.
    """

    def __init__(self, dataset: Any, held_by: HeldBy) -> None:
        self.parts: list[Any] = []
        self._numbers: dict[int, int] = {}  # by the `id` of the part: a concatenation may name a dataset several times
        self._held_by = held_by
        self._route = self._routed(dataset)

    def of(self, index: Any) -> int | None:
        """Returns the number of a sample's part, or None for an index that is no place in the dataset."""
        try:
            return self._route(index)
        except (TypeError, LookupError, ValueError):  # it is the dataset's to complain
            return None

    def _routed(self, dataset: Any) -> Route:
        held = self._held_by(dataset)
        kind = next((base.__name__ for base in type(dataset).__mro__ if "__getitem__" in vars(base)), "")
        if held is not None and kind == "ConcatDataset":
            return _in_concatenation(list(dataset.cumulative_sizes), [self._routed(part) for part in held])
        if held is not None and kind == "Subset" and type(dataset.indices) in _PLAIN:
            return _in_subset(dataset.indices, self._routed(dataset.dataset))
        if held is not None and kind in _SAME_INDEX:
            return self._routed(held[0])
        number = self._numbers.setdefault(id(dataset), len(self.parts))
        if number == len(self.parts):
            self.parts.append(dataset)
        return lambda index: number


def _in_concatenation(ends: list[int], routes: list[Route]) -> Route:
    def route(index: int) -> int:
        if index < 0:
            index += ends[-1]
        place = bisect_right(ends, index)
        return routes[place](index - ends[place - 1] if place else index)

    return route


def _in_subset(indices: Sequence[Any], inner: Route) -> Route:
    return lambda index: inner(indices[index])
