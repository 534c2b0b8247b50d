"""Tensors or arrays, cut along their first dimension."""

from __future__ import annotations

from typing import Any

from stoker import _nominal
from stoker.datasets.base import Dataset


class TensorDataset(Dataset[tuple[Any, ...]], _nominal.base("TensorDataset")):  # type: ignore[misc]
    """Sample i is the tuple of what each tensor holds at i.

    A sample is a view: it shares memory with the tensors. It has no `__getitems__`, so that a subclass which overrides
    `__getitem__` alone is obeyed.

    Args:
        *tensors: torch tensors, NumPy arrays, or anything with a shape that can be indexed; their first dimensions are
            equal.

    Raises:
        AssertionError: first dimensions differ.
    """

    tensors: tuple[Any, ...]

    def __init__(self, *tensors: Any) -> None:
        if any(tensor.shape[0] != tensors[0].shape[0] for tensor in tensors):
            raise AssertionError("Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        """Returns each tensor at `index`: a number, a slice, or whatever the tensors understand."""
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        """Returns the size of the first dimension."""
        return int(self.tensors[0].shape[0])
