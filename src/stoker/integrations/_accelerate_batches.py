"""Accelerate's sharing out of batches among ranks, as a function: batch k of a rank in constant time."""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.loader._epoch import epoch
from stoker.loader._epoch.rank_slice import Mode
from stoker.loader._state import schema
from stoker.loader.record import options_of
from stoker.samplers.batch import BatchSampler
from stoker.samplers.order import BatchOrder, Order


def is_known(loader: Any) -> bool:
    """Returns whether batches of a loader are a function of seed and epoch."""
    options = options_of(loader)
    return options.auto_collation and epoch.is_computed(options)


def state_after(loader: Any, number: int, batches: int) -> dict[str, Any]:
    """Returns the state of a loader with a known order after `batches` of this rank in epoch `number`.

    Constant time: the state that follows from the numbers alone.
    """
    options = options_of(loader)
    by_number = epoch.has_function(options.batch_sampler, "batches")
    size = 1 if by_number else options.batch_sampler.batch_size
    position = min(batches * size * epoch.world_of(options).size, len(epoch.knower(options)))
    _, place, kind = schema.unpacked(loader.state_dict())
    return schema.packed(number, place._replace(seed=None, batches=batches, position=position), kind)


class SharedBatches(BatchSampler):
    """The batches of all ranks, by number; the loader gives rank r of n batches r, r + n, ...

    Its attributes are those of Accelerate's `BatchSamplerShard`, from which Accelerate computes the size of a step.

    Args:
        batch_sampler: Stoker's, whose epochs are a function of a key.
        num_processes: number of ranks.
        process_index: this rank.
        split_batches: whether a batch of `batch_sampler` is that of all ranks, and not of one.
        even_batches: whether all ranks get the same number of full batches; samples come twice for that.

    Raises:
        ValueError: `split_batches` with batches that cannot be split evenly.
    """

    stoker_protocol = True

    def __init__(
        self, batch_sampler: Any, num_processes: int, process_index: int, split_batches: bool, even_batches: bool
    ) -> None:
        self.batch_sampler = batch_sampler
        self.sampler: Any = getattr(batch_sampler, "sampler", None)
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size = getattr(batch_sampler, "batch_size", None)  # type: ignore[assignment]  # None if they differ
        self.drop_last = bool(getattr(batch_sampler, "drop_last", False))
        if split_batches and not (self._is_plain and self.batch_size % num_processes == 0):
            raise ValueError(
                f"split_batches=True needs batches of a fixed size that {num_processes} ranks divide evenly, but "
                f"{type(batch_sampler).__name__} has batch_size={self.batch_size}: use another batch_size, or "
                "split_batches=False."
            )

    @property
    def mode(self) -> Mode:
        """Returns the treatment of a last round that does not divide evenly, as in `distributed=`."""
        return "drop" if self.drop_last else "pad" if self.even_batches else "exact"

    @property
    def _is_plain(self) -> bool:
        return type(self.batch_sampler) is BatchSampler

    @property
    def _size(self) -> int:
        return self.batch_size // self.num_processes if self.split_batches else self.batch_size

    @property
    def total_length(self) -> int:
        """Returns the number of batches of the sampler that is shared out."""
        return len(self.batch_sampler)

    def __len__(self) -> int:
        """Returns the number of batches of all ranks together, before any is repeated."""
        if not self._is_plain:
            return len(self.batch_sampler)
        count = len(self.sampler)  # a sampler whose order is a function has a length
        return count // self._size if self.drop_last else -(-count // self._size)

    def batches(self, key: int) -> BatchOrder:
        """Returns the epoch that belongs to `key`: the one that the loader would have alone."""
        if not self._is_plain:
            known: BatchOrder = self.batch_sampler.batches(key)
            return known
        return _CutOrder(self.sampler.order(key), self._size, len(self), self.even_batches)


class _CutOrder:
    """An order cut into batches; a `BatchOrder`."""

    def __init__(self, order: Order, size: int, count: int, is_even: bool) -> None:
        self._order = order
        self._size = size
        self._count = count
        self._is_even = is_even

    def __len__(self) -> int:
        """Returns the number of batches."""
        return self._count

    def batch(self, number: int) -> list[int]:
        """Returns the indices of a batch; the last one, if it is to be even, is filled with the epoch's first ones."""
        places = np.arange(number * self._size, (number + 1) * self._size, dtype=np.int64)
        places = places % len(self._order) if self._is_even else places[places < len(self._order)]
        indices: list[int] = self._order.take(places).tolist()
        return indices

    def position(self, number: int) -> int:
        """Returns the number of samples in the batches before this one."""
        return number * self._size
