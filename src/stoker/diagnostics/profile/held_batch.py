"""Copies of a batch, so that a step can be run on the same batch again and again."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from datetime import date, time, timedelta
from enum import Enum
from numbers import Number
from pathlib import PurePath
from typing import Any

import numpy as np

_CONSTANT = (str, bytes, Number, type(None), np.generic, PurePath, Enum, date, time, timedelta, range, type)


def fresh(batch: Any) -> Any:
    """Returns a copy with containers, arrays and tensors of its own; other objects are shared with `batch`.

    A step may change its batch, such as by `batch.pop("labels")` or `images.div_(255)`. Pinned tensors are copied
    into pinned memory.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(batch, torch.Tensor):
        clone = batch.detach().clone()
        return clone.pin_memory() if batch.device.type == "cpu" and batch.is_pinned() else clone
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, (str, bytes)):
        return batch
    if isinstance(batch, Mapping):
        return _mapping(batch, {key: fresh(value) for key, value in batch.items()})
    if isinstance(batch, tuple):
        items = [fresh(item) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else tuple(items)
    if isinstance(batch, list):
        clone = copy.copy(batch)
        clone[:] = [fresh(item) for item in batch]
        return clone
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        clone = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(clone, field.name, fresh(getattr(batch, field.name)))
        return clone
    return batch


def shared_part(batch: Any) -> str | None:
    """Returns the class of an object that `fresh` would share, and a step might change; None if there is none."""
    torch = sys.modules.get("torch")
    if isinstance(batch, _CONSTANT) or (torch is not None and isinstance(batch, torch.Tensor)):
        return None
    if isinstance(batch, np.ndarray):
        return "object array" if batch.dtype.hasobject else None
    if isinstance(batch, Mapping):
        parts: Iterable[Any] = batch.values()
    elif isinstance(batch, (tuple, list)):
        parts = batch
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        parts = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    else:
        return type(batch).__name__
    return next((part for part in map(shared_part, parts) if part is not None), None)


def _mapping(batch: Mapping[Any, Any], fields: dict[Any, Any]) -> Any:
    if type(batch) is dict:
        return fields
    try:
        clone = copy.copy(batch)
        if isinstance(clone, MutableMapping):
            clone.update(fields)
            return clone
        return type(batch)(fields)  # type: ignore[call-arg]
    except TypeError:
        return fields


def wait_for_device() -> None:
    """Waits for the work that the program has queued on its GPU: a step that only queues work would seem to be free."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
