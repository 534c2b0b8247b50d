"""The settings of a loader that was made before, torch's or ours, as arguments for a new one of ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.samplers import BatchSampler, RandomSampler

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader

_ORDER = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "stall_action")
"""What nobody may set without workers."""


def settings(loader: Any, ours: DataLoader[Any] | None, names: Sequence[str], is_stream: bool) -> dict[str, Any]:
    """The arguments of a loader, as far as they have an attribute there.

    Args:
        loader: whose settings they are.
        ours: the same, if it is one of ours.
        names: all arguments that it has.
        is_stream: whether it has an IterableDataset.
    """
    found = {name: getattr(loader, name) for name in names if name not in _ORDER}
    units = 1 if ours is None else ours._units_at_once
    if ours is not None and (auto := ours._automatic) is not None:
        found |= {"num_workers": "auto", **auto.set_aside}
    if found["prefetch_factor"] == max(2, units):  # the default, which follows from the other arguments
        del found["prefetch_factor"]
    if loader.batch_size is None and loader.batch_sampler is not None:
        return found | {"batch_sampler": loader.batch_sampler}
    found |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    return found if is_stream else found | _order_of(loader, ours)


def changed(found: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """These settings with other values; without workers, also without what only these can have."""
    if changes.get("num_workers") == 0:
        found = {name: value for name, value in found.items() if name not in _OF_WORKERS}
    return {**found, **changes}


def _order_of(loader: Any, ours: DataLoader[Any] | None) -> dict[str, Any]:
    """`shuffle=` where the loader made its sampler itself, else `sampler=`."""
    torch, sampler = sys.modules.get("torch"), loader.sampler
    batching = {type(None), BatchSampler} | ({torch.utils.data.BatchSampler} if torch is not None else set())
    if type(loader.batch_sampler) not in batching:
        return {"batch_sampler": loader.batch_sampler, "batch_size": 1, "drop_last": False}
    if ours is not None or torch is None:
        made_it = ours is not None and sampler is ours._own_sampler
        return {"shuffle": isinstance(sampler, RandomSampler)} if made_it else {"sampler": sampler}
    if type(sampler) is torch.utils.data.SequentialSampler and sampler.data_source is loader.dataset:
        return {"shuffle": False}
    plain = type(sampler) is torch.utils.data.RandomSampler and not sampler.replacement and sampler._num_samples is None
    if plain and sampler.generator is loader.generator and sampler.data_source is loader.dataset:
        return {"shuffle": True}
    return {"sampler": sampler}
