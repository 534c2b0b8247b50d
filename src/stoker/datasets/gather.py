"""Datasets that can gather: one call writes the rows of a batch directly into its memory.

A dataset offers this by two methods beside `__getitem__`, and by declaring that they are meant for Stoker:

    class Embeddings(Dataset):
        stoker_protocol = True

        def gather_layout(self):
            return {"x": np.empty((0, 128), np.float32), "y": np.empty(0, np.int64)}

        def gather(self, indices, out):
            out["x"][...] = self.x[indices]
            out["y"][...] = self.y[indices]

See the guide on speed for the promises of both sides, and `stoker.testing.gather` for a test suite.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import operator
import sys
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from stoker._core import first_use
from stoker._core.native import for_large
from stoker._core.protocol import definer, is_ours, offered, offers
from stoker.datasets.nesting import held_by
from stoker.errors import BatchError

Indices = np.ndarray[Any, np.dtype[np.int64]]
Array = np.ndarray[Any, np.dtype[Any]]

LARGE_ROW = 4096
"""Bytes of a row above which copying by row addresses is faster."""

_METHODS = ("gather", "__getitem__", "__getitems__")

UNKNOWN: Any = object()
"""The layout of a user's dataset before a worker has requested it."""

_TORCHS = {"TensorDataset", "Subset", "ConcatDataset", "StackDataset"}


class Gathers(Protocol):
    """Methods of a dataset that can gather. The result must equal the collated samples, bit for bit."""

    def gather_layout(self) -> Any:
        """Returns the layout of a sample, with an empty batch for each leaf; None if the dataset cannot gather in its
        present state.

        A leaf is a NumPy array, or a torch tensor, of numbers or bools, whose first dimension is 0: `np.empty((0, 3),
        np.float32)` means that each sample has three float32 there. Leaves lie in dicts, tuples, named tuples, lists
        and dataclasses, as in a sample. Called once for each epoch, in each worker.
        """

    def gather(self, indices: Indices, out: Any) -> Any:
        """Writes the samples at `indices` into `out`, in their order.

        A pure function of the indices: it may run in any worker, for any part of a batch, and again after a failure,
        and draws no random numbers.

        Args:
            indices: int64, one dimension; negative ones and duplicates as in `__getitem__`. Must not be changed.
            out: the batch: the layout's structure (lists for tuples), with a writable array or tensor of shape
                `(len(indices), *row)` for each leaf. Its memory is lent: every row of every leaf must be written, no
                leaf replaced, and no reference kept after the call.

        Returns:
            None; or `NotImplemented` for a batch that is better fetched sample by sample. `out` may then have any
            content.

        Raises:
            IndexError: as `__getitem__` does. After any exception, the samples are fetched one by one.
        """


def gatherer(dataset: Any) -> Gathers | None:
    """Returns the object that gathers for a dataset: itself, or an adapter for an array, a tensor or a class of torch;
    or None.

    A subclass that overrides `__getitem__` or `__getitems__`, and not `gather`, is never bypassed.
    """
    kind = type(dataset)
    if kind in (np.ndarray, np.memmap) or is_tensor(dataset):
        return _Whole(dataset)
    if _offers(dataset) and "__getitems__" not in getattr(dataset, "__dict__", ()):
        itself: Gathers = dataset
        return itself
    ours = standing_in_for(kind)
    return None if ours is None else _Borrowed(ours, dataset)


def _offers(dataset: Any) -> bool:
    """Returns whether a dataset gathers, and no subclass overrides only how samples are fetched."""
    kind = type(dataset)
    if not offers(dataset, "gather") or not offers(dataset, "gather_layout"):
        return False
    return "gather" in vars(next(base for base in kind.__mro__ if not vars(base).keys().isdisjoint(_METHODS)))


def standing_in_for(kind: type) -> Any:
    """Returns Stoker's class with the name and attributes of `kind`, if `kind` is torch's own class; else None."""
    torchs, name = sys.modules.get("torch.utils.data"), kind.__name__
    if name not in _TORCHS or torchs is None or getattr(torchs, name, None) is not kind:
        return None
    return first_use.loaded("stoker", name, first_use.HOMES)


class _Borrowed:
    """An instance of torch's own class, gathered by the methods of Stoker's class."""

    def __init__(self, ours: Any, dataset: Any) -> None:
        self._ours = ours
        self._dataset = dataset

    def gather_layout(self) -> Any:
        return self._ours.gather_layout(self._dataset)

    def gather(self, indices: Indices, out: Any) -> Any:
        return self._ours.gather(self._dataset, indices, out)


