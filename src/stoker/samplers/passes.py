"""Iteration over Stoker's samplers by other loaders: yields the epochs of the loader that owns the sampler.

Frameworks rebuild a loader from its parts. Accelerate and the Trainer of Hugging Face make one of torch's loaders
around Stoker's batch sampler to skip the batches that a stopped run has seen. Iterating over the sampler then has to
yield the epoch that Stoker's loader would have given, and its next epoch at the next pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from stoker.samplers.order import HasBatches, HasOrder


class Passes(Protocol):
    """The epochs of a loader, one for each pass over its sampler. Does not keep the loader alive."""

    def indices(self, sampler: HasOrder) -> Iterator[int]:
        """Yields this rank's indices of the next epoch, which is determined when the first index is requested."""

    def batches(self, sampler: HasBatches) -> Iterator[list[int]]:
        """Yields this rank's batches of the next epoch, which is determined when the first batch is requested."""

    def length(self, n: int) -> int:
        """Returns the number of this rank's positions among `n`."""

    def set_epoch(self, epoch: int) -> None:
        """Makes this epoch the next one, of the loader as well."""


class WalkedInEpochs:
    """A sampler whose iteration yields the epochs of its loader, if the loader has a `seed=` or `distributed=`."""

    _passes: Passes | None = None

    def set_epoch(self, epoch: int) -> None:
        """Makes this epoch the next one, of the loader as well; does nothing without such a loader."""
        if self._passes is not None:
            self._passes.set_epoch(epoch)


def lend(sampler: WalkedInEpochs, passes: Passes) -> None:
    """Makes a sampler yield the epochs of a loader; a later call replaces an earlier one."""
    sampler._passes = passes


def passes_of(sampler: Any) -> Passes | None:
    """Returns the epochs lent to a sampler by a loader, or None."""
    return sampler._passes if isinstance(sampler, WalkedInEpochs) else None
