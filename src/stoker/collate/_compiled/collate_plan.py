"""The plan of a batch: how each field is taken out of the samples, checked and written, as the first sample shows.

A plan is a tree of nodes with the structure of the sample. `check` takes a column (one value from each sample), tests
that it fits the node, and passes its parts down. `make` then allocates memory and fills it. A batch that does not fit
is thus nearly always detected before lent memory is asked for. Tests apply to whole columns, in C.

Compiled are exact dicts, tuples, named tuples, lists and dataclasses, and inside them Python's and NumPy's numbers,
arrays, plain tensors and strings, unless a user's function is registered for them. Any other field is a `General` node,
collated by the general path.
"""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import attrgetter, itemgetter
from types import MethodType
from typing import Any

import numpy as np

from stoker.collate import default, registry, structure, tensors
from stoker.collate._compiled import column_copy, incremental
from stoker.collate._compiled.column_copy import WrittenColumn
from stoker.collate._compiled.incremental import IncrementalLeaf, Node, Unlike
from stoker.collate.mismatch import common_dtype
from stoker.collate.stacking import NumpyLeaves
from stoker.collate.tensors import in_order, is_plain

_dtype_of = attrgetter("dtype")
_INT64 = np.dtype(np.int64)
_FLOAT64 = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)

FnMap = Mapping[registry.Key, registry.CollateFn]


class Deviation(Exception):
    """A batch does not fit the plan: the general path collates it."""


def _fit(fits: bool) -> None:
    if not fits:
        raise Deviation


class _Small:
    """A field without large leaves: its values wait for the others."""

    large = 0

    def begin(self, count: int, travels: int) -> None:
        """Does nothing: there is no memory to allocate."""

    def is_like(self, value: Any) -> bool:
        return True

    def put(self, place: int, value: Any) -> Any:
        return value

    def end(self) -> None:
        """Does nothing: there is no memory to drop."""

    def is_apart(self, column: Sequence[Any]) -> bool:
        return True


class General(_Small):
    """A field that the general path collates."""

    by_rows = False

    def __init__(self, fn_map: FnMap) -> None:
        self._fn_map = fn_map

    def check(self, column: Sequence[Any]) -> Sequence[Any]:
        return column

    def make(self, checked: Sequence[Any]) -> Any:
        return default.collated_by(checked, self._fn_map)


class RunTexts(list[Any]):
    """Strings or bytes in a run of a batch's rows: the transport joins the runs.

    Attributes:
        joined: the type of the whole column, a list or a tuple.
    """

    joined: type = list


class Strings(_Small):
    """Strings or bytes: unchanged, and only the first is tested, as on the general path.

    Args:
        in_runs: whether the result is a run of a batch's rows.
    """

    by_rows = True

    def __init__(self, kind: type, in_runs: bool) -> None:
        self._kind = kind
        self._in_runs = in_runs

    def check(self, column: Sequence[Any]) -> Sequence[Any]:
        _fit(type(column[0]) is self._kind)
        return column

    def make(self, checked: Sequence[Any]) -> Any:
        if not self._in_runs:
            return checked
        texts = RunTexts(checked)
        texts.joined = type(checked)
        return texts


class NumberLeaf(_Small):
    """Numbers that make one dtype: of one exact type of Python or NumPy, or mixed with other types.

    Args:
        kind: the type that has to occur.
        others: the types that may also occur.
        first: whether the first sample has to be of the type `kind`.
    """

    by_rows = True

    def __init__(
        self, kind: type, others: Set[type], dtype: np.dtype[Any], leaves: NumpyLeaves, first: bool = False
    ) -> None:
        self._kind = kind
        self._kinds = {kind, *others}
        self._first = first
        self._dtype = dtype
        self._leaf = leaves.leaf
        self._copy = column_copy.of_numbers(kind, dtype)

    def check(self, column: Sequence[Any]) -> Sequence[Any] | WrittenColumn:
        if (alone := self._copy.alone(column)) is not None:
            return alone
        kinds = set(map(type, column))
        _fit(kinds <= self._kinds and self._kind in kinds and (not self._first or type(column[0]) is self._kind))
        return column

    def make(self, checked: Sequence[Any] | WrittenColumn) -> Any:
        if isinstance(checked, WrittenColumn):
            return self._leaf(checked.out)
        out = tensors.empty((len(checked),), self._dtype)
        if not self._copy.into(checked, out):
            out[...] = checked
        return self._leaf(out)


