"""Stoker keeps accelerators fed: data loading for training with the API that PyTorch users know.

    from stoker import DataLoader

Importing this package has no side effects and loads neither torch nor any module below it: each public name is loaded
when it is first used, because some are subclasses of torch's where torch is installed (see `docs/design`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker import errors
    from stoker._freeze import freeze
    from stoker._worker_info import WorkerInfo, get_worker_info
    from stoker.collate import PadCollator, default_collate, default_convert
    from stoker.datasets import (
        ChainDataset,
        ConcatDataset,
        Dataset,
        FilterDataset,
        IterableDataset,
        MapDataset,
        MixDataset,
        StackDataset,
        Stream,
        StreamIterator,
        Subset,
        TensorDataset,
        ViewsDataset,
        WindowDataset,
        ZipDataset,
        average_views,
        columns,
        from_iterable,
        random_split,
    )
    from stoker.errors import (
        BatchError,
        CannotSendError,
        DeviceInWorkerError,
        IteratorClosedError,
        LeafTypeError,
        LoaderTimeoutError,
        MemoryLimitError,
        MissingExtraError,
        MissingFieldError,
        SamplerError,
        ShardingError,
        SickBirthError,
        StateError,
        StateFormatError,
        StateMismatchError,
        StokerError,
        StokerWarning,
        WorkerDiedError,
        WorkerStartError,
        WorkerTraceback,
    )
    from stoker.loader.dataloader import DataLoader
    from stoker.loader.stateful import StatefulDataLoader
    from stoker.samplers import (
        BatchSampler,
        DistributedSampler,
        RandomSampler,
        Sampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    __version__: str

__all__ = [
    "BatchError",
    "BatchSampler",
    "CannotSendError",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DeviceInWorkerError",
    "DistributedSampler",
    "FilterDataset",
    "IterableDataset",
    "IteratorClosedError",
    "LeafTypeError",
    "LoaderTimeoutError",
    "MapDataset",
    "MemoryLimitError",
    "MissingExtraError",
    "MissingFieldError",
    "MixDataset",
    "PadCollator",
    "RandomSampler",
    "Sampler",
    "SamplerError",
    "SequentialSampler",
    "ShardingError",
    "SickBirthError",
    "StackDataset",
    "StateError",
    "StateFormatError",
    "StateMismatchError",
    "StatefulDataLoader",
    "StokerError",
    "StokerWarning",
    "Stream",
    "StreamIterator",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "ViewsDataset",
    "WeightedRandomSampler",
    "WindowDataset",
    "WorkerDiedError",
    "WorkerInfo",
    "WorkerStartError",
    "WorkerTraceback",
    "ZipDataset",
    "average_views",
    "columns",
    "default_collate",
    "default_convert",
    "errors",
    "freeze",
    "from_iterable",
    "get_worker_info",
    "random_split",
]

_MODULES = {
    "stoker._worker_info": ("WorkerInfo", "get_worker_info"),
    "stoker.collate": ("PadCollator", "default_collate", "default_convert"),
    "stoker.datasets": (
        "ChainDataset",
        "ConcatDataset",
        "Dataset",
        "FilterDataset",
        "IterableDataset",
        "MapDataset",
        "MixDataset",
        "StackDataset",
        "Stream",
        "StreamIterator",
        "Subset",
        "TensorDataset",
        "ViewsDataset",
        "WindowDataset",
        "ZipDataset",
        "average_views",
        "columns",
        "from_iterable",
        "random_split",
    ),
    "stoker.errors": (
        "BatchError",
        "CannotSendError",
        "DeviceInWorkerError",
        "IteratorClosedError",
        "LeafTypeError",
        "LoaderTimeoutError",
        "MemoryLimitError",
        "MissingExtraError",
        "MissingFieldError",
        "SamplerError",
        "ShardingError",
        "SickBirthError",
        "StateError",
        "StateFormatError",
        "StateMismatchError",
        "StokerError",
        "StokerWarning",
        "WorkerDiedError",
        "WorkerStartError",
        "WorkerTraceback",
    ),
    "stoker._freeze": ("freeze",),
    "stoker.loader.dataloader": ("DataLoader",),
    "stoker.loader.stateful": ("StatefulDataLoader",),
    "stoker.samplers": (
        "BatchSampler",
        "DistributedSampler",
        "RandomSampler",
        "Sampler",
        "SequentialSampler",
        "SubsetRandomSampler",
        "WeightedRandomSampler",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("stoker.errors")
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("stoker")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
