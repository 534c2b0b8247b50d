"""Which sample comes next.

The classes are subclasses of torch's in name, so they are loaded on first use; `permutation` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.samplers.base import Sampler
    from stoker.samplers.batch import BatchSampler
    from stoker.samplers.distributed import DistributedSampler
    from stoker.samplers.random import RandomSampler
    from stoker.samplers.sequential import SequentialSampler
    from stoker.samplers.subset_random import SubsetRandomSampler
    from stoker.samplers.weighted import WeightedRandomSampler
else:
    _HOMES = {
        "BatchSampler": "batch",
        "DistributedSampler": "distributed",
        "RandomSampler": "random",
        "Sampler": "base",
        "SequentialSampler": "sequential",
        "SubsetRandomSampler": "subset_random",
        "WeightedRandomSampler": "weighted",
    }

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


__all__ = [
    "BatchSampler",
    "DistributedSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]
