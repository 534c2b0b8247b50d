"""Batches that a dataset writes at once into the memory in which they travel, checked against its samples.

The first batch, and some later ones, are compared with samples: a dataset whose `gather` and `__getitem__` disagree is
refused, and so is one that keeps lent memory or leaves part of it unwritten in the first batch. Checks of `out` alone
run for each batch. See `docs/design/08-gather-and-collation.md`.
"""

from __future__ import annotations

import gc
import operator
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from stoker._core.hashing import mixed
from stoker._core.interruption import tears
from stoker.collate import default, registry, structure, tensors
from stoker.collate.mismatch import common_dtype
from stoker.collate.stacking import NumpyLeaves
from stoker.collate.tensors import as_tensor, is_plain, is_tensor
from stoker.errors import BatchError, LeafTypeError, StokerError

NOT_GATHERED = object()
"""Returned for a batch that has to be fetched sample by sample."""

_UNWRITTEN = 0xA5
"""The value of each byte of `out` before the first batch is gathered."""

_ROWS_AT_FIRST, _ROWS_LATER = 16, 4
"""Rows compared in the first batch, and in the 2nd, 4th, 8th, 16th, …, each time other ones. Each comparison makes one
sample again."""

_PATIENCE = 4
"""Number of declined batches up to which gathering is always tried; beyond it, only if most batches were gathered."""

FnMap = Mapping[registry.Key, registry.CollateFn]


class GatherSource(Protocol):
    """The gathering side of a dataset: see `stoker.datasets.gather`."""

    def gather_layout(self) -> Any:
        """Returns the structure of a sample, with an empty batch for each leaf, or None."""

    def gather(self, indices: Any, out: Any) -> Any:
        """Writes the samples at `indices` into `out`."""


