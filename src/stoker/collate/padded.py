"""Samples of different lengths: padded to one length, with a mask of the real values; also lists of Python numbers."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np

from stoker.collate import mismatch, registry, structure, tensors
from stoker.collate.default import one_level
from stoker.collate.flavours import Flavoured
from stoker.collate.mismatch import common_dtype
from stoker.collate.stacking import NumpyLeaves
from stoker.collate.tensors import as_tensor, is_tensor
from stoker.errors import BatchError


class Padded(NamedTuple):
    """A padded field outside of a mapping, where its mask cannot become a field of its own.

    Attributes:
        values: shape (batch, *padded shape), the dtype of the samples.
        mask: shape (batch, *padded sizes of `dims`), bool, True for values of a sample.
    """

    values: Any
    mask: Any


@dataclass(frozen=True)
class PadCollator(Flavoured):
    """A `collate_fn` that pads arrays, tensors and lists of numbers to the longest of the batch.

    With a single `padding_value`, every tensor, array and list of numbers with the dimensions `dims` is padded and gets
    a mask in every batch, even if its samples have one size. With a mapping, only the fields that it names are padded.
    Other fields follow the rules of `default_collate`.

    In samples that are mappings, the mask of field `"ids"` is the field `"ids_mask"`. Elsewhere (a sample that is the
    array itself, a place in a tuple, an attribute) the field becomes `Padded(values, mask)`.

        PadCollator()                                       # waveforms, token lists: padded at the end with 0
        PadCollator({"input_ids": 0, "labels": -100}, side="left", multiple_of=8)
        PadCollator({("target", "boxes"): 0.0})             # sample["target"]["boxes"], shape (any number, 4)
        PadCollator({0: 0}, dims=(1, 2))                    # (image, label), image of shape (3, any, any)

    Lists of ints become int64, lists of floats float64; an empty list takes the dtype of the others, or int64. Tensors
    with gradients or on a device stay so. Other leaves are written once, in a worker process into the memory of the
    batch. Stateless: any thread and process may call it, and it can be pickled.

    Attributes:
        padding_value: the value, or a mapping from field to value. A field is a key, a position, the name of an
            attribute, or a tuple of them that leads into nested structures.
        side: the side of the padding, "right" (the end) or "left" (the start).
        multiple_of: padded sizes are rounded up to a multiple of it.
        max_length: longer samples are first cut to it, on the side of the padding: with "right" the first elements
            stay, with "left" the last ones.
        dims: the dimensions of a sample that may differ; all others have to be equal.
        mask: suffix of a key that names its mask; None makes no masks, and no `Padded`.
        output: "torch" or "numpy"; None is the output of `default_collate`.

    Raises:
        BatchError: on call, if samples differ in more than `dims`, a named field is missing or cannot be padded, or the
            padding value does not fit its dtype.
        ValueError: on construction, if an argument is out of range.
    """

    padding_value: float | Mapping[Hashable, float] = 0
    _: KW_ONLY
    side: Side = "right"
    multiple_of: int = 1
    max_length: int | None = None
    dims: Sequence[int] = (0,)
    mask: str | None = "_mask"
    output: registry.Output | None = None

    def __post_init__(self) -> None:
        if self.side not in ("right", "left"):
            raise ValueError(f"side should be 'right' or 'left', but got {self.side!r}")
        for name, size in (("multiple_of", self.multiple_of), ("max_length", self.max_length)):
            if size is not None and (not isinstance(size, int) or size < 1):
                raise ValueError(f"{name} should be a positive integer, but got {size!r}")
        if not self.dims or list(self.dims) != sorted(set(self.dims)) or min(self.dims) < 0:
            raise ValueError(f"dims should be dimensions of a sample from 0, ascending, but got {self.dims!r}")

    def for_output(self, output: registry.Output) -> PadCollator:
        """Returns the same collator with leaves of another kind."""
        return replace(self, output=output)

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Returns the samples collated into a batch."""
        return collated(self, batch, {})


Path = tuple[Hashable, ...]
Sizes = Mapping[Path, Sequence[int]]


def collated(options: PadCollator, batch: Sequence[Any], sizes: Sizes) -> Any:
    """Returns the samples collated into a batch.

    Args:
        options: how fields are padded.
        sizes: lengths of the first dimension of some fields, ascending: the least that fits is taken.
    """
    padding = _Padding(options, sizes)
    whole = padding.collated(batch, ())
    for argument, named in (("pad_to", sizes), ("padding_value", padding.named or {})):
        if absent := [path[0] if len(path) == 1 else path for path in named if path not in padding.met]:
            raise BatchError(f"{argument} names {absent}, but the samples have no such fields to pad: correct it.")
    return whole


