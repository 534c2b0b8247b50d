"""Arrays and tensors in a pickle, replaced by their place in a slot.

A batch is pickled with its large leaves taken out. `_leaf(i)` stands in the pickle for leaf i; while `unpickle` runs,
it gives the i-th of the leaves that the caller built.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

SMALL = 64 * 1024
"""Leaves below this many bytes travel in the pickle: the trainer would copy them out of the slot anyway."""


class Leaf(NamedTuple):
    """Where a leaf lies and what it is. `dtype` is NumPy's, or the name of a torch dtype for a tensor."""

    offset: int
    size: int
    tensor: bool
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    requires_grad: bool


class _Building(threading.local):
    leaves: Sequence[Callable[[], Any]] = ()


_building = _Building()


def _leaf(index: int) -> Any:
    return _building.leaves[index]()


def _small_tensor(array: np.ndarray[Any, Any], dtype: str | None = None) -> Any:
    """A small leaf. Torch's own pickling takes ten times as long, and a worker without torch has none."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.view(getattr(torch, dtype))


def _small_array(tensor: Any) -> tuple[Any, ...] | None:
    """What `_small_tensor` makes the tensor from; None where that would lose something, such as gradient or strides."""
    dtype = None
    try:
        try:
            array = tensor.numpy()
        except TypeError:  # NumPy has no bfloat16 and its like
            dtype = str(tensor.dtype).removeprefix("torch.")
            array = tensor.view(getattr(sys.modules["torch"], f"int{8 * tensor.itemsize}")).numpy()
    except (AttributeError, RuntimeError, TypeError):
        return None
    return (array, dtype) if array.flags.forc else None


Place = Callable[[Any], "int | None"]
"""Gives the number of a leaf that is taken out of the pickle, or None for one that stays in it."""


def dumps(batch: Any, place: Place) -> bytes:
    """Pickles a batch; `place` is asked for each array and tensor. Falls back on cloudpickle for local classes."""
    sink = io.BytesIO()
    try:
        _Pickler(sink, place).dump(batch)
    except (pickle.PicklingError, AttributeError, TypeError):
        sink = io.BytesIO()
        _by_value()(sink, place).dump(batch)
    return sink.getvalue()


def dumps_unit(unit: Any) -> bytes:
    """Pickles what seldom holds arrays, and none that is taken out. A named tuple travels as a tuple, which takes a
    third of the time: who gets it knows its names."""
    sink = io.BytesIO()
    pickler = pickle.Pickler(sink, 5)
    torch = sys.modules.get("torch")
    if torch is not None:
        pickler.dispatch_table = _with_tensors(torch.Tensor)
    try:
        pickler.dump(tuple(unit) if isinstance(unit, tuple) else unit)
    except (pickle.PicklingError, AttributeError, TypeError):
        sink = io.BytesIO()
        _by_value()(sink, lambda leaf: None).dump(unit)
    return sink.getvalue()


@functools.cache
def _with_tensors(kind: type) -> ChainMap[type, Callable[[Any], Any]]:
    """How tensors are pickled: by their values. Torch sends all that a tensor is a view of."""

    def reduced(tensor: Any) -> Any:
        small = _small_array(tensor)
        return tensor.__reduce_ex__(5) if small is None else (_small_tensor, small)

    return ChainMap({kind: reduced}, copyreg.dispatch_table)


class _Takes:
    """Takes arrays and tensors out of what is pickled."""

    def __init__(self, sink: io.BytesIO, place: Place) -> None:
        super().__init__(sink, protocol=5)  # type: ignore[call-arg] # beside a pickler
        torch = sys.modules.get("torch")
        self._place = place
        self._tensor = None if torch is None else torch.Tensor

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        deferred = kind.__name__ == "TensorLeaf"
        if deferred or kind is np.ndarray or kind is self._tensor or kind.__name__ == "Texts":
            number = self._place(thing)
            if number is not None:
                return _leaf, (number,)
            if deferred:
                return _small_tensor, (np.array(thing),)
            small = _small_array(thing) if kind is self._tensor else None
            if small is not None:
                return _small_tensor, small
        return self._otherwise(thing)

    def _otherwise(self, thing: Any) -> Any:
        return NotImplemented


class _Pickler(_Takes, pickle.Pickler):
    """By reference, as pickle does."""


@functools.cache
def _by_value() -> Any:
    """A pickler that sends classes and functions of no importable module by value."""
    import cloudpickle

    class ByValue(_Takes, cloudpickle.Pickler):  # type: ignore[misc]
        def _otherwise(self, thing: Any) -> Any:
            return cloudpickle.Pickler.reducer_override(self, thing)

    return ByValue


def loads(data: Any, leaves: Sequence[Callable[[], Any]]) -> Any:
    """Rebuilds a batch. Nests: a class of the user may unpickle another batch meanwhile."""
    before, _building.leaves = _building.leaves, leaves
    try:
        return pickle.loads(data)
    finally:
        _building.leaves = before
