"""Decides whether a batch may be gathered at once (`docs/design/08-gather-and-collation.md`), or split among several
workers, each of which makes some of its rows (`docs/design/11-parts.md`).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker import collate
from stoker.datasets.gather import UNKNOWN, foreseen
from stoker.datasets.nesting import batched_by
from stoker.loader._job import datapipes

if TYPE_CHECKING:
    from stoker.loader._options.loader_options import LoaderOptions


_NUMBERS = {int, np.int32, np.int64}

AT_ONCE = 2
"""Units that workers share at a time: free workers begin the second while others make the last rows of the first."""


def under_way(options: LoaderOptions, rows: int, workers: int) -> int:
    """Returns the number of units of `rows` rows that may be under way if workers share each unit.

    The workers then act as one, which receives its next unit before it has finished the current one. If units have too
    few rows to occupy all workers, more units may be under way.
    """
    enough = -(-AT_ONCE * workers // max(1, rows))
    ahead = options.prefetch_factor or 1
    return min(max(1, ahead * workers), max(enough, ahead + 1))


def ascends(indices: Any) -> bool:
    """Returns whether the indices of a batch are numbers of which each is larger than the one before."""
    if isinstance(indices, np.ndarray):
        return indices.ndim == 1 and indices.dtype.kind in "iu" and bool((indices[1:] > indices[:-1]).all())
    return set(map(type, indices)) <= _NUMBERS and all(map(operator.lt, indices, indices[1:]))


def gathers(options: LoaderOptions) -> bool | None:
    """Returns whether batches are gathered; None if only a call of the user's dataset in a worker can show it."""
    collated = options.collation(options.output)
    if options.is_stream or not options.auto_collation or not collate.is_default(collated):
        return False
    layout = foreseen(options.dataset)
    return None if layout is UNKNOWN else collate.is_gathered(collated, layout)


def may_gather(options: LoaderOptions) -> bool:
    """Returns whether batches are gathered, or may be: see `gathers`."""
    return gathers(options) is not False


def may_share(options: LoaderOptions) -> bool:
    """Returns whether a batch may be made in parts: samples are fetched one by one, and collated by rows.

    False if a user's function needs a whole batch (`collate_fn`, `batch_transform`, `__getitems__`, also of a dataset
    within one of Stoker's), if a worker has a state of its own (`worker_init_fn`, `seeding="worker"`), if a bad sample
    may be left out or replaced (`on_error`), if a worker's threads make several batches at once, if workers are on
    other machines, or if batches are gathered, which is cheap.
    """
    return (
        options.capabilities.splits_batches
        and options.remote is None
        and options.num_workers > 1
        and options.units_at_once == 1  # else a worker makes samples of several
        and options.auto_collation
        and not options.is_stream
        and not datapipes.prepares_workers(options)
        and options.seeding != "worker"
        and options.error_word == "raise"
        and collate.is_default(options.collation(options.output))
        and options.worker_transform is None
        and batched_by(options.dataset) is None
        and not may_gather(options)
    )