class Gathered:
    """Batches of one dataset, gathered into lent memory. Not thread safe: each worker has its own in each epoch.

    Args:
        dataset: has `__getitem__`, with which batches are compared.
        source: gathers for the dataset.

    Attributes:
        trouble: the last error of the dataset's gather methods. If the samples of that batch can be fetched one by
            one, `gather` is at fault.
    """

    def __init__(self, dataset: Any, source: GatherSource, output: registry.Output | None) -> None:
        self._dataset = dataset
        self._source = source
        self._output = output
        self.trouble: Exception | None = None
        self._fn_map: FnMap | None = None
        self._layout: Any = None
        self._flat: list[_Maker] | None = None  # set if the layout is a tuple of leaves
        self._checked = False
        self._gathered = 0
        self._declined = 0

    def __call__(self, indices: Sequence[Any]) -> Any:
        """Returns the batch of these samples, or `NOT_GATHERED`, also if the dataset raises: the samples, fetched one
        by one, then show which is at fault.

        Raises:
            BatchError: the gathered batch differs from its samples, or the dataset violates the protocol.
            MemoryLimitError: the memory cannot hold the batch.
        """
        try:
            return self._batch(indices)
        except Exception as error:
            if isinstance(error, StokerError) or tears(error):
                raise
            self.trouble = error
            self._declined += 1
            return NOT_GATHERED

    def _batch(self, indices: Sequence[Any]) -> Any:
        if self._declined > max(_PATIENCE, self._gathered):
            return NOT_GATHERED
        leaves = registry.leaves_for(self._output)
        fn_map = registry.functions(leaves)
        if fn_map is not self._fn_map:
            self._fn_map, self._layout = fn_map, None
            self._layout = self._source.gather_layout()
            if not _is_collated_by(leaves, fn_map, self._layout):
                self._layout = None
            is_flat = type(self._layout) is tuple and all(map(_is_leaf, self._layout))
            self._flat = [_maker(leaf, leaves) for leaf in self._layout] if is_flat else None
        if self._layout is None:
            return NOT_GATHERED
        places = _as_integers(indices)
        if places is None:
            return NOT_GATHERED
        arrays: list[Any] = []
        out: Any
        batch: Any
        if self._flat is not None:  # the most frequent case, optimised
            count = len(places)
            arrays = [empty((count, *shape), dtype) for empty, shape, dtype, _ in self._flat]
            out = [*arrays]
        else:
            out = _over(self._layout, lambda leaf: _allocated(_maker(leaf, leaves), len(places), arrays))
        with tensors.lent_by(None):
            answer = self._source.gather(places, out) if self._checked else self._watched(places, out, arrays)
        if answer is NotImplemented:
            self._declined += 1
            return NOT_GATHERED
        if answer is not None:
            raise BatchError(
                f"{self._name}.gather() returned a {type(answer).__name__}: it has to write into `out`, and to return "
                "None. Write out[...] = value, not out = value."
            )
        if not (self._flat and all(map(operator.is_, out, arrays))) and not _is_in_place(out, arrays):
            raise self._replaced()
        if self._flat is not None:  # only now: torch may copy if a default device is set
            batch = [finish(leaf) for leaf, (_, _, _, finish) in zip(arrays, self._flat, strict=True)]
        else:
            rest = iter(arrays)
            batch = _over(self._layout, lambda leaf: _maker(leaf, leaves).finish(next(rest)))
        self._gathered += 1
        if not self._gathered & (self._gathered - 1):
            with tensors.lent_by(None):
                self._compare(indices, batch, fn_map)
            self._checked = True
        return batch

    @property
    def gathers(self) -> bool:
        """Whether the last requested batch had a layout that can be gathered."""
        return self._layout is not None

    @property
    def _name(self) -> str:
        return type(self._dataset).__name__

    def _watched(self, places: Any, out: Any, arrays: list[Any]) -> Any:
        """Returns the result of `gather`, after checks of `out`."""
        holders = _holders(out)
        before = _references(arrays, holders)
        forms = [(leaf.shape, leaf.dtype) for leaf in arrays]
        _fill(arrays, _UNWRITTEN)
        answer = self._source.gather(places, out)
        if answer is not None:
            return answer
        if not _is_in_place(out, arrays) or [(leaf.shape, leaf.dtype) for leaf in arrays] != forms:
            raise self._replaced()
        if (answer := self._see_what_is_written(places, out, arrays)) is not None:
            return answer
        if _references(arrays, holders) != before:
            gc.collect()  # references held only by a cycle do not count
            if _references(arrays, holders) != before:
                raise BatchError(
                    f"{self._name}.gather() keeps `out`, or a part of it. Its memory is lent: it belongs to the "
                    "training loop when gather() returns, and later to other batches. Keep a copy."
                )
        return answer

    def _see_what_is_written(self, places: Any, out: Any, arrays: list[Any]) -> Any:
        """Checks that every item is written. Gathers again if some bytes are unchanged, since bytes may coincide.

        Returns:
            The result of the second `gather`, or None.
        """
        as_it_was = [_unwritten(leaf) for leaf in arrays]
        if not any(map(np.any, as_it_was)):
            return None
        _fill(arrays, ~_UNWRITTEN & 0xFF)
        if (answer := self._source.gather(places, out)) is not None:  # now the batch is not gathered at all
            return answer
        for (path, leaf), before in zip(_flat(out), as_it_was, strict=True):
            (left,) = np.nonzero(before & ~_unwritten(leaf))
            if len(left):
                raise self._disagrees(f"left row {left[0] * len(leaf) // len(before)} of the batch unwritten{path}")
        return None

    def _replaced(self) -> BatchError:
        return BatchError(
            f"{self._name}.gather() replaced a leaf of `out`. The batch travels in the memory of that leaf: write into "
            'it, as in out["x"][...] = values.'
        )

    def _compare(self, indices: Sequence[Any], batch: Any, fn_map: FnMap) -> None:
        """Compares some rows with their samples."""
        gathered = list(_flat(batch))
        for row in self._rows(len(indices)):
            sample = default.collated_by([operator.getitem(self._dataset, operator.index(indices[row]))], fn_map)
            expected = list(_flat(sample))
            paths = [[path for path, _ in leaves] for leaves in (gathered, expected)]
            if paths[0] != paths[1]:
                raise self._disagrees(f"has {_said(paths[0])}, but sample {indices[row]} has {_said(paths[1])}")
            for (path, leaf), (_, its_own) in zip(gathered, expected, strict=True):
                what = [f"{leaf.dtype} of shape {tuple(leaf.shape[1:])}" for leaf in (leaf, its_own)]
                if what[0] != what[1]:
                    raise self._disagrees(f"gives {what[0]}{path}, but sample {indices[row]} has {what[1]}")
                if not _equal(leaf[row : row + 1], its_own):
                    raise self._disagrees(
                        f"wrote other values{path} into row {row} of the batch than sample {indices[row]} has"
                    )

    def _rows(self, count: int) -> list[int]:
        """Returns the rows to compare: first, last and evenly spaced ones of the first batch, later hashed ones."""
        if self._gathered == 1:
            step = max(1, (count - 1) / (_ROWS_AT_FIRST - 1))
            return sorted({min(round(place * step), count - 1) for place in range(_ROWS_AT_FIRST)})
        return sorted({mixed(self._gathered + place) % count for place in range(_ROWS_LATER)})

    def _disagrees(self, how: str) -> BatchError:
        return BatchError(
            f"{self._name}.gather() {how}. Gathered samples must equal those of __getitem__, bit for bit: correct "
            "gather() or gather_layout(), or define gather() in the subclass that overrides __getitem__."
        )


