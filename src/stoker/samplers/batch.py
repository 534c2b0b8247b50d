"""Indices in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from stoker._core import nominal
from stoker._core.protocol import offered
from stoker.samplers.base import Sampler, described
from stoker.samplers.passes import passes_of


class BatchSampler(Sampler[list[int]], nominal.base("BatchSampler")):  # type: ignore[misc]
    """Yields lists of the indices that a sampler yields.

    Args:
        sampler: any iterable. A one-time iterable, such as a generator, makes one pass.
        batch_size: indices in a list.
        drop_last: leave out a shorter last list.

    Raises:
        ValueError: `batch_size` is no positive integer, or `drop_last` no bool.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size!r}")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        """Yields the batches; takes the indices of a batch from the sampler only when that batch is requested."""
        indices = chain(self.sampler)  # one iter() for all batches: a second one would restart some samplers
        while batch := list(islice(indices, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the sampler, if it offers `set_epoch`: torch's `DistributedSampler`, Stoker's
        samplers, and classes with `stoker_protocol = True`.
        """
        if callable(hand_on := offered(self.sampler, "set_epoch")):
            hand_on(epoch)

    def __repr__(self) -> str:
        return described(self, "sampler", "batch_size", "drop_last")

    def __len__(self) -> int:
        """Returns the number of batches.

        Raises:
            TypeError: the sampler has no length.
        """
        count = len(self.sampler)  # type: ignore[arg-type]  # not every iterable has one
        if (passes := passes_of(self.sampler)) is not None:
            count = passes.length(count)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