class Arrays(IncrementalLeaf):
    """NumPy arrays of one dtype and shape, with at least one dimension."""

    by_rows = True
    _kinds = frozenset({np.ndarray, np.memmap})

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], leaves: NumpyLeaves) -> None:
        self._shape = shape
        self._dtype = dtype
        self._lengths = {shape[0]}
        self._leaf = leaves.leaf
        self._sized(shape, dtype.itemsize)
        self._beside = incremental.strides_beside(shape, dtype.itemsize == 1)
        self._copy = column_copy.of_arrays(shape, dtype)

    def check(self, column: Sequence[Any]) -> Sequence[Any] | WrittenColumn:
        if not self._rows and (alone := self._copy.alone(column)) is not None:
            return alone
        _fit(self._kinds.issuperset(map(type, column)))
        # `concatenate` tests the other dimensions and the dtype, faster
        _fit(set(map(len, column)) == self._lengths)
        return column

    def make(self, checked: Sequence[Any] | WrittenColumn) -> Any:
        if isinstance(checked, WrittenColumn):
            return self._leaf(checked.out)
        if (out := self.written(checked)) is not None:
            return self._leaf(out)
        count, (first, *others) = len(checked), self._shape
        out = tensors.empty((count, *self._shape), self._dtype)
        is_lent = out.base is not None  # private memory is read next by this process and should stay in its caches
        if not ((is_lent and incremental.stack_arrays(checked, out)) or self._copy.into(checked, out)):
            np.concatenate(checked, out=out.reshape(count * first, *others), casting="no")
        return self._leaf(out)

    def _memory(self, count: int) -> tuple[Any, Sequence[Any]]:
        whole = tensors.empty((count, *self._shape), self._dtype)
        return whole, list(whole)

    def _copied(self, rows: Any) -> Any:
        return rows.copy()

    def is_like(self, value: Any) -> bool:
        return type(value) in self._kinds and value.shape == self._shape and value.dtype == self._dtype

    def _write(self, row: Any, value: Any) -> None:
        if self._streams is None or not incremental.row_array(self._streams, row, value, self._beside):
            np.copyto(row, value)

    def _address(self, value: Any) -> int:
        return incremental.address_of_array(value)


class Tensors(IncrementalLeaf):
    """Plain CPU tensors of one dtype and shape."""

    by_rows = True

    def __init__(self, example: Any, leaves: NumpyLeaves) -> None:
        self._kinds = {type(example)}
        self._shape = tuple(example.shape)
        self._dtype = example.dtype
        self._leaf = leaves.of_tensor
        self._stack = sys.modules["torch"].stack
        self._sized(self._shape, example.element_size())
        self._beside = incremental.strides_beside(self._shape, example.element_size() == 1)
        self._copy = column_copy.of_tensors(self._shape, self._dtype, example.element_size())

    def check(self, column: Sequence[Any]) -> Sequence[Any] | WrittenColumn:
        if not self._rows and (alone := self._copy.alone(column)) is not None:
            return alone
        _fit(set(map(type, column)) == self._kinds)
        first = column[0]
        # `stack` tests the shapes, devices and gradients of the others
        _fit(first.dtype == self._dtype and first.shape == self._shape and not first.requires_grad)
        return column

    def make(self, checked: Sequence[Any] | WrittenColumn) -> Any:
        if isinstance(checked, WrittenColumn):
            return self._leaf(checked.out)
        if (out := self.written(checked)) is not None:
            return self._leaf(out)
        out = tensors.lent_tensor((len(checked), *self._shape), self._dtype)
        if out is not None and (incremental.stack_tensors(checked, out) or self._copy.into(checked, out)):
            return self._leaf(out)
        if out is not None:  # `stack` would convert other dtypes silently
            _fit(list(map(_dtype_of, checked)).count(self._dtype) == len(checked))
            return self._leaf(self._stack(checked, 0, out=out))
        batch = in_order(self._stack(checked, 0))
        _fit(batch.dtype == self._dtype and not batch.requires_grad)  # with `out`, `stack` refuses gradients itself
        return self._leaf(batch)

    def _memory(self, count: int) -> tuple[Any, Sequence[Any]]:
        whole = tensors.empty_tensor((count, *self._shape), self._dtype)
        return whole, whole.unbind()

    def _copied(self, rows: Any) -> Any:
        return rows.clone()

    def is_like(self, value: Any) -> bool:
        return value.shape == self._shape and value.dtype == self._dtype and is_plain(value)

    def _write(self, row: Any, value: Any) -> None:
        if self._streams is None or not incremental.row_tensor(self._streams, row, value, self._beside):
            row.copy_(value)

    def _address(self, value: Any) -> int:
        return value.data_ptr()  # type: ignore[no-any-return]


