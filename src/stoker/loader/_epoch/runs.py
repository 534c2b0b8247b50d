"""Runs: units of several batches, which a worker makes one after the other (`docs/design/38-runs.md`)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.loader._epoch import epoch
from stoker.loader._job import datapipes
from stoker.samplers.batch import BatchSampler

if TYPE_CHECKING:
    from stoker._engine.backend import Answer
    from stoker.loader._options.loader_options import LoaderOptions

LONGEST = 16
"""Batches in a run at most: the costs that a run divides among its batches are a few hundredths of theirs then."""

LARGEST = 2**20
"""Bytes of the batches in a run at most, unless it is one batch."""

CHEAP = 1e-3
"""Seconds below which a batch is made for which runs gain anything."""

IN_TIME = 4e-3
"""Seconds of work that a run is planned for: less than `EARLY`, after which a worker answers before it is over."""

FORCED: int | None = None
"""Batches in each run where runs are allowed, whatever they cost: for tests."""

AHEAD = 2
"""Runs under way for each worker: it makes one while the user takes the batches of the other."""


def longest(options: LoaderOptions) -> int:
    """Returns the number of batches in a run at most; 1 if each batch is a unit of its own.

    It is one where the order is not known ahead, where a worker has a state of its own, where it makes several batches
    at once already, where memory is bounded, which is divided among batches, where workers are on other machines, and
    where batches go to a device or through a `batch_transform` from slots of their own. A `prefetch_factor` of the
    user's counts batches, and bounds the run.
    """
    if (
        not options.capabilities.has_workers
        or options.units_at_once > 1
        or options.in_flight
        or options.seeding == "worker"
        or options.memory_budget is not None
        or options.remote is not None
        or options.device is not None
        or options.batch_transform is not None
        or datapipes.prepares_workers(options)
        or not (epoch.is_computed(options) or may_read_ahead(options))
    ):
        return 1
    return min(LONGEST, options.prefetch_factor or 1) if options.counts_batches else LONGEST


def may_read_ahead(options: LoaderOptions) -> bool:
    """Returns whether a walked sampler is torch's own, of indices that depend on nothing once its pass has begun."""
    if (torch := sys.modules.get("torch")) is None or options.is_stream:
        return False
    data, sampler = torch.utils.data, options.index_sampler
    if options.auto_collation:
        if type(sampler) not in (BatchSampler, data.BatchSampler):
            return False
        sampler = sampler.sampler
    kind = type(sampler)
    return kind is data.SequentialSampler or (kind is data.RandomSampler and sampler.generator is None)


class RunLength:
    """The number of batches in the next run, by what the last ones have cost. The first ones are single.

    Args:
        most: of a run; see `longest`.

    Attributes:
        now: batches in the next run.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.now = min(most, FORCED or 1)

    def learn(self, answer: Answer) -> None:
        """Takes the cost of an answer into account: twice as many where it was low, half as many where it was high."""
        if self._most == 1 or FORCED or (cost := answer.cost) is None:
            return
        seconds = cost.seconds / cost.units
        if seconds >= CHEAP or answer.kind != "batch":
            self.now = max(1, self.now // 2)
            return
        fits = min(self._most, 2 * self.now, int(IN_TIME / seconds))
        if fits > self.now:
            size = _bytes_of(answer.value) if cost.size is None else cost.size // cost.units
            fits = 1 if size is None else min(fits, LARGEST // max(1, size))
        self.now = max(1, fits)


_SCALARS = (bool, int, float, complex, str, bytes, type(None))


def _bytes_of(batch: Any) -> int | None:
    """Returns the bytes of a batch of arrays, tensors, texts and numbers; None if it holds anything else."""
    kind = type(batch)
    if kind is np.ndarray or ((torch := sys.modules.get("torch")) is not None and kind is torch.Tensor):
        return None if kind is np.ndarray and batch.dtype.hasobject else int(batch.nbytes)
    if kind in _SCALARS:
        return sys.getsizeof(batch)
    if issubclass(kind, (list, tuple)):
        parts = batch
    elif issubclass(kind, dict):
        parts = [*batch, *batch.values()]
    else:
        return None
    total = 0
    for part in parts:
        if (size := _bytes_of(part)) is None:
            return None
        total += size
    return total
