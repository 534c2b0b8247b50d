"""Arrays and tensors in a pickle, replaced by their place in a slot.

A batch is pickled with its large leaves taken out. `_leaf(i)` stands in the pickle for leaf i; while `loads` runs, it
gives the i-th of the leaves that the caller built.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stoker import errors
from stoker._transport.owned import Owned, tensor_over

SMALL = 64 * 1024
"""Leaves below this many bytes travel in the pickle: the trainer would copy them out of the slot anyway."""


class Leaf(NamedTuple):
    """Where a leaf lies and what it is. `dtype` is NumPy's, as text where that says it all, or the name of torch's."""

    offset: int
    size: int
    tensor: bool
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    requires_grad: bool


def pack(leaves: Sequence[Leaf]) -> bytes:
    """Leaves as they travel: who passes them on need not look at them."""
    return pickle.dumps([tuple(leaf) for leaf in leaves], 5) if leaves else b""


@functools.lru_cache(8)
def unpack(data: bytes) -> tuple[Leaf, ...]:
    """What `pack` was given. Nearly every batch of a loader has the same leaves as the one before."""
    return tuple(Leaf(*leaf) for leaf in pickle.loads(data)) if data else ()


class _Building(threading.local):
    leaves: Sequence[Any] = ()


_building = _Building()


def _leaf(index: int) -> Any:
    return _building.leaves[index]


def _small_tensor(
    array: np.ndarray[Any, Any],
    dtype: str | None = None,
    layout: tuple[Sequence[int], Sequence[int]] | None = None,
    requires_grad: bool = False,
) -> Any:
    """A small leaf. Torch's own pickling takes ten times as long, and a worker without torch has none."""
    tensor = tensor_over(array.view(Owned))
    if dtype is not None:
        tensor = tensor.view(getattr(sys.modules["torch"], dtype))
    if layout is not None:
        tensor = tensor.as_strided(*layout)
    return tensor.requires_grad_() if requires_grad else tensor


def _small_array(tensor: Any) -> tuple[Any, ...] | None:
    """What `_small_tensor` makes the tensor from; None for one that is more, or other, than memory of the CPU's."""
    try:
        array, dtype = _numbers(tensor)
        if array.flags.forc:
            return array, dtype
    except (AttributeError, RuntimeError, TypeError):
        torch = sys.modules["torch"]
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_nested:
            return None
        if tensor.requires_grad and not tensor.is_leaf:
            raise errors.GradientInWorkerError(
                f"a worker made a batch with a tensor of shape {tuple(tensor.shape)} that autograd made "
                f"({type(tensor.grad_fn).__name__}). Its graph is the worker's: no gradient would reach the training "
                "process. Call .detach() on it in the dataset or the collate_fn, or compute it under torch.no_grad()."
            ) from None
    memory, strides = memory_of(tensor)
    try:
        return *_numbers(memory), (tuple(tensor.shape), strides), tensor.requires_grad
    except (AttributeError, RuntimeError, TypeError):
        return None


def _numbers(tensor: Any) -> tuple[np.ndarray[Any, Any], str | None]:
    """The tensor's memory as an array, and its dtype where NumPy has no such."""
    try:
        return tensor.numpy(), None
    except TypeError:  # bfloat16 and its like
        if tensor.is_quantized:  # it has a scale as well
            raise
        whole = getattr(sys.modules["torch"], f"int{8 * tensor.itemsize}")
        return tensor.view(whole).numpy(), str(tensor.dtype).removeprefix("torch.")


def memory_of(tensor: Any) -> tuple[Any, tuple[int, ...]]:
    """All that a tensor of the CPU shows, and nothing beside it: a tensor without gaps, and the strides to see it by.

    A layout that fills its memory is kept (channels last, a transpose), and so is one that shows some of it again and
    again (an expanded tensor). Where there are gaps, as in a column of a table, the values are brought together.
    """
    source = tensor.detach().resolve_conj().resolve_neg()
    if source.is_contiguous():
        return source, source.stride()
    span = 1 + sum(stride * (side - 1) for stride, side in zip(source.stride(), source.shape, strict=True))
    if span > source.numel():
        source = source.contiguous()
        return source, source.stride()
    return source.as_strided((span,), (1,)), source.stride()


_STORAGE = "torch.storage.UntypedStorage"


def _untyped_storage(tensor: Any) -> Any:
    return tensor.untyped_storage()


Place = Callable[[Any], "int | None"]
"""Gives the number of a leaf that is taken out of the pickle, or None for one that stays in it."""