class _Fields(ABC):
    """Samples of one type with fields."""

    def __init__(self, kind: type, nodes: Sequence[Node], getters: Iterable[Callable[[Any], Any]]) -> None:
        self._kinds = {kind}
        self._nodes = nodes
        self.by_rows = all(node.by_rows for node in nodes)
        self._getters = list(getters)
        self._large = [number for number, node in enumerate(nodes) if node.large]
        self.large = sum(node.large for node in nodes)

    def _checked(self, column: Sequence[Any], listed: bool = True) -> list[Any]:
        # Not `zip(*column)`: a tuple or an iterator for each sample would make the garbage collector visit them all
        kind: Any = list if listed else tuple
        return [node.check(kind(map(get, column))) for node, get in zip(self._nodes, self._getters, strict=True)]

    def _made(self, checked: Sequence[Any]) -> list[Any]:
        return [node.make(part) for node, part in zip(self._nodes, checked, strict=True)]

    def begin(self, count: int, travels: int) -> None:
        for number in self._large:
            self._nodes[number].begin(count, travels)

    def end(self) -> None:
        for number in self._large:
            self._nodes[number].end()

    def is_apart(self, column: Sequence[Any]) -> bool:
        return all(self._nodes[number].is_apart(list(map(self._getters[number], column))) for number in self._large)

    def is_like(self, value: Any) -> bool:
        return type(value) in self._kinds and all(
            self._nodes[number].is_like(self._getters[number](value)) for number in self._large
        )

    def put(self, place: int, value: Any) -> Any:
        if type(value) not in self._kinds:
            raise Unlike
        put = {number: self._nodes[number].put(place, self._getters[number](value)) for number in self._large}
        return self._exchanged(value, put)

    @abstractmethod
    def _exchanged(self, value: Any, put: Mapping[int, Any]) -> Any:
        """Returns the value with these fields replaced, of the same type."""


class Dicts(_Fields):
    """Exact dicts; later samples may have further keys beside those of the first."""

    def __init__(self, keys: Sequence[Any], nodes: Sequence[Node]) -> None:
        super().__init__(dict, nodes, map(itemgetter, keys))
        self._keys = list(keys)

    def check(self, column: Sequence[Any]) -> list[Any]:
        _fit(set(map(type, column)) == self._kinds and list(column[0]) == self._keys)
        return self._checked(column)

    def make(self, checked: list[Any]) -> Any:
        return dict(zip(self._keys, self._made(checked), strict=True))

    def _exchanged(self, value: dict[Any, Any], put: Mapping[int, Any]) -> Any:
        return {**value, **{self._keys[number]: field for number, field in put.items()}}


class Sequences(_Fields):
    """Exact tuples (which become lists), lists, and named tuples."""

    def __init__(self, kind: type, nodes: Sequence[Node]) -> None:
        super().__init__(kind, nodes, map(itemgetter, range(len(nodes))))
        self._kind = kind
        self._lengths = {len(nodes)}
        self._rebuilt: Callable[..., Any] | None = None if kind in (tuple, list) else kind

    def check(self, column: Sequence[Any]) -> list[Any]:
        _fit(set(map(type, column)) == self._kinds and set(map(len, column)) == self._lengths)
        return self._checked(column, listed=False)

    def make(self, checked: list[Any]) -> Any:
        fields = self._made(checked)
        return fields if self._rebuilt is None else self._rebuilt(*fields)

    def _exchanged(self, value: Sequence[Any], put: Mapping[int, Any]) -> Any:
        fields = [put.get(number, field) for number, field in enumerate(value)]
        return fields if self._kind is list else tuple.__new__(self._kind, fields)


