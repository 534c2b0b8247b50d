"""A dataset for a trial in the trainer: what it opens there is not inherited by workers that are forked later.

Many open their file at the first sample, "in the worker" as they think, and keep it as an attribute. A handle that is
shared across a fork gives garbage.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from stoker.datasets import Dataset

_FIRST = 16
"""So many items of a list are asked whether they are datasets: one of paths may be long."""

_PLAIN = ("builtins", "numpy", "torch")
"""What comes from there and is no dataset opens nothing: lists, arrays, tensors."""


def detached(dataset: Any) -> Any:
    """A shallow copy of it and of the datasets in it; None where that may not be made.

    Not of what has a finaliser (it would close what the copy shares), nor of what cannot be copied.
    """
    try:
        return _copied(dataset)
    except Exception:  # whatever a class of the user's raises when it is copied
        return None


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple) and any(map(_is_dataset, value[:_FIRST])):
        return type(value)(_copied(item) for item in value)
    if isinstance(value, dict) and type(value) is dict and any(map(_is_dataset, value.values())):
        return {name: _copied(item) for name, item in value.items()}
    if type(value).__module__.partition(".")[0] in _PLAIN and not _is_dataset(value):
        return value
    if hasattr(value, "__del__"):
        raise TypeError
    twin = copy.copy(value)
    if twin is value and hasattr(value, "__dict__"):
        raise TypeError
    for name, item in list(getattr(twin, "__dict__", {}).items()):
        if _is_dataset(item) or isinstance(item, (list, tuple, dict)):
            twin.__dict__[name] = _copied(item)
    return twin


def _is_dataset(value: Any) -> bool:
    """By its class, or because it looks like one: what has indices and attributes of its own."""
    torch_data = sys.modules.get("torch.utils.data")
    if isinstance(value, Dataset) or (torch_data is not None and isinstance(value, torch_data.Dataset)):
        return True
    plain = type(value).__module__.partition(".")[0] in _PLAIN
    return not plain and hasattr(type(value), "__getitem__") and hasattr(value, "__dict__")
