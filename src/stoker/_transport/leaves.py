"""Arrays and tensors in a pickle, replaced by their place in a slot.

A batch is pickled with its large leaves taken out. `_leaf(i)` stands in the pickle for leaf i; while `unpickle` runs,
it gives the i-th of the leaves that the caller built.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
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


def _small_tensor(array: np.ndarray[Any, Any]) -> Any:
    """A small array that a worker without torch collated for a trainer with torch."""
    import torch

    return torch.from_numpy(array)


Place = Callable[[Any], "int | None"]
"""Gives the number of a leaf that is taken out of the pickle, or None for one that stays in it."""


def dumps(batch: Any, place: Place) -> bytes:
    """Pickles a batch; `place` is asked for each array and tensor. Falls back on cloudpickle for local classes."""
    reducer = _reducer(place)
    try:
        return _dump(pickle.Pickler, batch, reducer)
    except (pickle.PicklingError, AttributeError, TypeError):
        import cloudpickle

        return _dump(cloudpickle.Pickler, batch, reducer)


def _reducer(place: Place) -> Callable[[Any], Any]:
    torch = sys.modules.get("torch")
    tensor = None if torch is None else torch.Tensor

    def reduce(thing: Any) -> Any:
        kind = type(thing)
        if kind is np.ndarray or kind is tensor or kind.__name__ == "TensorLeaf":
            number = place(thing)
            if number is not None:
                return _leaf, (number,)
            if kind.__name__ == "TensorLeaf":
                return _small_tensor, (np.array(thing),)
        return NotImplemented

    return reduce


def _dump(base: Any, batch: Any, reduce: Callable[[Any], Any]) -> bytes:
    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            reduced = reduce(thing)
            if reduced is NotImplemented and base is not pickle.Pickler:
                return super().reducer_override(thing)
            return reduced

    sink = io.BytesIO()
    Pickler(sink, protocol=5).dump(batch)
    return sink.getvalue()


def loads(data: Any, leaves: Sequence[Callable[[], Any]]) -> Any:
    """Rebuilds a batch. Nests: a class of the user may unpickle another batch meanwhile."""
    before, _building.leaves = _building.leaves, leaves
    try:
        return pickle.loads(data)
    finally:
        _building.leaves = before