def _as_integers(indices: Any) -> Any:
    """Returns the indices as int64; None if they are empty or no integers."""
    if type(indices) is np.ndarray and indices.dtype == np.int64 and indices.ndim == 1:
        return indices if len(indices) else None
    try:
        if type(indices) is list and indices and type(indices[0]) is int:
            return np.frombuffer(array("q", indices), np.int64)  # accepts only integers, in a third of `asarray`'s time
        places = np.asarray(indices)
    except (TypeError, ValueError, OverflowError):
        return None
    integers = places.ndim == 1 and len(places) > 0 and places.dtype.kind in "iu"
    if not integers or (places.dtype == np.uint64 and int(places.max()) >= 2**63):  # int64 would overflow
        return None
    return places.astype(np.int64, copy=False)


def _over(layout: Any, change: Callable[[Any], Any]) -> Any:
    """Returns the structure of a batch of samples with this layout, with `change` applied to each leaf."""
    if _is_leaf(layout):
        return change(layout)
    if type(layout) is tuple:  # the rules are those of `structure`; the most frequent cases take a shortcut
        return [_over(value, change) for value in layout]
    if type(layout) is dict:
        return {key: _over(value, change) for key, value in layout.items()}

    def field(values: Sequence[Any], _key: Any) -> Any:
        return _over(values[0], change)

    whole = structure.collated((layout,), field)
    return structure.collated_dataclass((layout,), field) if whole is structure.NOT_A_STRUCTURE else whole


def _is_leaf(layout: Any) -> bool:
    return isinstance(layout, np.ndarray) or is_tensor(layout)


class _Maker(NamedTuple):
    """Makes a leaf of the layout."""

    empty: Callable[[Any, Any], Any]
    shape: tuple[int, ...]  # of a row
    dtype: Any
    finish: Callable[[Any], Any]  # converts it to the leaf that the user gets


def _maker(leaf: Any, leaves: NumpyLeaves) -> _Maker:
    shape = tuple(leaf.shape[1:])
    if isinstance(leaf, np.ndarray):
        return _Maker(tensors.empty, shape, common_dtype({leaf.dtype}, ()), leaves.leaf)
    return _Maker(tensors.empty_tensor, shape, leaf.dtype, leaves.of_tensor)


def _allocated(maker: _Maker, count: int, arrays: list[Any]) -> Any:
    """Returns memory for a leaf with `count` rows."""
    arrays.append(maker.empty((count, *maker.shape), maker.dtype))
    return arrays[-1]


def has_our_functions(layout: Any, output: registry.Output | None) -> bool:
    """Returns whether only Stoker's functions would collate samples of this layout, so that they can be gathered."""
    leaves = registry.leaves_for(output)
    return _is_collated_by(leaves, registry.functions(leaves), layout)


def _is_collated_by(leaves: NumpyLeaves, fn_map: FnMap, layout: Any) -> bool:
    """Returns whether only these functions of Stoker would collate samples of this layout."""
    if isinstance(layout, np.ndarray):
        numbers = layout.dtype.kind in "biufc" and layout.dtype.char not in "gG"
        # Samples may be Python's numbers as well as NumPy's
        samples = [layout] if layout.ndim > 1 else [layout.dtype.type(), 0, 0.0]
        return numbers and _accepts(leaves.accept, layout.dtype) and all(_is_ours(leaves, fn_map, s) for s in samples)
    if is_tensor(layout):
        return is_plain(layout) and _accepts(leaves.of_tensor, layout) and _is_ours(leaves, fn_map, layout)
    if layout is None or registry.function_for(layout, fn_map) is not None:
        return False
    parts: list[Any] = []

    def field(values: Sequence[Any], _key: Any) -> None:
        parts.append(values[0])

    is_structure = structure.collated((layout,), field) is not structure.NOT_A_STRUCTURE
    is_structure = is_structure or structure.collated_dataclass((layout,), field) is not structure.NOT_A_STRUCTURE
    return is_structure and all(_is_collated_by(leaves, fn_map, part) for part in parts)


