"""What holds the samples: datasets by index, streams, and ways to join, cut and store them.

The classes are subclasses of torch's in name, so they are loaded on first use; `columns` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stoker.datasets.columns import Columns, columns

if TYPE_CHECKING:
    from stoker.datasets.base import Dataset, IterableDataset
    from stoker.datasets.chain import ChainDataset
    from stoker.datasets.concat import ConcatDataset
    from stoker.datasets.split import random_split
    from stoker.datasets.stack import StackDataset
    from stoker.datasets.subset import Subset
    from stoker.datasets.tensor import TensorDataset
else:
    _HOMES = {
        "ChainDataset": "chain",
        "ConcatDataset": "concat",
        "Dataset": "base",
        "IterableDataset": "base",
        "StackDataset": "stack",
        "Subset": "subset",
        "TensorDataset": "tensor",
        "random_split": "split",
    }

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


__all__ = [
    "ChainDataset",
    "Columns",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "columns",
    "random_split",
]
