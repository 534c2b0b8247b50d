"""Checks of samplers, before an epoch begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker import errors
from stoker._core.ours import is_ours_or_torchs
from stoker.loader._epoch.epoch import knower, length_if_known
from stoker.loader._options import argument_checks
from stoker.samplers.passes import WalkedInEpochs

if TYPE_CHECKING:
    from stoker.loader._options.loader_options import LoaderOptions


def check_samplers(options: LoaderOptions, tell: Callable[[str], None]) -> None:
    """Refuses a sampler that was made for a larger dataset, and generators of another device, before they are used."""
    if options.is_stream:
        return
    known = knower(options)
    if isinstance(known, WalkedInEpochs):
        argument_checks.check_generator(getattr(known, "generator", None))
    for name in _counted(known):
        count, samples = length_if_known(getattr(known, name, None)), length_if_known(options.dataset)
        if count is None or samples is None or count == samples:
            continue
        told = f"the {type(known).__name__} has {count} {name}, but the dataset has {samples} samples"
        if count > samples:
            raise errors.SamplerError(f"{told}: one is needed for each. Were they made for another split?")
        tell(f"{told}: those from {count} on are never drawn. One is needed for each.")


_COUNTED = {
    "WeightedRandomSampler": "weights",
    "BucketBatchSampler": "lengths",
    "BalancedBatchSampler": "labels",
    "StratifiedBatchSampler": "labels",
}
"""The attribute of Stoker's and torch's samplers that has one item for each sample."""


def _counted(sampler: Any) -> list[str]:
    """Returns the attributes of a sampler that should have one item for each sample; none for an unknown class."""
    return [_COUNTED[kind.__name__] for kind in type(sampler).__mro__ if is_ours_or_torchs(kind, *_COUNTED)][:1]
