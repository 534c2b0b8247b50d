"""What holds the samples: datasets by index, streams, and ways to join, cut and store them.

Each is loaded on first use: most are subclasses of torch's in name, and a program needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker._first_use import loading

if TYPE_CHECKING:
    from stoker.datasets.base import Dataset, IterableDataset
    from stoker.datasets.cache import CacheDataset
    from stoker.datasets.chain import ChainDataset
    from stoker.datasets.columnar import Columns, columns
    from stoker.datasets.concat import ConcatDataset
    from stoker.datasets.filter import FilterDataset
    from stoker.datasets.interleave import InterleaveDataset
    from stoker.datasets.iterable import from_iterable
    from stoker.datasets.map import MapDataset
    from stoker.datasets.mix import MixDataset
    from stoker.datasets.pack import PackDataset
    from stoker.datasets.shuffle_buffer import ShuffleDataset
    from stoker.datasets.split import random_split
    from stoker.datasets.stack import StackDataset
    from stoker.datasets.stream import Stream, StreamIterator
    from stoker.datasets.subset import Subset
    from stoker.datasets.tensor import TensorDataset
    from stoker.datasets.text import TextLineDataset
    from stoker.datasets.tokens import TokenWindows
    from stoker.datasets.views import ViewsDataset, average_views
    from stoker.datasets.window import WindowDataset
    from stoker.datasets.zip import ZipDataset
else:
    __getattr__ = loading(
        __name__,
        {
            "CacheDataset": "cache",
            "ChainDataset": "chain",
            "Columns": "columnar",
            "ConcatDataset": "concat",
            "Dataset": "base",
            "FilterDataset": "filter",
            "InterleaveDataset": "interleave",
            "IterableDataset": "base",
            "MapDataset": "map",
            "MixDataset": "mix",
            "PackDataset": "pack",
            "ShuffleDataset": "shuffle_buffer",
            "StackDataset": "stack",
            "Stream": "stream",
            "StreamIterator": "stream",
            "Subset": "subset",
            "TensorDataset": "tensor",
            "TextLineDataset": "text",
            "TokenWindows": "tokens",
            "ViewsDataset": "views",
            "WindowDataset": "window",
            "ZipDataset": "zip",
            "average_views": "views",
            "columns": "columnar",
            "from_iterable": "iterable",
            "random_split": "split",
        },
    )


__all__ = [
    "CacheDataset",
    "ChainDataset",
    "Columns",
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
]
