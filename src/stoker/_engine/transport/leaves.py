"""Arrays and tensors in a pickle, replaced by references into a slot.

Large leaves are taken out of a batch before it is pickled. The pickle calls `_leaf(i)` for leaf i; while `loads` runs,
this returns the i-th of the leaves that the caller has built.
"""

from __future__ import annotations

import copyreg
import functools
import io
import operator
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np

from stoker import errors
from stoker._core.protocol import is_ours
from stoker._engine.transport.owned import AnyDtype, Array, Owned, array_over, tensor_over

if TYPE_CHECKING:
    import torch

Opaque = object
"""A user's object, or one of a library: it is carried, and its own package knows its type."""

Reduced = str | tuple[Opaque, ...]
"""The result of a reducer of `pickle`."""

Reducer = Callable[[Opaque], Reduced]

Dtype = str | AnyDtype
"""NumPy's, as text if that is unambiguous, or the name of torch's."""

Loads = Callable[[bytes | bytearray], Opaque]
"""`pickle.loads`, or what reads the pickles of workers on other machines."""

SMALL = 64 * 1024
"""Bytes below which a leaf stays in the pickle: the trainer would copy such a leaf out of the slot anyway."""


class Leaf(NamedTuple):
    """The place and type of a leaf."""

    offset: int
    size: int
    tensor: bool
    dtype: Dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    requires_grad: bool


def pack(leaves: Sequence[Leaf]) -> bytes:
    """Returns the leaves in the form in which messages carry them."""
    return pickle.dumps([tuple(leaf) for leaf in leaves], 5) if leaves else b""


@functools.lru_cache(8)
def unpack(data: bytes, read: Loads = pickle.loads) -> tuple[Leaf, ...]:
    """Returns the leaves passed to `pack`. Cached, because nearly all batches of a loader have the same leaves."""
    return tuple(map(Leaf._make, cast("list[tuple[Opaque, ...]]", read(data)))) if data else ()


class _Building(threading.local):
    leaves: Sequence[Opaque] = ()


_building = _Building()


def _leaf(index: int) -> Opaque:
    return _building.leaves[index]


def _small_tensor(
    array: Array,
    dtype: str | None = None,
    layout: tuple[Sequence[int], Sequence[int]] | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Rebuilds a small tensor. Torch's own pickling takes ten times as long, and workers may lack torch."""
    tensor = tensor_over(array.view(Owned))
    if dtype is not None:
        tensor = tensor.view(getattr(sys.modules["torch"], dtype))
    if layout is not None:
        tensor = tensor.as_strided(*layout)
    return tensor.requires_grad_() if requires_grad else tensor


def _small_array(tensor: torch.Tensor) -> tuple[Opaque, ...] | None:
    """Returns the arguments of `_small_tensor` for a tensor; None if it is not plain, dense memory of the CPU."""
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
                f"({type(tensor.grad_fn).__name__}). Its graph stays in the worker, so no gradient would reach the "
                "training process. Call .detach() on it in the dataset or the collate_fn, or compute it under "
                "torch.no_grad()."
            ) from None
    memory, strides = memory_of(tensor)
    try:
        return *_numbers(memory), (tuple(tensor.shape), strides), tensor.requires_grad
    except (AttributeError, RuntimeError, TypeError):
        return None


def _numbers(tensor: torch.Tensor) -> tuple[Array, str | None]:
    """Returns the tensor's memory as an array, and the name of its dtype if NumPy lacks that dtype."""
    try:
        return tensor.numpy(), None
    except TypeError:  # bfloat16 and others that NumPy lacks
        if tensor.is_quantized:  # its scale would be lost
            raise
        whole = getattr(sys.modules["torch"], f"int{8 * tensor.itemsize}")
        return tensor.view(whole).numpy(), str(tensor.dtype).removeprefix("torch.")


