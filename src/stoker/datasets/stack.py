"""Datasets combined sample by sample, by index, and tensors or arrays indexed along their first dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from stoker._core import nominal
from stoker.datasets.awaited import together
from stoker.datasets.base import Dataset
from stoker.datasets.gather import Indices, all_or_none, gather_from, gather_rows, layout_of, row_layout

T_co = TypeVar("T_co", covariant=True)


class StackDataset(Dataset[T_co], nominal.base("StackDataset")):  # type: ignore[misc]
    """Tuples or dicts of the samples at one index of each dataset.

    Lengths are compared once, at construction.

    Args:
        *args: datasets of equal length; a sample is then a tuple.
        **kwargs: datasets of equal length by name; a sample is then a dict. Excludes `args`.

    Attributes:
        datasets: `args` or `kwargs`.

    Raises:
        ValueError: lengths differ, both kinds of arguments are given, or none.
    """

    datasets: tuple[Any, ...] | dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or"
                "``dict``- (via ``kwargs``) like input/output, but both types are given."
            )
        lengths = [len(dataset) for dataset in args or kwargs.values()]
        if not lengths:
            raise ValueError("At least one dataset should be passed")
        if lengths.count(lengths[0]) != len(lengths):
            raise ValueError("Size mismatch between datasets")
        self._length = lengths[0]
        self.datasets = args or kwargs

    def __getitem__(self, index: Any) -> Any:
        """Returns the samples of all datasets at `index`."""
        if isinstance(self.datasets, dict):
            samples = (dataset[index] for dataset in self.datasets.values())
            return together(samples, lambda values: dict(zip(self.datasets, values, strict=True)))
        return together((dataset[index] for dataset in self.datasets), tuple)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Returns the samples at `indices`, in that order; `__getitems__` of a dataset that has it is called once.

        Raises:
            ValueError: a dataset returned a number of samples other than that of the indices.
        """
        if isinstance(self.datasets, dict):
            names = self.datasets.keys()
            columns = [_fetch(dataset, indices) for dataset in self.datasets.values()]
            return [dict(zip(names, sample, strict=True)) for sample in zip(*columns, strict=True)]
        return list(zip(*(_fetch(dataset, indices) for dataset in self.datasets), strict=True))

    def __len__(self) -> int:
        """Returns the length that all datasets had at construction."""
        return self._length

    def gather_layout(self) -> Any:
        """Returns the datasets' layouts as a tuple or a dict, if all can gather."""
        named = isinstance(self.datasets, dict)
        layouts = all_or_none([layout_of(dataset) for dataset in _values(self.datasets)])
        if layouts is None:
            return None
        return dict(zip(self.datasets, layouts, strict=True)) if named else tuple(layouts)

    def gather(self, indices: Indices, out: Any) -> Any:
        """Makes each dataset write its samples."""
        for dataset, part in zip(_values(self.datasets), _values(out), strict=True):
            if gather_from(dataset, indices, part) is NotImplemented:
                return NotImplemented
        return None


def _values(parts: Any) -> Sequence[Any]:
    return list(parts.values()) if isinstance(parts, dict) else parts


def _fetch(dataset: Any, indices: Sequence[Any]) -> Any:
    if not callable(getattr(dataset, "__getitems__", None)):
        return [dataset[index] for index in indices]
    samples = dataset.__getitems__(indices)
    if len(samples) != len(indices):
        raise ValueError(f"Nested dataset's output size mismatch. Expected {len(indices)}, got {len(samples)}")
    return samples


# Tensors or arrays, indexed along their first dimension.


class TensorDataset(Dataset[tuple[Any, ...]], nominal.base("TensorDataset")):  # type: ignore[misc]
    """Tuples of the rows at one index of several tensors that are in memory. `ArrayDataset` reads rows of files.

    A sample is a view: it shares memory with the tensors. A batch is gathered in one call if all are CPU tensors or
    numeric arrays (`gather`). There is no `__getitems__`, so a `__getitem__` that a subclass overrides is always used.

    Args:
        *tensors: torch tensors, NumPy arrays, or indexable objects with a shape; their first dimensions are equal.

    Raises:
        AssertionError: the first dimensions differ.
    """

    tensors: tuple[Any, ...]

    def __init__(self, *tensors: Any) -> None:
        if any(tensor.shape[0] != tensors[0].shape[0] for tensor in tensors):
            raise AssertionError("Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        """Returns each tensor at `index`: a number, a slice, or any other index that the tensors accept."""
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        """Returns the size of the first dimension."""
        return int(self.tensors[0].shape[0])

    def gather_layout(self) -> Any:
        """Returns the layout of a sample; None unless every tensor is plain numbers in CPU memory."""
        layouts = all_or_none([row_layout(tensor) for tensor in self.tensors])
        return None if layouts is None else tuple(layouts)

    def gather(self, indices: Indices, out: Any) -> None:
        """Writes the rows at `indices` of each tensor."""
        for tensor, rows in zip(self.tensors, out, strict=True):
            gather_rows(tensor, indices, rows)
