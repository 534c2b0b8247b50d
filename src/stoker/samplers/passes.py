"""Samplers of ours as others walk them: a loader whose epochs are functions of its seed lends them to its sampler.

Frameworks rebuild a loader from its parts. Accelerate and the Trainer of Hugging Face make one of torch's around our
batch sampler to skip the batches that a stopped run has seen. What they walk there has to be the epoch that the loader
would have given, and the next epoch at the next pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from stoker.samplers.order import HasBatches, HasOrder


class Passes(Protocol):
    """The epochs of a loader, one for each pass over its sampler. It does not hold the loader."""

    def indices(self, sampler: HasOrder) -> Iterator[int]:
        """This rank's indices of the next epoch, which is decided when the first is asked for."""

    def batches(self, sampler: HasBatches) -> Iterator[list[int]]:
        """This rank's batches of the next epoch, which is decided when the first is asked for."""

    def length(self, n: int) -> int:
        """How many of `n` positions are this rank's."""

    def set_epoch(self, epoch: int) -> None:
        """Makes this epoch the next one, of the loader as well."""


class WalkedInEpochs:
    """A sampler that gives its loader's epochs to whoever walks it, if the loader has a `seed=` or `distributed=`."""

    _passes: Passes | None = None

    def set_epoch(self, epoch: int) -> None:
        """Makes this epoch the next one, of the loader as well; without such a loader nothing happens."""
        if self._passes is not None:
            self._passes.set_epoch(epoch)


def lend(sampler: WalkedInEpochs, passes: Passes) -> None:
    """Makes a sampler give a loader's epochs: of several loaders, those of the last."""
    sampler._passes = passes


def passes_of(sampler: Any) -> Passes | None:
    """The epochs that a sampler gives, if a loader has lent it some."""
    return sampler._passes if isinstance(sampler, WalkedInEpochs) else None