def memory_of(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Returns a tensor without gaps that holds all values of a CPU tensor, and the strides to view it with.

    A dense layout (channels last, a transpose) is kept, and so is one that repeats memory (an expanded tensor). A
    layout with gaps, such as a column of a table, is copied into contiguous memory.
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


def _untyped_storage(tensor: torch.Tensor) -> Opaque:
    return tensor.untyped_storage()


Place = Callable[[Opaque], "int | None"]
"""Returns the number of a leaf to take out of the pickle, or None for a leaf to leave in it."""


def dumps(batch: Opaque, place: Place, smallest: int = 0) -> bytes:
    """Returns the batch as a pickle; calls `place` for each array and tensor, but may leave those below `smallest`
    bytes in the pickle. Uses cloudpickle for local classes.
    """
    numbers: dict[int, int] = {}
    if (frame := _frame(batch, place, numbers, smallest)) is not None:
        return frame
    sink = io.BytesIO()
    pickler = pickle.Pickler(sink, 5)
    pickler.dispatch_table = _Reducers(_Leaves(place, numbers))  # type: ignore[assignment]
    try:
        pickler.dump(batch)
    except (pickle.PicklingError, AttributeError, TypeError):
        sink = io.BytesIO()
        _by_value()(sink, place, numbers).dump(batch)
    return sink.getvalue()


_FRAME, _WITH_SMALL = b"F", b"S"
"""First byte of a frame, and of one that holds small leaves. No pickle of a batch begins with these bytes."""

Form = Literal["leaf", "list", "tuple"] | tuple[str, ...]
"""A batch without its leaves: it is a leaf, or holds nothing but leaves; of a dict the keys."""


def _frame(batch: Opaque, place: Place, numbers: dict[int, int], smallest: int) -> bytes | None:
    """Returns the frame of a leaf, or of a list, tuple or dict whose values are all leaves that `place` takes out, or
    small and plain ones; else None.

    Most batches have this form. The trainer then neither unpickles a batch nor imports the module that rebuilds a leaf.

    Args:
        place: called for each leaf that is not small and plain.
        numbers: receives the number of each placed leaf, by the leaf's id.
        smallest: bytes below which a plain leaf is a small one.
    """
    kind = type(batch)
    parts: Collection[Opaque] = (batch,)
    form: Form = "leaf"
    if isinstance(batch, dict) and kind is dict:
        parts, form = batch.values(), tuple(batch)
        if any(type(key) is not str for key in form):
            return None
    elif kind is list or kind is tuple:
        parts, form = cast("Sequence[Opaque]", batch), "list" if kind is list else "tuple"
    if not parts or not all(map(_is_plain, map(type, parts))) or len(set(map(id, parts))) < len(parts):
        return None
    found: list[int | _Small] = []
    for part in parts:
        one: int | _Small | None = _small(part, smallest) if smallest else None
        if one is None:
            one = place(part)
            if one is None:
                return None
            numbers[id(part)] = one
        found.append(one)
    if len(numbers) == len(found):
        return _FRAME + pickle.dumps(form, 5)
    return _WITH_SMALL + pickle.dumps((form, found), 5)


_Small = tuple[bool, str, tuple[int, ...], bytearray]
"""A small leaf: whether it is a tensor, its dtype, its shape and its bytes."""


def _small(leaf: Opaque, smallest: int) -> _Small | None:
    """Returns a leaf of less than `smallest` bytes, without gaps, of one of NumPy's own dtypes; None for any other."""
    is_tensor = type(leaf) is not np.ndarray
    try:
        array = np.asarray(leaf) if isinstance(leaf, np.ndarray) else cast("torch.Tensor", leaf).numpy()
    except (AttributeError, RuntimeError, TypeError):
        return None
    dtype = array.dtype
    if array.nbytes >= smallest or not array.flags.c_contiguous or dtype.isbuiltin != 1 or dtype.hasobject:
        return None
    return None if dtype.metadata else (is_tensor, dtype.str, array.shape, bytearray(array.tobytes()))


def _of_small(is_tensor: bool, dtype: str, shape: tuple[int, ...], data: bytearray) -> Opaque:
    """Returns the leaf that `_small` described."""
    array = array_over(shape, dtype, data)
    return _small_tensor(array) if is_tensor else array


def _is_plain(kind: type) -> bool:
    return kind is np.ndarray or kind is _tensor() or is_ours(kind, DEFERRED)


DEFERRED, TEXTS = "TensorLeaf", "RunTexts"
"""Names of Stoker's collation classes that are leaves: this package does not import them."""


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _tensor() -> type | None:
    """Returns `torch.Tensor`, or None if torch is not loaded or another thread is importing it."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


def _filled(form: Form, leaves: Sequence[Opaque]) -> Opaque:
    """Returns the batch of this form and these leaves."""
    if isinstance(form, tuple):
        return dict(zip(form, leaves, strict=True))
    if form == "leaf":
        return leaves[0]
    return list(leaves) if form == "list" else tuple(leaves)


@functools.lru_cache(8)
def _form(frame: bytes, read: Loads) -> Form:
    return cast("Form", read(frame[len(_FRAME) :]))


def dumps_unit(unit: Opaque) -> bytes:
    """Returns a unit as a pickle; arrays, which are rare in units, stay in it.

    A named tuple is pickled as a tuple, in a third of the time: the receiver knows its names.
    """
    sink = io.BytesIO()
    pickler = pickle.Pickler(sink, 5)
    if (tensor := _tensor()) is not None:
        pickler.dispatch_table = _with_tensors(tensor)  # type: ignore[assignment]
    try:
        pickler.dump(tuple(unit) if isinstance(unit, tuple) else unit)
    except (pickle.PicklingError, AttributeError, TypeError):
        sink = io.BytesIO()
        _by_value()(sink, lambda leaf: None, {}).dump(unit)
    return sink.getvalue()


@functools.cache
def _with_tensors(kind: type) -> Mapping[type, Callable[[torch.Tensor], Reduced]]:
    """Returns a dispatch table that pickles a tensor by its values. Torch would send the whole storage of a view."""

    def reduced(tensor: torch.Tensor) -> Reduced:
        small = _small_array(tensor)
        if small is not None:
            return _small_tensor, small
        return cast("Reduced", tensor.__reduce_ex__(5))  # type: ignore[no-untyped-call]

    return ChainMap({kind: reduced}, cast("dict[type, Callable[[torch.Tensor], Reduced]]", copyreg.dispatch_table))


class _Leaves:
    """Takes arrays and tensors out of a pickle.

    Args:
        place: called for each leaf.
        numbers: of the leaves that are placed already, by id.
    """

    def __init__(self, place: Place, numbers: Mapping[int, int]) -> None:
        self._place = place
        self._numbers = numbers
        self._tensor = _tensor()

    def reducer(self, kind: type) -> Reducer | None:
        """Returns the reducer of a class of leaves, which may return NotImplemented; None for any other class."""
        if kind is np.ndarray or kind is self._tensor or is_ours(kind, DEFERRED, TEXTS):
            return self._reduced
        return _reduced_storage if _name(kind) == _STORAGE else None

    def _reduced(self, thing: Opaque) -> Reduced:
        kind = type(thing)
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._place(thing)
        if number is not None:
            return _leaf, (number,)
        if is_ours(kind, DEFERRED):
            return _small_tensor, (np.array(thing),)
        small = _small_array(cast("torch.Tensor", thing)) if kind is self._tensor else None
        if small is not None:
            return _small_tensor, small
        if kind is np.ndarray and not cast("Array", thing).flags.writeable:
            return cast("Array", thing).copy("K").__reduce_ex__(5)  # else it would stay read-only in the user's batch
        return cast("Reduced", NotImplemented)


def _reduced_storage(thing: Opaque) -> Reduced:
    storage = cast("torch.UntypedStorage", thing)
    if storage.device.type != "cpu":
        return cast("Reduced", NotImplemented)
    torch = sys.modules["torch"]  # it can write a bare storage but not read it
    return _untyped_storage, (torch.empty(0, dtype=torch.uint8).set_(storage),)


class _Reducers(dict[type, Reducer]):
    """The reducers of one pickle by class, found when an object of the class comes: those of leaves, and for all others
    what `pickle` does without a table. A pickler with `reducer_override` calls Python for each object instead.
    """

    def __init__(self, leaves: _Leaves) -> None:
        super().__init__()
        self._leaves = leaves

    def __missing__(self, kind: type) -> Reducer:
        if issubclass(kind, type) and kind not in copyreg.dispatch_table:
            raise KeyError(kind)  # a class is pickled by its name
        usual = cast("Reducer", copyreg.dispatch_table.get(kind, _USUAL))
        reducer = self._leaves.reducer(kind)
        found = self[kind] = usual if reducer is None else functools.partial(_reduced_or_usual, reducer, usual)
        return found


def _reduced_or_usual(reducer: Reducer, usual: Reducer, thing: Opaque) -> Reduced:
    reduced = reducer(thing)
    return usual(thing) if reduced is NotImplemented else reduced


_USUAL = operator.methodcaller("__reduce_ex__", 5)


class _LeafPickler(pickle.Pickler):
    """Takes arrays and tensors out of the pickle, for picklers that override more."""

    def __init__(self, sink: io.BytesIO, place: Place, numbers: Mapping[int, int]) -> None:
        super().__init__(sink, protocol=5)
        self._leaves = _Leaves(place, numbers)

    def reducer_override(self, thing: Opaque) -> Reduced:  # type: ignore[override]
        reducer = self._leaves.reducer(type(thing))
        reduced = NotImplemented if reducer is None else reducer(thing)
        return self._otherwise(thing) if reduced is NotImplemented else reduced

    def _otherwise(self, thing: Opaque) -> Reduced:
        return cast("Reduced", NotImplemented)


class _BetweenWorkers(_LeafPickler):
    """Pickles a class that a function made by its bases, name and address: the workers have it from before their fork.
    A copy of the class would not do, since samples of one batch must be of one class.
    """

    def _otherwise(self, thing: Opaque) -> Reduced:
        if isinstance(thing, type) and "<locals>" in thing.__qualname__:
            return _local_class, (thing.__bases__[0], thing.__module__, thing.__qualname__, id(thing))
        return super()._otherwise(thing)


def _local_class(base: type, module: str, name: str, address: int) -> type:
    below: list[type] = type.__subclasses__(base)
    classes = [each for each in below if (each.__module__, each.__qualname__) == (module, name)]
    if len(classes) > 1:
        classes = [each for each in classes if id(each) == address]
    if not classes:
        raise pickle.UnpicklingError(f"this worker has no class {module}.{name}")
    return classes[0]


def dumps_samples(samples: Opaque) -> bytes:
    """Returns samples as a pickle for another worker of the same loader, which `loads` reads.

    Raises:
        Exception: they cannot be pickled, or one of their classes cannot be found again.
    """
    sink = io.BytesIO()
    _BetweenWorkers(sink, lambda leaf: None, {}).dump(samples)
    return sink.getvalue()


@functools.cache
def _by_value() -> type[_LeafPickler]:
    """Returns a pickler class that pickles classes and functions without an importable module by value."""
    import cloudpickle

    class ByValue(_LeafPickler, cloudpickle.Pickler):  # type: ignore[misc]
        def _otherwise(self, thing: Opaque) -> Reduced:
            return cast("Reduced", cloudpickle.Pickler.reducer_override(self, thing))

    return ByValue


def loads(data: bytes | bytearray, leaves: Sequence[Opaque], read: Loads = pickle.loads) -> Opaque:
    """Returns the rebuilt batch. Reentrant: a user's class may unpickle another batch meanwhile."""
    if data[:1] == _FRAME:
        return _filled(_form(bytes(data), read), leaves)
    if data[:1] == _WITH_SMALL:
        form, found = cast("tuple[Form, list[int | _Small]]", read(data[len(_WITH_SMALL) :]))
        return _filled(form, [_of_small(*one) if isinstance(one, tuple) else leaves[one] for one in found])
    before, _building.leaves = _building.leaves, leaves
    try:
        return read(data)
    finally:
        _building.leaves = before
