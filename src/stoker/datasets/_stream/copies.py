"""Copies of streams for threads: each has its own position, the data behind it is shared."""

from __future__ import annotations

import copy
from typing import Any

from stoker.datasets.base import is_stream


def own_copy(dataset: Any) -> Any:
    """Returns a copy of a stream, of the streams in it, and of the lists, dictionaries and sets that these hold.

    All else is shared: arrays, tensors, files, functions and other objects. An object with `state_dict` and
    `load_state_dict` is copied like a stream, except for a neural network.
    """
    return _copy(dataset, {})


def _copy(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    if id(value) in known:
        return known[id(value)][1]

    def is_now(copied: Any) -> Any:
        known[id(value)] = value, copied  # keeps the value alive, so that its id is not reused
        return copied

    kind = type(value)
    if kind is dict:
        copied = is_now({})
        copied.update((name, _copy(item, known)) for name, item in value.items())
    elif kind is list:
        copied = is_now([])
        copied.extend(_copy(item, known) for item in value)
    elif kind is tuple:
        copied = is_now(tuple(_copy(item, known) for item in value))
    elif kind is set:
        copied = is_now(set(value))
    elif is_stream(value) or _keeps_state(value):
        copied = is_now(copy.copy(value))
        own = {name: _copy(item, known) for name, item in getattr(copied, "__dict__", {}).items()}
        if own:  # a new dictionary: the __setstate__ of Hugging Face's streams reuses that of the original
            object.__setattr__(copied, "__dict__", own)
    else:
        copied = value
    return copied


def _keeps_state(value: Any) -> bool:
    kind = type(value)
    both = callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))
    return both and not hasattr(kind, "named_parameters")
