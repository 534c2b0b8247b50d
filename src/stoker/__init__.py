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
    from stoker._events import Event
    from stoker._freeze import freeze
    from stoker._worker_info import WorkerInfo, get_worker_info
    from stoker.collate import PadCollator, default_collate, default_convert
    from stoker.datasets import (
        CacheDataset,
        ChainDataset,
        ConcatDataset,
        Dataset,
        FilterDataset,
        InterleaveDataset,
        IterableDataset,
        MapDataset,
        MixDataset,
        PackDataset,
        ShuffleDataset,
        StackDataset,
        Stream,
        StreamIterator,
        Subset,
        TensorDataset,
        TextLineDataset,
        TokenWindows,
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
        EmptyBatchError,
        ErrorBudgetError,
        ErrorPolicyError,
        GradientInWorkerError,
        IntegerSizeError,
        IteratorBusyError,
        IteratorClosedError,
        LeafTypeError,
        LoaderTimeoutError,
        MemoryLimitError,
        MissingExtraError,
        MissingFieldError,
        QuarantineError,
        SamplerError,
        ShardingError,
        SickBirthError,
        SkipSample,
        StalledError,
        StateError,
        StateFormatError,
        StateMismatchError,
        StokerError,
        StokerWarning,
        StreamLostError,
        WorkerDiedError,
        WorkerStartError,
        WorkerTraceback,
    )
    from stoker.loader.dataloader import DataLoader
    from stoker.loader.faults import ErrorRecord
    from stoker.loader.in_step import in_step
    from stoker.loader.merging import merge_states
    from stoker.loader.quarantine import Quarantine, quarantine
    from stoker.loader.report import Report
    from stoker.loader.stateful import StatefulDataLoader
    from stoker.samplers import (
        BalancedBatchSampler,
        BatchSampler,
        BucketBatchSampler,
        DistributedSampler,
        RandomSampler,
        Sampler,
        SequentialSampler,
        StratifiedBatchSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
        weights_from_labels,
    )

    __version__: str

__all__ = [
    "BalancedBatchSampler",
    "BatchError",
    "BatchSampler",
    "BucketBatchSampler",
    "CacheDataset",
    "CannotSendError",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DeviceInWorkerError",
    "DistributedSampler",
    "EmptyBatchError",
    "ErrorBudgetError",
    "ErrorPolicyError",
    "ErrorRecord",
    "Event",
    "FilterDataset",
    "GradientInWorkerError",
    "IntegerSizeError",
    "InterleaveDataset",
    "IterableDataset",
    "IteratorBusyError",
    "IteratorClosedError",
    "LeafTypeError",
    "LoaderTimeoutError",
    "MapDataset",
    "MemoryLimitError",
    "MissingExtraError",
    "MissingFieldError",
    "MixDataset",
    "PackDataset",
    "PadCollator",
    "Quarantine",
    "QuarantineError",
    "RandomSampler",
    "Report",
    "Sampler",
    "SamplerError",
    "SequentialSampler",
    "ShardingError",
    "ShuffleDataset",
    "SickBirthError",
    "SkipSample",
    "StackDataset",
    "StalledError",
    "StateError",
    "StateFormatError",
    "StateMismatchError",
    "StatefulDataLoader",
    "StokerError",
    "StokerWarning",
    "StratifiedBatchSampler",
    "Stream",
    "StreamIterator",
    "StreamLostError",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "TextLineDataset",
    "TokenWindows",
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
    "in_step",
    "merge_states",
    "quarantine",
    "random_split",
    "weights_from_labels",
]

_MODULES = {
    "stoker._worker_info": ("WorkerInfo", "get_worker_info"),
    "stoker.collate": ("PadCollator", "default_collate", "default_convert"),
    "stoker.datasets": (
        "CacheDataset",
        "ChainDataset",
        "ConcatDataset",
        "Dataset",
        "FilterDataset",
        "InterleaveDataset",
        "IterableDataset",
        "MapDataset",
        "MixDataset",
        "PackDataset",
        "ShuffleDataset",
        "StackDataset",
        "Stream",
        "StreamIterator",
        "Subset",
        "TensorDataset",
        "TextLineDataset",
        "TokenWindows",
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
        "EmptyBatchError",
        "ErrorBudgetError",
        "ErrorPolicyError",
        "GradientInWorkerError",
        "IntegerSizeError",
        "IteratorBusyError",
        "IteratorClosedError",
        "LeafTypeError",
        "LoaderTimeoutError",
        "MemoryLimitError",
        "MissingExtraError",
        "MissingFieldError",
        "QuarantineError",
        "SamplerError",
        "ShardingError",
        "SickBirthError",
        "SkipSample",
        "StalledError",
        "StateError",
        "StateFormatError",
        "StateMismatchError",
        "StokerError",
        "StokerWarning",
        "StreamLostError",
        "WorkerDiedError",
        "WorkerStartError",
        "WorkerTraceback",
    ),
    "stoker._events": ("Event",),
    "stoker._freeze": ("freeze",),
    "stoker.loader.dataloader": ("DataLoader",),
    "stoker.loader.faults": ("ErrorRecord",),
    "stoker.loader.in_step": ("in_step",),
    "stoker.loader.merging": ("merge_states",),
    "stoker.loader.quarantine": ("Quarantine", "quarantine"),
    "stoker.loader.report": ("Report",),
    "stoker.loader.stateful": ("StatefulDataLoader",),
    "stoker.samplers": (
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
