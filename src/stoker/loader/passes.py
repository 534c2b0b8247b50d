"""A loader's epochs for those who walk its sampler instead of it: see `stoker/samplers/passes.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.loader import epoch
from stoker.loader.generators import mix
from stoker.loader.shares import Share
from stoker.samplers import passes
from stoker.samplers.order import HasBatches, HasOrder

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader

_BLOCK = 4096
"""Positions that are computed at once."""


class LoaderPasses:
    """What a loader's epochs follow from, without the loader: neither waits for the garbage collector.

    Args:
        loader: one with a `seed=` or `distributed=`.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.seed = loader.seed
        self.distributed = loader.distributed
        self.num_replicas = loader.num_replicas
        self.rank = loader.rank
        self.batches_per_epoch = loader.batches_per_epoch
        self._batch_size = getattr(loader.batch_sampler, "batch_size", None) or 1
        self._epochs = loader._epochs

    def set_epoch(self, number: int) -> None:
        """Makes this epoch the next one."""
        self._epochs.set_by_others(number)

    def length(self, n: int) -> int:
        """How many of `n` positions are this rank's."""
        if self.batches_per_epoch is not None:
            return self.batches_per_epoch * self._batch_size
        return len(self._share(n))

    def indices(self, sampler: HasOrder) -> Iterator[int]:
        """This rank's indices of the next epoch."""
        number = self._epochs.next_pass()
        seed, begin, limit = epoch.seed_of(self, number), 0, None
        if self.batches_per_epoch is not None:
            limit = self.batches_per_epoch * self._batch_size
            piece = self._epochs.piece(number, limit * epoch.world_of(self).size)
            seed, begin = seed if piece.seed is None else piece.seed, piece.position
        order = epoch.order_of(sampler, seed, endless=limit is not None)
        share = self._share(len(order), begin)
        count = len(share) if limit is None else limit
        for start in range(0, count, _BLOCK):
            yield from order.take(share.positions(start, min(count, start + _BLOCK))).tolist()

    def batches(self, sampler: HasBatches) -> Iterator[list[int]]:
        """This rank's batches of the next epoch."""
        known = sampler.batches(mix(epoch.seed_of(self, self._epochs.next_pass())))
        share = self._share(len(known))
        for k in range(len(share)):
            yield known.batch(int(share.positions(k, k + 1)[0]))

    def _share(self, n: int, begin: int = 0) -> Share:
        return Share(n, begin, epoch.world_of(self), self.distributed or "exact")


def lend_to_samplers(loader: DataLoader[Any]) -> None:
    """Gives a loader's epochs to the sampler that knows its order, if they follow from a seed."""
    if epoch.is_fixed(loader) and epoch.is_computed(loader):
        lent = LoaderPasses(loader)
        for sampler in (epoch.knower(loader), loader._own_sampler):  # beside a batch sampler too: Lightning tells it
            if isinstance(sampler, passes.WalkedInEpochs):
                passes.lend(sampler, lent)
