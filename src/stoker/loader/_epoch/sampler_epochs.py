"""Provides a loader's epochs to code that iterates over its sampler directly (`stoker/samplers/passes.py`), and checks
samplers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stoker import errors
from stoker._core.protocol import asked, is_ours_or_torchs
from stoker.loader._epoch import epoch
from stoker.loader._epoch.epoch import knower, length_if_known
from stoker.loader._epoch.epoch_counter import EpochCounter
from stoker.loader._epoch.ranks import RankSlice
from stoker.loader._options import argument_checks
from stoker.loader._random.generators import mix
from stoker.samplers import passes
from stoker.samplers.order import HasBatches, HasOrder
from stoker.samplers.passes import WalkedInEpochs

if TYPE_CHECKING:
    from stoker.loader._options.loader_options import LoaderOptions


_BLOCK = 4096
"""Positions of an order that are computed in one call."""


class SamplerEpochs:
    """The options that determine a loader's epochs, without a reference cycle through the loader.

    Args:
        options: of the loader, with a `seed=` or `distributed=`.
        epochs: counts the loader's epochs.
    """

    def __init__(self, options: LoaderOptions, epochs: EpochCounter) -> None:
        self.seed = options.seed
        self.distributed = options.distributed
        self.num_replicas = options.num_replicas
        self.rank = options.rank
        self.batches_per_epoch = options.batches_per_epoch
        self._batch_size = asked(options.batch_sampler, "batch_size") or 1
        self._epochs = epochs

    def set_epoch(self, number: int) -> None:
        """Makes epoch `number` the next one."""
        self._epochs.set_by_others(number)

    def length(self, n: int) -> int:
        """Returns the number of positions of this rank, out of `n`."""
        if self.batches_per_epoch is not None:
            return self.batches_per_epoch * self._batch_size
        return len(self._share(n))

    def indices(self, sampler: HasOrder) -> Iterator[int]:
        """Yields this rank's indices of the next epoch."""
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
        """Yields this rank's batches of the next epoch."""
        known = sampler.batches(mix(epoch.seed_of(self, self._epochs.next_pass())))
        share = self._share(len(known))
        for k in range(len(share)):
            yield known.batch(int(share.positions(k, k + 1)[0]))

    def _share(self, n: int, begin: int = 0) -> RankSlice:
        return RankSlice(n, begin, epoch.world_of(self), self.distributed or "exact")


def lend_to_samplers(options: LoaderOptions, epochs: EpochCounter) -> None:
    """Gives a loader's epochs to the sampler that knows its order, if they follow from a seed."""
    if epoch.is_fixed(options) and epoch.is_computed(options):
        lent = SamplerEpochs(options, epochs)
        for sampler in (
            epoch.knower(options),
            options.own_sampler,
        ):  # also beside a batch sampler: Lightning calls its set_epoch
            if isinstance(sampler, passes.WalkedInEpochs):
                passes.lend(sampler, lent)


def check_samplers(options: LoaderOptions, tell: Callable[[str], None]) -> None:
    """Refuses a sampler that was made for a larger dataset, and generators of another device, before they are used."""
    if options.is_stream:
        return
    known = knower(options)
    if isinstance(known, WalkedInEpochs):
        argument_checks.check_generator(getattr(known, "generator", None))
    counted = [_COUNTED[kind.__name__] for kind in type(known).__mro__ if is_ours_or_torchs(kind, *_COUNTED)]
    for name in counted[:1]:  # should have one item for each sample; none for an unknown class
        count, samples = length_if_known(getattr(known, name, None)), length_if_known(options.dataset)
        if count is None or samples is None or count == samples:
            continue
        message = f"the {type(known).__name__} has {count} {name}, but the dataset has {samples} samples"
        if count > samples:
            raise errors.SamplerError(f"{message}: one is needed for each. Were they made for another split?")
        tell(f"{message}: those from {count} on are never drawn. One is needed for each.")


_COUNTED = {
    "WeightedRandomSampler": "weights",
    "BucketBatchSampler": "lengths",
    "BalancedBatchSampler": "labels",
    "StratifiedBatchSampler": "labels",
}
"""The attribute of Stoker's and torch's samplers that has one item for each sample."""