def dumps(batch: Any, place: Place) -> bytes:
    """Pickles a batch; `place` is asked for each array and tensor. Falls back on cloudpickle for local classes."""
    numbers: dict[int, int] = {}
    if (frame := _frame(batch, place, numbers)) is not None:
        return frame
    sink = io.BytesIO()
    try:
        _Pickler(sink, place, numbers).dump(batch)
    except (pickle.PicklingError, AttributeError, TypeError):
        sink = io.BytesIO()
        _by_value()(sink, place, numbers).dump(batch)
    return sink.getvalue()


_FRAME = b"F"
"""Begins what is no pickle of a batch, but of its frame: a pickle begins with another byte."""


def _frame(batch: Any, place: Place, numbers: dict[int, int]) -> bytes | None:
    """Of a list, tuple or dict of leaves that are all taken out, in order, all that is left; None for anything else.

    Most batches are no more than this, and the trainer need not unpickle, nor look for the module that rebuilds a leaf.

    Args:
        batch: the batch.
        place: asked for each leaf.
        numbers: gets the number of each leaf that was placed, by its id.
    """
    kind = type(batch)
    if kind is not list and kind is not tuple and kind is not dict:
        return None
    keys = tuple(batch) if kind is dict else None
    parts = batch.values() if kind is dict else batch
    if not parts or len({id(part) for part in parts}) < len(parts) or not all(map(_is_plain, map(type, parts))):
        return None
    if keys is not None and any(type(key) is not str for key in keys):
        return None
    for part in parts:
        number = place(part)
        if number is None:
            return None
        numbers[id(part)] = number
    return _FRAME + pickle.dumps((kind is list, keys), 5)


def _is_plain(kind: type) -> bool:
    return kind is np.ndarray or kind is _tensor() or _name(kind) == DEFERRED


DEFERRED, TEXTS = "stoker.collate.leaves.TensorLeaf", "stoker.collate.plan.Texts"
"""Classes of the data side that are leaves, by name: it is not known here. The user's may be called so too."""


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _tensor() -> type | None:
    """Torch's class, if it is there: not where torch is not loaded, nor while another thread is importing it."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


@functools.lru_cache(8)
def _kind_and_keys(frame: bytes) -> tuple[bool, tuple[str, ...] | None]:
    found: tuple[bool, tuple[str, ...] | None] = pickle.loads(frame[len(_FRAME) :])
    return found


def dumps_unit(unit: Any) -> bytes:
    """Pickles what seldom holds arrays, and none that is taken out. A named tuple travels as a tuple, which takes a
    third of the time: who gets it knows its names."""
    sink = io.BytesIO()
    pickler = pickle.Pickler(sink, 5)
    if (tensor := _tensor()) is not None:
        pickler.dispatch_table = _with_tensors(tensor)
    try:
        pickler.dump(tuple(unit) if isinstance(unit, tuple) else unit)
    except (pickle.PicklingError, AttributeError, TypeError):
        sink = io.BytesIO()
        _by_value()(sink, lambda leaf: None, {}).dump(unit)
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

    def __init__(self, sink: io.BytesIO, place: Place, numbers: Mapping[int, int]) -> None:
        super().__init__(sink, protocol=5)  # type: ignore[call-arg] # beside a pickler
        self._place = place
        self._numbers = numbers  # of leaves that are placed already, by their id
        self._tensor = _tensor()

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        name = "" if kind is np.ndarray or kind is self._tensor else _name(kind)  # nearly always one of these
        deferred = name == DEFERRED
        if not name or deferred or name == TEXTS:
            number = self._numbers.get(id(thing))
            if number is None:
                number = self._place(thing)
            if number is not None:
                return _leaf, (number,)
            if deferred:
                return _small_tensor, (np.array(thing),)
            small = _small_array(thing) if kind is self._tensor else None
            if small is not None:
                return _small_tensor, small
            if kind is np.ndarray and not thing.flags.writeable:
                return thing.copy("K").__reduce_ex__(5)  # else it would arrive read-only, and the batch is the user's
        elif name == _STORAGE and thing.device.type == "cpu":  # torch writes one by itself, and cannot read it
            torch = sys.modules["torch"]
            return _untyped_storage, (torch.empty(0, dtype=torch.uint8).set_(thing),)
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


def loads(data: Any, leaves: Sequence[Any]) -> Any:
    """Rebuilds a batch. Nests: a class of the user may unpickle another batch meanwhile."""
    if data[:1] == _FRAME:
        is_list, keys = _kind_and_keys(bytes(data))
        if keys is not None:
            return dict(zip(keys, leaves, strict=True))
        return list(leaves) if is_list else tuple(leaves)
    before, _building.leaves = _building.leaves, leaves
    try:
        return pickle.loads(data)
    finally:
        _building.leaves = before
