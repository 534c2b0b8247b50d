"""The samples of each class."""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.samplers.order import Int64Array

_FLOATS = (float, np.floating)
_BLOCK = 2**20  # labels processed at once


class ByClass:
    """The samples in order of their classes; within a class, in order of the dataset.

    Built in blocks: takes four bytes for each label beside the labels (eight from 2**32 labels on), and about 12 s for
    10**8 labels. Immutable.

    Args:
        labels: one for each sample, one-dimensional: an array, a memmap, a tensor, or a sequence of sortable values.

    Attributes:
        classes: the distinct labels, ascending.
        starts: start of each class in `members`.

    Raises:
        ValueError: the labels are empty or not one-dimensional, or one is NaN.
        TypeError: the labels cannot be sorted.
    """

    def __init__(self, labels: Any) -> None:
        given = np.asarray(labels)
        if (
            given.dtype.kind == "f"
            and not hasattr(labels, "dtype")
            and not any(isinstance(label, _FLOATS) for label in labels)
        ):
            given = np.asarray(labels, object)  # integers below and above 2**63 would be rounded by NumPy
        if given.ndim != 1 or not len(given):
            raise ValueError(
                f"labels should be in one dimension, one for each sample, but have shape {given.shape}"
                + (": argmax makes labels of one-hot rows" if given.ndim == 2 else "")
            )
        blocks = [slice(start, start + _BLOCK) for start in range(0, len(given), _BLOCK)]
        self.classes, self.counts = given[:0], np.zeros(0, np.int64)
        for block in blocks:
            self._count(*_unique(given[block], block.start))
        self.starts: Int64Array = np.cumsum(self.counts) - self.counts
        self.members: np.ndarray[Any, Any] = np.empty(len(given), np.uint32 if len(given) < 2**32 else np.int64)
        ends = self.starts.copy()
        small = np.min_scalar_type(len(self.classes))  # narrow numbers sort in a fraction of the time
        for block in blocks:
            codes = np.searchsorted(self.classes, given[block]).astype(small)
            order = np.argsort(codes, kind="stable")
            present, firsts, counts = np.unique(codes[order], return_index=True, return_counts=True)
            places = np.repeat(ends[present] - firsts, counts) + np.arange(len(order))
            self.members[places] = order + block.start
            ends[present] += counts

    def _count(self, classes: Any, counts: Int64Array) -> None:
        union = np.union1d(self.classes, classes)
        total = np.zeros(len(union), np.int64)
        total[np.searchsorted(union, self.classes)] += self.counts
        total[np.searchsorted(union, classes)] += counts
        self.classes, self.counts = union, total

    def samples(self, classes: Any, places: Int64Array) -> Int64Array:
        """Returns the indices of samples, each given by its class's place in `classes` and its own in the class."""
        indices: Int64Array = self.members[self.starts[classes] + places].astype(np.int64)
        return indices


def _unique(labels: Any, start: int) -> tuple[Any, Int64Array]:
    missing = np.flatnonzero(labels != labels)
    if len(missing):
        raise ValueError(f"labels[{start + missing[0]}] is {labels[missing[0]]}: each sample needs a class")
    try:
        return np.unique(labels, return_counts=True)
    except TypeError as error:
        raise TypeError(
            f"labels of dtype {labels.dtype} cannot be sorted ({error}): give integers or strings"
        ) from None
