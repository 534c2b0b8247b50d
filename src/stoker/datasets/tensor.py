"""Tensors or arrays, indexed along their first dimension."""

from __future__ import annotations

from typing import Any

from stoker._core import nominal
from stoker.datasets.base import Dataset
from stoker.datasets.gather import Indices, all_or_none, gather_rows, row_layout


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
