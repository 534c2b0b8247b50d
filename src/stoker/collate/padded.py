"""Samples of different lengths: padded to one length, with a mask of the real values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from stoker.collate import registry, structure
from stoker.collate._leaves import batch_memory, number_lists, ragged
from stoker.collate._leaves.tensors import is_tensor
from stoker.collate.default import one_level
from stoker.collate.flavours import Flavoured
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
    side: ragged.Side = "right"
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
        padding = _Padding(self)
        collated = padding.collated(batch, ())
        if padding.named is not None and len(padding.met) < len(padding.named):
            absent = [path[0] if len(path) == 1 else path for path in padding.named if path not in padding.met]
            raise BatchError(f"padding_value names {absent}, but the samples have no such fields: correct it.")
        return collated


def masks_beside(fields: dict[Any, Any], suffix: Callable[[Any], str | None]) -> dict[Any, Any]:
    """Returns the collated fields of a mapping with each `Padded` as two: its values, and its mask.

    Args:
        fields: the fields by their keys.
        suffix: returns what is added to a field's key to name its mask.

    Raises:
        BatchError: there is a field of this name.
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

    def __init__(self, options: PadCollator) -> None:
        self.options = options
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
            return self._padded(batch, self.options.padding_value if self.named is None else self.named[path])

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

    def _padded(self, batch: Sequence[Any], value: Any) -> Any:
        dims, side = self.options.dims, self.options.side
        if tuple(dims) == (0,) and (numbers := number_lists.numbers_of(batch)) is not None:
            return self._laid_out(numbers, value)
        rows = ragged.rows_of(batch, dims)
        if self.options.max_length is not None:
            rows = ragged.cut(rows, dims, self.options.max_length, side)
        sizes = {dim: self._size(max(row.shape[dim] for row in rows)) for dim in dims}
        values = ragged.padded(rows, sizes, side, value, self.leaves)
        return values if self.options.mask is None else Padded(values, ragged.mask(rows, sizes, side, self.leaves))

    def _laid_out(self, numbers: number_lists.ListedNumbers, value: Any) -> Any:
        """Returns lists of numbers, the most frequent case, as one padded leaf."""
        side = self.options.side
        if self.options.max_length is not None:
            numbers = numbers.cut(self.options.max_length, from_start=side == "left")
        lengths, size = numbers.lengths, self._size(int(numbers.lengths.max()))
        shape, dtype = (len(lengths), size), numbers.values.dtype
        ragged.check_fits(value, dtype)
        places, had = np.arange(size), lengths[:, None]
        is_real = places < had if side == "right" else places >= size - had
        out = batch_memory.empty(shape, dtype)
        out[...] = value
        out[is_real] = numbers.values
        values = self.leaves.leaf(out)
        if self.options.mask is None:
            return values
        mask = batch_memory.empty(shape, is_real.dtype)
        mask[...] = is_real
        return Padded(values, self.leaves.leaf(mask))

    def _size(self, longest: int) -> int:
        step = self.options.multiple_of
        return -(-longest // step) * step