def masks_beside(fields: dict[Any, Any], suffix: Callable[[Any], str | None]) -> dict[Any, Any]:
    """Returns the collated fields of a mapping with each `Padded` as two: its values, and its mask.

    Args:
        suffix: returns what is added to a field's key to name its mask.
    """
    beside = dict(fields)
    for key, value in fields.items():
        if isinstance(value, Padded):
            name = f"{key}{suffix(key)}"
            if name in fields:
                raise BatchError(f'the mask of "{key}" would replace the field "{name}": choose another mask=')
            beside[key], beside[name] = value
    return beside


class _Padding:
    """The collation of one batch."""

    def __init__(self, options: PadCollator, sizes: Sizes) -> None:
        self.options = options
        self.sizes = sizes
        self.leaves = registry.leaves_for(options.output)
        self.functions = registry.functions(self.leaves)
        self.named: dict[tuple[Hashable, ...], float] | None = None
        if isinstance(options.padding_value, Mapping):
            values = options.padding_value.items()
            self.named = {path if isinstance(path, tuple) else (path,): value for path, value in values}
        self.met: set[tuple[Hashable, ...]] = set()

    def collated(self, batch: Sequence[Any], path: tuple[Hashable, ...]) -> Any:
        if self._is_padded(batch, path):
            self.met.add(path)
            return self._padded(batch, self.options.padding_value if self.named is None else self.named[path], path)

        def field(values: Sequence[Any], key: Any) -> Any:
            return self.collated(values, (*path, key))

        if isinstance(batch[0], Mapping) and registry.function_for(batch[0], self.functions) is None:
            fields = structure.mapping_fields(batch, field)
            return structure.rebuilt_mapping(batch[0], masks_beside(fields, lambda _: self.options.mask))
        return one_level(batch, self.functions, field)

    def _is_padded(self, batch: Sequence[Any], path: tuple[Hashable, ...]) -> bool:
        if self.named is not None:
            return path in self.named
        elem, dims = batch[0], self.options.dims
        if isinstance(elem, list):
            some = next((sample[0] for sample in batch if isinstance(sample, list) and list.__len__(sample)), 0)
            return tuple(dims) == (0,) and isinstance(some, (int, float, np.number))
        fn = registry.function_for(elem, self.functions)
        if not (registry.is_method(fn, self.leaves.tensors) or registry.is_method(fn, self.leaves.arrays)):
            return False
        return elem.ndim > dims[-1] and (is_tensor(elem) or elem.dtype.kind in "biufc")

    def _padded(self, batch: Sequence[Any], value: Any, path: Path) -> Any:
        dims, side = self.options.dims, self.options.side
        if tuple(dims) == (0,) and (numbers := numbers_of(batch)) is not None:
            return self._laid_out(numbers, value, path)
        rows = rows_of(batch, dims)
        if self.options.max_length is not None:
            rows = cut(rows, dims, self.options.max_length, side)
        sizes = {dim: self._size(max(row.shape[dim] for row in rows), path if dim == 0 else ()) for dim in dims}
        values = padded(rows, sizes, side, value, self.leaves)
        return values if self.options.mask is None else Padded(values, mask(rows, sizes, side, self.leaves))

    def _laid_out(self, numbers: ListedNumbers, value: Any, path: Path) -> Any:
        """Returns lists of numbers, the most frequent case, as one padded leaf."""
        side = self.options.side
        if self.options.max_length is not None:
            numbers = numbers.cut(self.options.max_length, from_start=side == "left")
        lengths, size = numbers.lengths, self._size(int(numbers.lengths.max()), path)
        shape, dtype = (len(lengths), size), numbers.values.dtype
        check_fits(value, dtype)
        places, had = np.arange(size), lengths[:, None]
        is_real = places < had if side == "right" else places >= size - had
        out = tensors.empty(shape, dtype)
        out[...] = value
        out[is_real] = numbers.values
        values = self.leaves.leaf(out)
        if self.options.mask is None:
            return values
        mask = tensors.empty(shape, is_real.dtype)
        mask[...] = is_real
        return Padded(values, self.leaves.leaf(mask))

    def _size(self, longest: int, path: Path) -> int:
        step = self.options.multiple_of
        fitting = (size for size in self.sizes.get(path, ()) if size >= longest)
        return next(fitting, -(-longest // step) * step)


# Rows of different sizes, written into one leaf.


Side = Literal["right", "left"]


def rows_of(batch: Sequence[Any], dims: Sequence[int]) -> list[Any]:
    """Returns arrays over the samples' memory, or tensors if NumPy cannot hold one; their shapes differ only in `dims`.

    An empty list has no dtype and no other dimensions: it takes those of a row that has them.
    """
    parts = [None if isinstance(sample, list) and not list.__len__(sample) else _row(sample, batch) for sample in batch]
    some = next((row for row in parts if row is not None), np.empty(0, np.int64))
    nothing = some[tuple(slice(0 if dim in dims else None) for dim in range(some.ndim))]
    rows = [nothing if row is None else row for row in parts]
    if not all(isinstance(row, np.ndarray) for row in rows):
        rows = [as_tensor(row) for row in rows]
    if some.ndim <= dims[-1]:
        raise BatchError(f"there is no dimension {dims[-1]} to pad in shape {tuple(some.shape)}: correct dims=")
    if len({(row.ndim, *(size for dim, size in enumerate(row.shape) if dim not in dims)) for row in rows}) > 1:
        raise mismatch.unequal_shapes(rows)
    return rows


def cut(rows: Sequence[Any], dims: Sequence[int], longest: int, side: Side) -> list[Any]:
    """Returns views of the rows, cut to `longest` in these dimensions on the side of the padding."""
    shapes = [[min(size, longest) if dim in dims else size for dim, size in enumerate(row.shape)] for row in rows]
    return [row[_corner(row.shape, size, side)] for row, size in zip(rows, shapes, strict=True)]


def padded(rows: Sequence[Any], sizes: Mapping[int, int], side: Side, value: Any, leaves: NumpyLeaves) -> Any:
    """Returns one leaf of the rows, padded on that side: shape (rows, *row with `sizes` for its dimensions)."""
    shape = tuple(sizes.get(dim, size) for dim, size in enumerate(rows[0].shape))
    out = _empty(rows, shape, value, leaves)
    if len(shape) == 1 and isinstance(out, np.ndarray):
        _lay_out(out, rows, value, side)
        return leaves.leaf(out)
    for place, row in enumerate(rows):
        into = out[place]
        if row.shape != shape:
            into[...] = value
            into = into[_corner(shape, row.shape, side)]
        into[...] = row
    return leaves.leaf(out) if isinstance(out, np.ndarray) else leaves.of_tensor(out)


def _lay_out(out: np.ndarray[Any, Any], rows: Sequence[Any], value: Any, side: Side) -> None:
    """Writes rows of one dimension, which are often many and short."""
    out[...] = value
    (_, size) = out.shape
    for into, row in zip(out, rows, strict=True):
        if side == "right":
            into[: len(row)] = row
        else:
            into[size - len(row) :] = row


def mask(rows: Sequence[Any], sizes: Mapping[int, int], side: Side, leaves: NumpyLeaves) -> Any:
    """Returns a mask of the rows' own values in `padded`: bool, shape (rows, *sizes)."""
    real = tensors.empty((len(rows), *sizes.values()), np.dtype(np.bool_))
    real[...] = True
    for axis, (dim, size) in enumerate(sizes.items(), start=1):
        had = np.array([[row.shape[dim]] for row in rows])
        along = np.arange(size) < had if side == "right" else np.arange(size) >= size - had
        real &= along.reshape([len(rows), *[size if at == axis else 1 for at in range(1, real.ndim)]])
    whole = leaves.leaf(real)
    return whole.to(rows[0].device) if is_tensor(whole) and is_tensor(rows[0]) else whole


def _corner(shape: Sequence[int], sizes: Sequence[int], side: Side) -> tuple[slice, ...]:
    """Returns the part of `shape` on the side of the data."""
    if side == "right":
        return tuple(slice(size) for size in sizes)
    return tuple(slice(whole - size, None) for whole, size in zip(shape, sizes, strict=True))


def _row(sample: Any, batch: Sequence[Any]) -> Any:
    if is_tensor(sample):
        try:
            return sample.numpy()
        except (RuntimeError, TypeError):
            return sample  # with a gradient, on a device, or of a dtype that NumPy lacks
    try:
        row = np.asarray(sample)
    except ValueError as cause:
        raise BatchError(f"a list that is no array cannot be padded: {cause}") from cause
    if row.dtype.kind in "ufO" and isinstance(sample, (list, tuple)) and {int} <= {*map(type, sample)} <= {int, bool}:
        raise mismatch.overflow(sample, "the list")
    if row.dtype.kind not in "biufc":
        raise mismatch.unequal_types(batch)
    return row


def _empty(rows: Sequence[Any], shape: Sequence[int], value: Any, leaves: NumpyLeaves) -> Any:
    """Returns uninitialised memory for the rows. Raises BatchError if its dtype cannot hold the value."""
    if isinstance(rows[0], np.ndarray):
        dtype = common_dtype({row.dtype for row in rows}, rows)
        leaves.accept(dtype)
        check_fits(value, dtype)
        return tensors.empty((len(rows), *shape), dtype)
    import torch

    common = reduce(torch.promote_types, (row.dtype for row in rows))
    _check(value, lambda number: torch.tensor(number, dtype=common).item())
    if any(row.requires_grad or row.device.type != "cpu" for row in rows):
        return torch.empty((len(rows), *shape), dtype=common, device=rows[0].device)
    return tensors.empty_tensor((len(rows), *shape), common)


def check_fits(value: Any, dtype: np.dtype[Any]) -> None:
    """Raises BatchError for a value that would wrap, be cut or overflow in this dtype; floats may be rounded."""
    _check(value, lambda number: np.asarray(number).astype(dtype).item())


def _check(value: Any, held_as: Callable[[Any], Any]) -> None:
    """Raises BatchError for a value that the rows' dtype would wrap, cut or overflow; floats may be rounded."""
    fits = False
    with suppress(OverflowError, RuntimeError, ValueError), np.errstate(all="ignore"):
        dtype = held_as(value)
        rounded = isinstance(dtype, (float, complex, np.inexact)) and np.isfinite(dtype)
        fits = rounded or dtype == value or (dtype != dtype and value != value)
    if not fits:
        raise BatchError(f"padding value {value!r} does not fit the samples' dtype: choose another padding_value=")


# Lists of Python numbers of one type, padded without changing reference counts: `np.asarray` changes the count of each
# number, which copies every page of them in a forked worker. `marshal` changes no count, and its output is simple, a
# type byte and the value for each number. The output is checked, so other contents are never mistaken for numbers.


Array = np.ndarray[Any, np.dtype[Any]]

_FORMAT = 2  # of marshal: the last one without back references
_HEAD = 5  # bytes before the items of a list


class _Form(NamedTuple):
    """The form in which marshal writes a number of one type, and the dtype of the batch."""

    code: int
    item: np.dtype[Any]
    dtype: np.dtype[Any]


_FORMS = {
    int: _Form(ord("i"), np.dtype([("code", "u1"), ("value", "<i4")]), np.dtype(np.int64)),  # up to 32 bits
    float: _Form(ord("g"), np.dtype([("code", "u1"), ("value", "<f8")]), np.dtype(np.float64)),
}


class ListedNumbers(NamedTuple):
    """The numbers of several lists.

    Attributes:
        values: of the first list, then of the second, and so on: int64 or float64.
    """

    values: Array
    lengths: Array

    def cut(self, longest: int, from_start: bool) -> ListedNumbers:
        """Returns at most `longest` numbers of each list: the last ones if `from_start`, else the first ones."""
        if self.lengths.max() <= longest:
            return self
        lengths = np.minimum(self.lengths, longest)
        ends = self.lengths.cumsum()
        begins = ends - lengths if from_start else ends - self.lengths
        steps = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        return ListedNumbers(self.values[np.repeat(begins, lengths) + steps], lengths)


def numbers_of(lists: Sequence[Any]) -> ListedNumbers | None:
    """Returns the numbers of the lists; None unless all are lists of 32-bit ints, or all are lists of floats."""
    if {*map(type, lists)} != {list}:
        return None
    form = _FORMS.get(next((type(numbers[0]) for numbers in lists if numbers), type(None)))
    if form is None:
        return None
    try:
        written = [marshal.dumps(numbers, _FORMAT) for numbers in lists]
    except ValueError:
        return None  # a list holds an object that marshal does not support
    lengths = np.array([*map(len, lists)])
    if (np.array([*map(len, written)]) != _HEAD + lengths * form.item.itemsize).any():
        return None
    items = np.frombuffer(b"".join([part[_HEAD:] for part in written]), form.item)
    # Each list has exactly the bytes of its numbers, so equal type bytes prove that all items are such numbers.
    return ListedNumbers(items["value"].astype(form.dtype), lengths) if (items["code"] == form.code).all() else None
