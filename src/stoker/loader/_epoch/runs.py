"""Runs: units of several batches, which a worker makes one after the other (`docs/design/38-runs.md`)."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.loader._epoch import epoch
from stoker.loader._job import datapipes
from stoker.loader._random.find_generators import find_objects
from stoker.loader._random.generators import loaded_torch
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

    It is one where the order is not known ahead, where a worker has a state of its own or retires after some samples,
    where it makes several batches at once already, where memory is bounded, which is divided among batches, where
    workers are on other machines, where batches go to a device or through a `batch_transform` from slots of their own,
    where a `timeout` counts for each batch, and where samples may depend on what the loop writes into shared memory. A
    `prefetch_factor` of the user's counts batches, and bounds the run.
    """
    if (
        not options.capabilities.has_workers
        or options.units_at_once > 1
        or options.in_flight
        or options.seeding == "worker"
        or options.memory_budget is not None
        or options.max_samples_per_worker is not None
        or options.timeout
        or options.remote is not None
        or options.device is not None
        or options.batch_transform is not None
        or datapipes.prepares_workers(options)
        or not (epoch.is_computed(options) or may_read_ahead(options))
        or _follows_the_loop(options)
    ):
        return 1
    return min(LONGEST, options.prefetch_factor or 1) if options.counts_batches else LONGEST


_WRITTEN = {
    "multiprocessing.connection": ("_ConnectionBase",),
    "multiprocessing.managers": ("BaseProxy",),
    "multiprocessing.queues": ("Queue", "SimpleQueue"),
    "multiprocessing.shared_memory": ("SharedMemory", "ShareableList"),
    "multiprocessing.sharedctypes": ("SynchronizedBase",),
    "multiprocessing.synchronize": ("Event", "SemLock"),
}
_SETTING = 2**16
"""Bytes of a shared tensor that may hold a setting; larger ones are data."""


def _follows_the_loop(options: LoaderOptions) -> bool:
    """Returns whether dataset or `collate_fn` hold something that the loop may write while workers read it.

    What batches contain then depends on how far ahead they are made.
    """
    there = [(sys.modules.get(module), names) for module, names in _WRITTEN.items()]
    kinds = [getattr(module, name) for module, names in there if module is not None for name in names]
    if "multiprocessing.sharedctypes" in sys.modules:  # raw values and arrays
        kinds += [ctypes._SimpleCData, ctypes.Array, ctypes.Structure]
    if (torch := loaded_torch()) is not None:
        kinds.append(torch.Tensor)
    found = find_objects((options.dataset, options.collate_fn), tuple(kinds), ("multiprocessing", "concurrent"))
    tensors = [] if torch is None else [one for one in found if isinstance(one, torch.Tensor)]
    return len(found) > len(tensors) or any(_is_small_and_shared(one) for one in tensors)


def _is_small_and_shared(tensor: Any) -> bool:
    if type(tensor) is not sys.modules["torch"].Tensor or str(tensor.layout) != "torch.strided" or tensor.is_nested:
        return False
    return bool(tensor.device.type == "cpu" and tensor.nbytes <= _SETTING and tensor.is_shared())


def may_read_ahead(options: LoaderOptions) -> bool:
    """Returns whether a walked sampler is torch's own, of indices that depend on nothing once its pass has begun."""
    if (torch := loaded_torch()) is None or options.is_stream:
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


_DEEPEST = 8
"""Containers inside of one another; one that is deeper may hold itself."""


def _bytes_of(batch: Any, depth: int = 0) -> int | None:
    """Returns the bytes of a batch of arrays, dense tensors, texts and numbers; None if it holds anything else."""
    kind = type(batch)
    if kind is np.ndarray:
        return None if batch.dtype.hasobject else int(batch.nbytes)
    if (torch := loaded_torch()) is not None and kind is torch.Tensor:
        return int(batch.nbytes) if batch.layout is torch.strided and not batch.is_nested else None
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
        if depth == _DEEPEST or (size := _bytes_of(part, depth + 1)) is None:
            return None
        total += size
    return total
