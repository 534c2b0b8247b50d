"""Arrays of different lengths, joined one behind another into one leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.collate._leaves import batch_memory, mismatch
from stoker.collate._leaves.promotion import common_dtype
from stoker.collate._leaves.stacking import NumpyLeaves
from stoker.collate._leaves.tensors import as_tensor, is_tensor
from stoker.errors import BatchError


def parts_of(batch: Sequence[Any]) -> list[Any]:
    """Returns arrays over the samples' memory, or tensors if NumPy cannot hold one; shapes differ in dimension 0 only.

    Raises:
        BatchError: a value is a single number, or shapes differ in other dimensions.
        LeafTypeError: a value holds no numbers.
    """
    parts = [_part(value, batch) for value in batch]
    if not all(isinstance(part, np.ndarray) for part in parts):
        parts = [as_tensor(part) for part in parts]
    if any(part.ndim == 0 for part in parts):
        raise BatchError("a single number cannot be joined to others: expected one row for each node or edge")
    if len({tuple(part.shape[1:]) for part in parts}) > 1:
        raise mismatch.unequal_shapes(parts, "They may differ in their first dimension only: check the dataset.")
    return parts


def joined(parts: Sequence[Any], leaves: NumpyLeaves) -> Any:
    """Returns one leaf of the parts from `parts_of`: shape (sum of the lengths, *shape of a row)."""
    if not isinstance(parts[0], np.ndarray):
        import torch

        return leaves.of_tensor(torch.cat(list(parts)))
    dtype = common_dtype({part.dtype for part in parts}, parts)
    leaves.accept(dtype)
    out = batch_memory.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype)
    np.concatenate(parts, out=out, casting="unsafe")
    return leaves.leaf(out)


def _part(value: Any, batch: Sequence[Any]) -> Any:
    if is_tensor(value):
        try:
            return value.numpy()
        except (RuntimeError, TypeError):
            return value  # with a gradient, on a device, or of a dtype that NumPy lacks
    try:
        part = np.asarray(value)
    except ValueError as cause:
        raise BatchError(f"a list that is no array cannot be joined to others: {cause}") from cause
    if part.dtype.kind not in "biufc":
        raise mismatch.unequal_types(batch)
    return part
