"""Which sample comes next.

The classes are subclasses of torch's in name, so they are loaded on first use; `permutation` needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker._first_use import loading

if TYPE_CHECKING:
    from stoker.samplers.balanced import BalancedBatchSampler
    from stoker.samplers.base import Sampler
    from stoker.samplers.batch import BatchSampler
    from stoker.samplers.bucket import BucketBatchSampler
    from stoker.samplers.class_weights import weights_from_labels
    from stoker.samplers.distributed import DistributedSampler
    from stoker.samplers.random import RandomSampler
    from stoker.samplers.sequential import SequentialSampler
    from stoker.samplers.stratified import StratifiedBatchSampler
    from stoker.samplers.subset_random import SubsetRandomSampler
    from stoker.samplers.weighted import WeightedRandomSampler
else:
    __getattr__ = loading(
        __name__,
        {
            "BalancedBatchSampler": "balanced",
            "BatchSampler": "batch",
            "BucketBatchSampler": "bucket",
            "DistributedSampler": "distributed",
            "RandomSampler": "random",
            "Sampler": "base",
            "SequentialSampler": "sequential",
            "StratifiedBatchSampler": "stratified",
            "SubsetRandomSampler": "subset_random",
            "WeightedRandomSampler": "weighted",
            "weights_from_labels": "class_weights",
        },
    )


__all__ = [
    "BalancedBatchSampler",
    "BatchSampler",
    "BucketBatchSampler",
    "DistributedSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StratifiedBatchSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "weights_from_labels",
]