def _is_ours(leaves: NumpyLeaves, fn_map: FnMap, sample: Any) -> bool:
    """Returns whether a function of Stoker collates such samples. A user's function for tensors also takes arrays."""
    fn, tensor = registry.function_for(sample, fn_map), getattr(sys.modules.get("torch"), "Tensor", None)
    of_tensors = leaves.tensors if tensor is None else fn_map.get(tensor, leaves.tensors)
    ours = (leaves.arrays, leaves.scalars, leaves.floats, leaves.ints, leaves.tensors)
    return any(registry.is_method(fn, one) for one in ours) and registry.is_method(of_tensors, leaves.tensors)


def _accepts(test: Callable[[Any], Any], value: Any) -> bool:
    try:
        test(value)
    except LeafTypeError:
        return False  # the general path raises the error
    return True


def _flat(batch: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each leaf with its path, which also names the types of the structures around it."""
    if isinstance(batch, np.ndarray) or is_tensor(batch):
        yield path, batch
        return
    below: list[tuple[Any, Any]] = []

    def field(values: Sequence[Any], key: Any) -> None:
        below.append((key, values[0]))

    if structure.collated((batch,), field) is structure.NOT_A_STRUCTURE:
        structure.collated_dataclass((batch,), field)
    if not below:
        yield f"{path} {type(batch).__name__}", np.empty((0,))
    for key, value in below:
        yield from _flat(value, f"{path or ' in '}{type(batch).__name__}[{key!r}] ")


def _is_in_place(out: Any, arrays: list[Any]) -> bool:
    """Returns whether `out` still holds the leaves made for it."""
    if type(out) is dict and len(out) == len(arrays) and all(map(operator.is_, out.values(), arrays)):
        return True  # without a walk
    return list(map(id, (leaf for _, leaf in _flat(out)))) == list(map(id, arrays))


def _said(paths: list[str]) -> str:
    return ", ".join(path.strip() or "one leaf" for path in paths)


def _references(arrays: list[Any], holders: list[Any]) -> list[int]:
    """Returns the reference counts of the leaves, their containers, and the arrays that they are views of; an empty
    list on interpreters without reference counts."""
    if sys.implementation.name != "cpython":
        return []
    bases = [leaf.base for leaf in arrays if isinstance(leaf, np.ndarray) and isinstance(leaf.base, np.ndarray)]
    return [sys.getrefcount(thing) for thing in (*arrays, *holders, *bases)]


def _holders(out: Any) -> list[Any]:
    """Returns the structures of a batch."""
    if _is_leaf(out):
        return []
    below: list[Any] = [out]

    def field(values: Sequence[Any], _key: Any) -> None:
        below.extend(_holders(values[0]))

    if structure.collated((out,), field) is structure.NOT_A_STRUCTURE:
        structure.collated_dataclass((out,), field)
    return below


def _bytes(leaf: Any) -> Any:
    """Returns the leaf's memory as bytes; it has no gaps."""
    if is_tensor(leaf):
        import torch

        return leaf.reshape(-1).view(torch.uint8).numpy()
    return leaf.reshape(-1).view(np.uint8)


def _fill(arrays: list[Any], byte: int) -> None:
    for leaf in arrays:
        _bytes(leaf).fill(byte)


def _unwritten(leaf: Any) -> Any:
    """Returns a mask of the items with all bytes unchanged. A written number rarely matches, a written byte often."""
    size = min(8, leaf.itemsize)
    items = _bytes(leaf).view(f"u{size}")
    return items == items.dtype.type(int.from_bytes(bytes([_UNWRITTEN] * size), "little"))


def _equal(one: Any, other: Any) -> bool:
    """Returns whether two leaves hold the same bytes."""
    if is_tensor(one):
        import torch

        one, other = (as_tensor(leaf).contiguous().reshape(-1).view(torch.uint8).numpy() for leaf in (one, other))
    return bool(one.tobytes() == other.tobytes())
