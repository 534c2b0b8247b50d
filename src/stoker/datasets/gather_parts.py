"""Gathers a batch whose samples lie in several datasets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from stoker.datasets.gather import Indices, alike, gather_from, layout_of, leaves_of, mapped

_FEW = 8
"""Samples of each dataset in a batch below which fetching them one by one is as fast."""


def common_layout(datasets: Sequence[Any]) -> Any:
    """Returns the layout of a sample, if all datasets can gather and have the same layout; else None."""
    layouts = [layout_of(dataset) for dataset in datasets]
    if any(layout is None for layout in layouts) or not all(alike(layouts[0], layout) for layout in layouts):
        return None
    return layouts[0]


def gather_parts(datasets: Sequence[Any], which: Indices, local: Indices, out: Any) -> Any:
    """Makes each dataset write its part of a batch, unless each part would be only a few samples.

    Args:
        datasets: all of one layout.
        which: for each sample of the batch, the number of the dataset that holds it.
        local: its index in that dataset.
        out: the batch.

    Returns:
        None; or `NotImplemented`, and `out` may then have any content.
    """
    order = np.argsort(which, kind="stable")
    bounds = np.flatnonzero(np.diff(which[order], prepend=-1, append=-1))  # the starts of the datasets' parts
    parts = len(bounds) - 1
    if parts > 2 and len(which) < parts * _FEW:
        return NotImplemented
    in_order = bool((order[1:] > order[:-1]).all())
    # Rows of one dataset may lie anywhere in the batch: they are written together, then moved into place
    into = out if in_order else mapped(_beside, out)
    for start, stop in itertools.pairwise(bounds.tolist()):
        part = mapped(itemgetter(slice(start, stop)), into)
        dataset = datasets[int(which[order[start]])]
        if gather_from(dataset, local[order[start:stop]], part) is NotImplemented:
            return NotImplemented
    if not in_order:
        for leaf, rows in zip(leaves_of(out), leaves_of(into), strict=True):
            leaf[order] = rows
    return None


def _beside(leaf: Any) -> Any:
    """Returns memory of the same size and kind."""
    return np.empty_like(leaf) if isinstance(leaf, np.ndarray) else leaf.new_empty(leaf.shape)
