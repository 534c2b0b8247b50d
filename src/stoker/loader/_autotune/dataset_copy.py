"""A copy of a dataset for a trial in the trainer, so that workers forked later do not inherit its open files.

Many datasets open their file at the first sample and keep it as an attribute. A handle that is shared across a fork
gives garbage.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from stoker.datasets.base import Dataset

_FIRST = 16
"""Items of a list that are checked for datasets: a list of paths may be long."""

_PLAIN = ("builtins", "numpy", "torch")
"""Packages whose classes open no files: lists, arrays, tensors."""


def dataset_copy(dataset: Any) -> Any:
    """Returns a shallow copy of a dataset and of the datasets in it; None if it cannot be copied.

    An object with a finaliser is not copied: the finaliser would close resources that the copy shares.
    """
    try:
        return _copied(dataset)
    except Exception:  # raised by the user's class when it is copied
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
    """Returns whether a value is a dataset, by its class, or because it has indices and attributes of its own."""
    torch_data = sys.modules.get("torch.utils.data")
    if isinstance(value, Dataset) or (torch_data is not None and isinstance(value, torch_data.Dataset)):
        return True
    plain = type(value).__module__.partition(".")[0] in _PLAIN
    return not plain and hasattr(type(value), "__getitem__") and hasattr(value, "__dict__")
