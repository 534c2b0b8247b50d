"""The function that collates a leaf: Stoker's own, or one that the user registered, here or in torch's registry.

If torch is loaded, its `default_collate_fn_map` is read for each batch, so that types registered there and entries
replaced there take effect. Torch's own functions are replaced by equivalent ones of Stoker.
"""

from __future__ import annotations

import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType, MethodType
from typing import Any, Literal

import numpy as np

from stoker.collate.stacking import DEFERRED, NUMPY, TENSORS, NumpyLeaves

Key = type | tuple[type, ...]
CollateFn = Callable[..., Any]
Output = Literal["torch", "numpy", "deferred"]

default_collate_fn_map: dict[Key, CollateFn] = {
    np.ndarray: NUMPY.arrays,
    (np.bool_, np.number, np.object_): NUMPY.scalars,
    float: NUMPY.floats,
    int: NUMPY.ints,
    str: NUMPY.strings,
    bytes: NUMPY.strings,
}
"""From the type of a leaf to the function that collates it, `fn(batch, *, collate_fn_map)`.

`default_collate` uses your function for each type that you add; an entry that you replace holds for every output.
Entries of torch's map of the same name take effect too and need not be repeated.
"""


def register_collate_fn(kind: type, fn: CollateFn) -> None:
    """Has the default collation use a function for samples, or parts of samples, of a type.

    Args:
        kind: of the samples. The module that defines it calls this, so that workers that load it know the function.
        fn: called as `fn(batch, collate_fn_map=...)` with a list of them; returns what they are in the batch.
    """
    default_collate_fn_map[kind] = fn


_OURS_FOR = {
    "collate_tensor_fn": "tensors",
    "collate_numpy_array_fn": "arrays",
    "collate_numpy_scalar_fn": "scalars",
    "collate_float_fn": "floats",
    "collate_int_fn": "ints",
    "collate_str_fn": "strings",
}


def leaves_for(output: Output | None) -> NumpyLeaves:
    """Returns the leaves of a kind of output; None is the output of a plain `default_collate`.

    None gives tensors if torch is installed, even in a worker that has not imported it: there, only user code calls
    `default_collate`, and it expects the same result as in the trainer. "deferred" gives tensors if torch is loaded.
    """
    if output == "numpy":
        return NUMPY
    if output == "deferred":
        return TENSORS if sys.modules.get("torch") is not None else DEFERRED
    if output is None and not _torch_is_usable():
        return NUMPY
    return TENSORS


_last: dict[NumpyLeaves, tuple[list[object], dict[Key, CollateFn]]] = {}


def functions(leaves: NumpyLeaves) -> dict[Key, CollateFn]:
    """Returns the functions in force now; Stoker's and torch's own functions are replaced by methods of `leaves`.

    Reads both registries for every batch, because users may change them at any time. Rebuilds the map, which takes as
    long as collating a small batch, only after a change. The caller must not change the map.
    """
    theirs = torch_collation()
    now = [*default_collate_fn_map, *default_collate_fn_map.values(), theirs]  # without a tuple for each
    if theirs is not None:
        now += [*theirs.default_collate_fn_map, *theirs.default_collate_fn_map.values()]
    before = _last.get(leaves)
    if before is None or len(before[0]) != len(now) or not all(map(operator.is_, before[0], now)):
        before = _last[leaves] = now, _in_force(leaves, theirs)
    return before[1]


def _in_force(leaves: NumpyLeaves, theirs: Any) -> dict[Key, CollateFn]:
    live: dict[Key, CollateFn] = {}
    if theirs is not None:
        live = {key: _given_by(leaves, fn) for key, fn in theirs.default_collate_fn_map.items()}
    for key, fn in default_collate_fn_map.items():
        if theirs is None or _kind(fn) is None:
            live[key] = _given_by(leaves, fn)
    return live


def in_place(fn_map: Mapping[Key, CollateFn]) -> dict[Key, CollateFn]:
    """Returns the same functions, with torch's own replaced by Stoker's, which write in place."""
    return {key: _given_by(TENSORS, fn) if is_torchs(fn) else fn for key, fn in fn_map.items()}


def is_method(fn: object, method: Callable[..., Any]) -> bool:
    """Returns whether `fn` is this method of Stoker's leaves. A user's object is not compared."""
    return type(fn) is MethodType and fn == method


def function_for(elem: object, fn_map: Mapping[Key, CollateFn]) -> CollateFn | None:
    """Returns the function for a leaf: by its exact type, else by the first key that it is an instance of."""
    fn = fn_map.get(type(elem))
    if fn is None:
        for key, candidate in fn_map.items():
            if isinstance(elem, key):
                return candidate
    return fn


def is_torchs(fn: CollateFn) -> bool:
    """Returns whether torch itself defines the function, however it is wrapped or named elsewhere."""
    theirs = torch_collation()
    return theirs is not None and isinstance(fn, FunctionType) and fn.__globals__ is vars(theirs)


def torch_collation() -> Any:
    """Returns torch's module of collate functions, or None if it is not loaded."""
    return sys.modules.get("torch.utils.data._utils.collate")


def _given_by(leaves: NumpyLeaves, fn: CollateFn) -> CollateFn:
    kind = _kind(fn)
    return fn if kind is None else getattr(leaves, kind)


def _kind(fn: CollateFn) -> str | None:
    """Returns the name of the method of Stoker's leaves that `fn` is or stands for; None for a user's function."""
    if isinstance(getattr(fn, "__self__", None), NumpyLeaves):
        return fn.__name__
    return _OURS_FOR.get(fn.__code__.co_name) if is_torchs(fn) else None


def _torch_is_usable() -> bool:
    if _is_unwanted():
        return False
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    return _torch_is_installed()


@cache
def _is_unwanted() -> bool:
    return os.environ.get("STOKER_TORCH") == "0"


@cache
def _torch_is_installed() -> bool:
    return importlib.util.find_spec("torch") is not None
