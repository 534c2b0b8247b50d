"""What an object does and says, in plain values: equal for two objects that do the same."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import numpy as np

import stoker

SAMPLES = 3
_TEXTS = [{"text": np.arange(3), "name": "a"}, {"text": np.arange(2), "name": "b"}]
_GRAPH = {"x": np.ones((2, 1)), "edge_index": np.array([[0, 1], [1, 0]])}
_PICTURES = [{"image": np.ones((3, size, 2), np.float32), "boxes": [[0, 0, 1, 1]]} for size in (2, 3)]
BATCHES: dict[type, list[Any]] = {
    stoker.PadCollator: [np.arange(3), np.arange(2)],
    stoker.MultimodalCollator: _TEXTS,
    stoker.GraphCollator: [_GRAPH, _GRAPH],
    stoker.DetectionCollator: _PICTURES,
}


def behaviour_of(thing: Any) -> Any:
    """The first samples of a dataset, the order of a sampler, a batch of a collator; else what it says of itself."""
    random.seed(3)
    np.random.seed(3)
    kind = type(thing)
    if kind in BATCHES:
        return plain(thing(BATCHES[kind]))
    if kind.__name__ == "KafkaStream":  # whose broker is gone
        return plain([thing.state_dict(), thing.shard(num_shards=2, index=1).state_dict()])
    if isinstance(thing, (stoker.Report, stoker.LoaderProfile)):  # of measurements, which differ
        return sorted(thing.as_dict())
    if isinstance(thing, BaseException):
        return plain([str(thing), thing.args, vars(thing)])
    if hasattr(thing, "batch_sampler"):
        return plain(list(thing))
    if kind in (stoker.Dataset, stoker.Sampler):  # without a method of their own
        return kind.__name__
    if isinstance(thing, stoker.Sampler):
        return plain([len(thing), list(thing)])
    if isinstance(thing, (stoker.IterableDataset, stoker.StreamIterator)):
        return plain([kind.__name__, list(itertools.islice(thing, SAMPLES))])
    if isinstance(thing, stoker.Dataset):
        return plain([len(thing), [_sample(thing, index) for index in range(min(SAMPLES, len(thing)))]])
    return plain([thing, getattr(thing, "__dict__", {})])


def _sample(dataset: Any, index: int) -> Any:
    try:
        return dataset.__getitems__([index]) if hasattr(dataset, "__getitems__") else dataset[index]
    except stoker.SkipSample as error:
        return str(error)


def plain(value: Any) -> Any:
    """A value in lists, dictionaries, numbers and texts, without addresses of memory."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (str, int, float, bytes)) or value is None:
        return value
    if hasattr(value, "tobytes"):  # arrays and images
        return [type(value).__name__, value.tobytes().hex()]
    if hasattr(value, "tolist"):
        return value.tolist()
    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))