class _Whole:
    """An array or a tensor as a dataset."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def gather_layout(self) -> Any:
        return row_layout(self._rows)

    def gather(self, indices: Indices, out: Any) -> None:
        gather_rows(self._rows, indices, out)


def row_layout(rows: Any) -> Any:
    """Returns the layout of the rows of an array or a plain tensor; None if it is neither."""
    if type(rows) in (np.ndarray, np.memmap):
        numbers = rows.dtype.kind in "biufc" and rows.dtype.char not in "gG"
        return np.empty((0, *rows.shape[1:]), rows.dtype.newbyteorder("=")) if rows.ndim and numbers else None
    if not is_tensor(rows) or not rows.ndim:
        return None
    plain = rows.device.type == "cpu" and rows.layout is sys.modules["torch"].strided
    plain = plain and not (rows.requires_grad or rows.is_quantized or rows.is_nested or rows.is_conj() or rows.is_neg())
    return rows.new_empty((0, *rows.shape[1:])) if plain else None


def gather_rows(rows: Any, indices: Indices, out: Any) -> None:
    """Writes rows of an array or tensor into one of the same kind."""
    rows, out = _as_array(rows), _as_array(out)
    if out.shape[1:] != rows.shape[1:]:  # else NumPy would broadcast
        raise ValueError(f"a row of shape {rows.shape[1:]} does not fit one of {out.shape[1:]}")
    copy_rows(rows, inside(indices, len(rows)), out)


def inside(indices: Indices, length: int) -> Indices:
    """Returns the indices counted from the start; negative indices count from the end.

    Raises:
        IndexError: an index is out of range.
    """
    if not len(indices):
        return indices
    lowest, highest = indices.min(), indices.max()
    if lowest < -length or highest >= length:
        wrong = lowest if lowest < -length else highest
        raise IndexError(f"index {wrong} is out of bounds for a dataset of {length} samples")
    return indices if lowest >= 0 else np.where(indices < 0, indices + length, indices)


def copy_rows(rows: Array, places: Indices, out: Array) -> None:
    """Writes rows of an array at places that are in range, counted from the start, into one of the same row shape."""
    if not (rows.flags.c_contiguous and rows.flags.aligned and rows.dtype == out.dtype):
        out[...] = rows[places]
        return
    functions = for_large(out.nbytes, is_read_here=True)
    size = out.nbytes // max(1, len(places))
    is_plain = type(rows) in (np.ndarray, np.memmap) and not rows.dtype.hasobject
    if functions is not None and size >= LARGE_ROW and is_plain and out.flags.c_contiguous:
        functions.stack(out.ctypes.data, (rows.ctypes.data + places * size).tolist(), size)
    else:
        # `take` would first copy an array of any other layout; mode "wrap" saves a copy of the output
        rows.take(places, axis=0, out=out, mode="wrap")


def _as_array(rows: Any) -> Array:
    """Returns an array over the same memory; of integers if NumPy lacks the tensor's dtype.

    `torch.index_select` is no faster, and its threads compete with those of the training.
    """
    if isinstance(rows, np.ndarray):
        return rows
    try:
        array: Array = rows.numpy()
    except TypeError:
        array = rows.view(getattr(sys.modules["torch"], f"int{8 * rows.itemsize}")).numpy()
    return array


def alike(one: Any, other: Any) -> bool:
    """Returns whether two layouts are the same: in structure, kinds of leaves, shapes and dtypes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) or is_tensor(one):
        return bool(one.dtype == other.dtype and one.shape == other.shape)
    if isinstance(one, dict) and list(one) != list(other):
        return False
    mine, theirs = fields(one), fields(other)
    return len(mine) == len(theirs) and all(map(alike, mine, theirs))


def fields(structure: Any) -> list[Any]:
    """Returns the direct items of a dict, a tuple, a list or a dataclass in a layout or an `out`."""
    if isinstance(structure, dict):
        return list(structure.values())
    if dataclasses.is_dataclass(structure):
        return [getattr(structure, name) for name in _names(structure)]
    return list(structure)


def mapped(change: Callable[[Any], Any], structure: Any) -> Any:
    """Returns the same structure with `change` applied to each leaf."""
    if isinstance(structure, np.ndarray) or is_tensor(structure):
        return change(structure)
    if isinstance(structure, dict):
        return {key: mapped(change, value) for key, value in structure.items()}
    if dataclasses.is_dataclass(structure):
        clone = copy.copy(structure)
        for name in _names(structure):
            object.__setattr__(clone, name, mapped(change, getattr(structure, name)))
        return clone
    changed = [mapped(change, value) for value in structure]
    return type(structure)(*changed) if hasattr(structure, "_fields") else changed


def leaves_of(structure: Any) -> list[Any]:
    """Returns all leaves of a structure, in order."""
    leaves: list[Any] = []
    mapped(leaves.append, structure)
    return leaves


def all_or_none(layouts: Sequence[Any]) -> list[Any] | None:
    """Returns the layouts, if every dataset has one; else None."""
    return None if any(layout is None for layout in layouts) else list(layouts)


