"""`install(num_workers="auto")`: the loaders whose number of workers is found, and why the others keep theirs."""

from __future__ import annotations

import os
import sys
from typing import Any

from stoker.loader._epoch import epoch, ranks
from stoker.loader._job import datapipes
from stoker.loader._options.loader_options import LoaderOptions

NO_WORKERS = (
    "the loop may look at what its dataset does in this process: pass num_workers=1 or more, and the number is found"
)


def why_kept(options: LoaderOptions, order: str, rebuilds: bool) -> str | None:
    """Returns why a loader keeps the number of workers that the program gave it; None if the number is to be found.

    Args:
        options: of the loader behind torch's.
        order: of `install`, "stoker" or "torch".
        rebuilds: whether each worker unpickles the dataset.
    """
    if not options.num_workers:
        return NO_WORKERS
    if options.is_stream:
        return "a stream is read by a fixed number of workers"
    if datapipes.prepares_workers(options):
        return "worker_init_fn prepares a fixed number of workers"
    if not options.capabilities.own_process:
        return "its threads draw random numbers from this process's generators"
    if rebuilds:
        return "each of its workers starts in a clean interpreter, and holds a copy of the dataset"
    world = ranks.of_torch()
    if world is not None and world.size > 1 and "LOCAL_WORLD_SIZE" not in os.environ:
        return "LOCAL_WORLD_SIZE, the number of ranks that share this host's CPUs, is not set"
    if order == "torch" and not epoch.is_computed(options):
        drawing = _drawing(options.index_sampler)
        if drawing is not None:
            return (
                f"its {drawing} may draw random numbers while the epoch runs, and as many ahead as there are workers: "
                "with install(order='stoker') the number is found"
            )
    return None


def _drawing(sampler: Any) -> str | None:
    """Returns the name of a part of a sampler that may draw while an epoch runs; None if all draws are made first."""
    kind = type(sampler)
    if kind in (list, tuple, range):
        return None
    torch_data = sys.modules["torch.utils.data"]
    if kind is torch_data.BatchSampler:
        return _drawing(sampler.sampler)
    if kind is torch_data.RandomSampler:
        # With a generator of the program's it draws once more at its end
        draws_first = sampler.generator is None
        return None if draws_first else f"{kind.__name__} with a generator"
    first = ("SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler", "DistributedSampler")
    return None if kind in [getattr(torch_data, name) for name in first] else kind.__name__
