"""Detects loaders whose workers run only Stoker's code, so that no setting of the script affects them."""

from __future__ import annotations

import functools
import itertools
import random
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

from stoker._core.ours import is_ours
from stoker.loader._random.find_generators import attributes
from stoker.loader._random.generators import loaded_torch

MOST_OBJECTS = 1000
"""Objects: parts that hold more are not searched, and count as the user's."""

MOST_BYTES = 64 << 20
"""Bytes of arrays and tensors: a clean start copies them, so larger ones are left to the fork."""

_VALUES = (type(None), bool, int, float, complex, str, bytes, range, slice, np.dtype, random.Random)
_CONTAINERS = (list, tuple, set, frozenset, dict)


def is_stokers(parts: Iterable[Any]) -> bool:
    """Returns whether all objects that `parts` can reach are plain values, or of Stoker's classes and functions.

    Arrays and tensors are plain values, up to 64 MiB in all. Runs no code of the user's.
    """
    torch = loaded_torch()
    values = (*_VALUES, np.random.Generator, np.random.RandomState, *(() if torch is None else (torch.Generator,)))
    queue = list(parts)
    seen = {id(part) for part in queue}
    size = 0
    for value in queue:  # which grows
        kind = type(value)
        inside: Iterable[Any] = ()
        if kind is np.ndarray or (torch is not None and kind is torch.Tensor):
            size += value.nbytes
            if size > MOST_BYTES or value.dtype is np.dtype(object):
                return False
        elif kind in _CONTAINERS:
            if len(value) > MOST_OBJECTS:
                return False
            inside = itertools.chain(value, value.values()) if kind is dict else value
        elif kind is functools.partial:
            inside = (value.func, value.args, value.keywords)
        elif kind is types.MethodType:
            inside = (value.__self__, value.__func__)
        elif kind is types.FunctionType or issubclass(kind, type):
            if not is_ours(value) or getattr(value, "__closure__", None):
                return False
        elif is_ours(kind):
            inside = attributes(value)
        elif kind not in values and not issubclass(kind, np.generic):
            return False
        fresh = [held for held in inside if id(held) not in seen]
        seen.update(map(id, fresh))
        queue += fresh
        if len(queue) > MOST_OBJECTS:
            return False
    return True