class Records(_Fields):
    """Dataclasses of one exact type. The constructor is not called.

    Attributes of the first sample beside its fields are kept. In runs of rows there must be none, since they cannot be
    told apart from rows.
    """

    def __init__(self, kind: type, names: Sequence[str], nodes: Sequence[Node], in_runs: bool) -> None:
        super().__init__(kind, nodes, map(attrgetter, names))
        self._all = [field.name for field in dataclasses.fields(kind)]
        self._names = list(names)
        self._in_runs = in_runs

    def has_only_fields(self, sample: Any) -> bool:
        return getattr(sample, "__dict__", {}).keys() <= set(self._names)

    def check(self, column: Sequence[Any]) -> tuple[Any, list[Any]]:
        first = column[0]
        _fit(not self._in_runs or self.has_only_fields(first))
        _fit(set(map(type, column)) == self._kinds and [n for n in self._all if hasattr(first, n)] == self._names)
        return first, self._checked(column)

    def make(self, checked: tuple[Any, list[Any]]) -> Any:
        clone = structure.copied(checked[0])
        for name, value in zip(self._names, self._made(checked[1]), strict=True):
            object.__setattr__(clone, name, value)
        return clone

    def _exchanged(self, value: Any, put: Mapping[int, Any]) -> Any:
        clone = structure.copied(value)
        for number, field in put.items():
            object.__setattr__(clone, self._names[number], field)
        return clone


def plan_of(sample: Any, fn_map: FnMap, leaves: NumpyLeaves, in_runs: bool = False) -> Node:
    """Returns the plan for samples with the structure of this one.

    Args:
        leaves: the object whose methods are Stoker's functions among them.
        in_runs: whether the plan is for runs of a batch's rows, which are joined later.
    """
    kind, fn = type(sample), registry.function_for(sample, fn_map)
    if fn is not None:
        return _leaf(sample, fn, fn_map, leaves, in_runs) or General(fn_map)

    def below(values: Sequence[Any]) -> list[Node]:
        return [plan_of(value, fn_map, leaves, in_runs) for value in values]

    if kind is dict and sample:
        return Dicts(list(sample), below(list(sample.values())))
    is_named = issubclass(kind, tuple) and bool(getattr(kind, "_fields", None))
    if is_named or (kind in (tuple, list) and sample):
        return Sequences(kind, below(sample))
    if dataclasses.is_dataclass(kind) and not isinstance(sample, (Mapping, Sequence)):
        names = [field.name for field in dataclasses.fields(kind) if hasattr(sample, field.name)]
        if names:
            record = Records(kind, names, below([getattr(sample, name) for name in names]), in_runs)
            record.by_rows = record.by_rows and record.has_only_fields(sample)
            return record
    return General(fn_map)


def _leaf(sample: Any, fn: registry.CollateFn, fn_map: FnMap, leaves: NumpyLeaves, in_runs: bool) -> Node | None:
    """Returns the node of a leaf that one of Stoker's functions collates; None for a leaf that cannot be compiled."""
    kind, tensor = type(sample), getattr(sys.modules.get("torch"), "Tensor", None)  # None during torch's import
    if type(fn) is not MethodType:  # a user's object, which may have an __eq__ of its own
        return None
    if fn == leaves.floats and kind is float:
        return NumberLeaf(float, {int, bool}, _FLOAT64, leaves, first=True)
    if fn == leaves.ints and kind is int:
        return NumberLeaf(int, {bool}, _INT64, leaves)
    if fn == leaves.ints and kind is bool:
        return NumberLeaf(bool, set(), _BOOL, leaves)
    if fn == leaves.strings and kind in (str, bytes):
        return Strings(kind, in_runs)
    if fn == leaves.scalars and isinstance(sample, np.generic) and sample.dtype.kind in "biufc":
        leaves.accept(sample.dtype)
        return NumberLeaf(kind, set(), common_dtype({sample.dtype}, ()), leaves)
    if fn == leaves.arrays and kind in (np.ndarray, np.memmap) and sample.ndim and sample.dtype.kind in "biufc":
        # A user's function for tensors also takes arrays
        theirs = tensor is not None and not registry.is_method(fn_map.get(tensor, leaves.tensors), leaves.tensors)
        leaves.accept(sample.dtype)
        native = sample.dtype.isnative  # other byte orders are converted, not copied
        return Arrays(sample.shape, common_dtype({sample.dtype}, ()), leaves) if native and not theirs else None
    if fn == leaves.tensors and kind is tensor:
        return Tensors(sample, leaves) if is_plain(sample) else None
    return None