def layout_of(dataset: Any) -> Any:
    """Returns the layout of a dataset; None if it cannot gather."""
    gathers = gatherer(dataset)
    return None if gathers is None else gathers.gather_layout()


def foreseen(dataset: Any) -> Any:
    """Returns the layout if it is known without calling the user's code, which may open files; else `UNKNOWN`.

    A class of Stoker's that reads files has a `_layout_of_files`, and is treated as the user's.
    """
    source = gatherer(dataset)
    if source is None:
        return None
    home = definer(type(source), "gather_layout")
    if not is_ours(home) or "_layout_of_files" in vars(home):
        return UNKNOWN
    layouts = [foreseen(part) for part in held_by(dataset, (*_METHODS, "gather_layout")) or ()]
    if any(layout is None for layout in layouts):
        return None
    return UNKNOWN if any(layout is UNKNOWN for layout in layouts) else source.gather_layout()


def gather_from(dataset: Any, indices: Indices, out: Any) -> Any:
    """Forwards to a dataset that could gather when its layout was requested.

    Raises:
        BatchError: the dataset returned a value instead of writing into `out`, which is a part of the batch.
    """
    gathers = gatherer(dataset)
    if gathers is None:
        return NotImplemented
    before = leaves_of(out)
    answer = gathers.gather(indices, out)
    if answer is NotImplemented:
        return answer
    if answer is not None:
        raise BatchError(
            f"{type(dataset).__name__}.gather() returned a {type(answer).__name__}: it must write into `out` and "
            "return None. Write out[...] = value, not out = value."
        )
    return None if _still_there(out, before) else NotImplemented


def _still_there(out: Any, leaves: Sequence[Any]) -> bool:
    """Returns whether these are still the leaves of `out`: an object in their place is not part of the batch."""
    try:
        now = leaves_of(out)
    except TypeError:  # an object that is neither a leaf nor a structure
        return False
    return len(now) == len(leaves) and all(map(operator.is_, now, leaves))


def _names(structure: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(structure) if hasattr(structure, field.name)]


def is_tensor(value: Any) -> bool:
    """Returns whether the value is a tensor of torch's own class."""
    # Not `torch.Tensor`: the attribute is missing while another thread imports torch
    return type(value) is getattr(sys.modules.get("torch"), "Tensor", None)


# Gathers a batch whose samples lie in several datasets.


_FEW = 8
"""Samples of each dataset in a batch below which fetching them one by one is as fast."""


def common_layout(datasets: Sequence[Any]) -> Any:
    """Returns the layout of a sample, if all datasets can gather and have the same layout; else None."""
    layouts = [layout_of(dataset) for dataset in datasets]
    if any(layout is None for layout in layouts) or not all(alike(layouts[0], layout) for layout in layouts):
        return None
    return layouts[0]


def gather_parts(datasets: Sequence[Any], which: Indices, local: Indices, out: Any) -> Any:
    """Makes each dataset write its part of a batch, unless each part would be only a few samples.

    Args:
        which: for each sample of the batch, the number of the dataset that holds it.
        local: its index in that dataset.

    Returns:
        None; or `NotImplemented`, and `out` may then have any content.
    """
    order = np.argsort(which, kind="stable")
    bounds = np.flatnonzero(np.diff(which[order], prepend=-1, append=-1))  # the starts of the datasets' parts
    parts = len(bounds) - 1
    if parts > 2 and len(which) < parts * _FEW:
        return NotImplemented
    in_order = bool((order[1:] > order[:-1]).all())
    # Rows of one dataset may lie anywhere in the batch: they are written together, then moved into place
    into = out if in_order else mapped(_beside, out)
    for start, stop in itertools.pairwise(bounds.tolist()):
        part = mapped(itemgetter(slice(start, stop)), into)
        dataset = datasets[int(which[order[start]])]
        if gather_from(dataset, local[order[start:stop]], part) is NotImplemented:
            return NotImplemented
    if not in_order:
        for leaf, rows in zip(leaves_of(out), leaves_of(into), strict=True):
            leaf[order] = rows
    return None


def _beside(leaf: Any) -> Any:
    """Returns memory of the same size and kind."""
    return np.empty_like(leaf) if isinstance(leaf, np.ndarray) else leaf.new_empty(leaf.shape)


def describe(dataset: Any, index: Any) -> Any:
    """Returns the dataset's description of the sample at `index`; None if it has none.

    A `Subset` or `ConcatDataset`, also torch's own, forwards to the dataset that holds the sample.

    Raises:
        Exception: the dataset's method raised it.
    """
    own = offered(dataset, "describe")
    if callable(own):
        return own(index)
    ours = getattr(standing_in_for(type(dataset)), "describe", None)
    return None if ours is None else ours(dataset, index)
