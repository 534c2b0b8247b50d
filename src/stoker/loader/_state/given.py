"""Batches of indices that a sampler has given and that were not delivered yet, as plain values of a state.

Numbers, texts and tuples of them come back as they were, NumPy's numbers and torch's tensors too. Indices of any other
kind have no such form: a state before the first batch holds them as they are.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from stoker.errors import StateFormatError

_PLAIN = {int, float, bool, str, type(None)}


def is_plain(batch: Any) -> bool:
    """Returns whether a batch, or a single index, has a form in a state."""
    kind = type(batch)
    if kind in _PLAIN:
        return True
    if kind is list or kind is tuple:
        return _PLAIN.issuperset(map(type, batch)) or all(map(is_plain, batch))
    if issubclass(kind, np.generic) or kind is np.ndarray:
        return batch.dtype.kind in "biuf"
    torch = sys.modules.get("torch")
    return torch is not None and kind is torch.Tensor and batch.device.type == "cpu" and _name(batch) in _DTYPES


_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def packed(batch: Any) -> Any:
    """Returns the form of a plain batch; any other batch as it is, marked as such."""
    kind = type(batch)
    if kind in _PLAIN:
        return batch
    if not is_plain(batch):
        return {"as it is": batch}
    if kind is list:
        return batch if _PLAIN.issuperset(map(type, batch)) else [packed(item) for item in batch]
    if kind is tuple:
        return {"tuple": [packed(item) for item in batch]}
    if kind is np.ndarray:
        return {"array": [batch.dtype.name, batch.tolist()]}
    if issubclass(kind, np.generic):
        return {"numpy": [batch.dtype.name, batch.item()]}
    return {"torch": [_name(batch), batch.tolist()]}


def unpacked(form: Any) -> Any:
    """Returns the batch of a form.

    Raises:
        StateFormatError: the state is damaged, or holds a tensor and there is no torch.
    """
    if type(form) is list:
        return form if _PLAIN.issuperset(map(type, form)) else [unpacked(item) for item in form]
    if type(form) is not dict:
        return form
    try:
        ((name, value),) = form.items()
        if name == "as it is":
            return value
        if name == "tuple":
            return tuple(unpacked(item) for item in value)
        dtype, values = value
        if name == "torch":
            import torch

            return torch.tensor(values, dtype=getattr(torch, dtype))
        return np.array(values, dtype) if name == "array" else np.dtype(dtype).type(values)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        raise StateFormatError(f"the state is damaged: a batch of indices is {str(form)[:200]}") from error
