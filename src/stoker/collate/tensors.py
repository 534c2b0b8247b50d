"""How the samples' leaves become torch tensors, written where the batch will travel."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BatchError, LeafTypeError
from . import memory, mismatch
from .leaves import Array, DeferredLeaves, Map

if TYPE_CHECKING:
    import torch

_dtype_of = attrgetter("dtype")
_REFUSED = (
    "Batches of {} tensors are not currently supported by the default collate_fn; "
    "please provide a custom collate_fn to handle them appropriately."
)


class TensorLeaves(DeferredLeaves):
    """Leaves are tensors, as torch's default collation makes them."""

    def leaf(self, array: Array) -> torch.Tensor:
        """A tensor over the same memory."""
        import torch

        return torch.as_tensor(array)

    def of_array(self, array: Array | np.generic) -> torch.Tensor:
        """A tensor over the memory of a sample's array, or a copy where torch cannot have it so."""
        return as_tensor(array)

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor

    def tensors(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> torch.Tensor:
        """Tensors of one shape: one tensor, shape (batch, *shape).

        Plain CPU tensors are written in place. Those that autograd follows, that live on a device or are of a subclass
        are stacked as torch stacks them.
        """
        import torch

        elem = batch[0]
        if elem.is_nested:
            raise BatchError(_REFUSED.format("nested"))
        if elem.layout is not torch.strided and "sparse" in str(elem.layout):
            raise BatchError(_REFUSED.format("sparse"))
        if _is_plain(batch):
            out = memory.empty_tensor((len(batch), *elem.shape), elem.dtype)
            # Another sample may be followed by autograd, be on a device or have another shape: see below.
            with suppress(RuntimeError):
                return torch.stack(batch, 0, out=out)  # type: ignore[arg-type]
        try:
            return torch.stack(batch, 0)  # type: ignore[arg-type]
        except (RuntimeError, TypeError) as cause:
            explained = _explained(batch, cause)
            if explained is None:
                raise
            raise explained from cause

    def arrays(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> Any:
        """NumPy arrays of one shape: one tensor, or what the function registered for tensors makes of them."""
        import torch

        of_tensors = (collate_fn_map or {}).get(torch.Tensor, self.tensors)
        if of_tensors == self.tensors:
            return super().arrays(batch, collate_fn_map=collate_fn_map)
        return of_tensors([as_tensor(value) for value in batch], collate_fn_map=collate_fn_map)

    def mixed_arrays(self, batch: Sequence[Any], collate_fn_map: Map) -> torch.Tensor:
        """Arrays, and in other samples tensors, numbers or lists of them."""
        try:
            tensors = [as_tensor(value) for value in batch]
        except (RuntimeError, TypeError, ValueError) as cause:
            raise mismatch.unequal_types(batch) from cause
        return self.tensors(tensors)

    def mixed_numbers(self, batch: Sequence[Any], dtype: np.dtype[Any] | None = None) -> torch.Tensor:
        """Numbers of several kinds, one-element tensors among them."""
        import torch

        try:
            return torch.tensor(batch, dtype=None if dtype is None else torch.float64)
        except (RuntimeError, TypeError, ValueError) as cause:
            raise mismatch.unequal_types(batch) from cause


def as_tensor(value: Any) -> torch.Tensor:
    """`torch.as_tensor`, also for reversed views and foreign byte orders, which are copied."""
    import torch

    if isinstance(value, np.ndarray) and not (value.dtype.isnative and min(value.strides, default=0) >= 0):
        value = np.array(value, value.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(value)


def as_array(tensor: torch.Tensor) -> Array:
    """The tensor's values as an array, over the same memory where it lies in the CPU's."""
    try:
        return tensor.numpy(force=True)
    except TypeError as cause:
        raise LeafTypeError(f'{cause}. Convert it in the dataset, or choose output="torch".') from cause


def _is_plain(batch: Sequence[Any]) -> bool:
    import torch

    elem = batch[0]
    return (
        elem.device.type == "cpu"
        and not elem.requires_grad
        and not elem.is_quantized
        and {torch.Tensor}.issuperset(map(type, batch))
        and {elem.dtype}.issuperset(map(_dtype_of, batch))
    )


def _explained(batch: Sequence[Any], cause: Exception) -> BatchError | None:
    import torch

    if not all(isinstance(value, torch.Tensor) for value in batch):
        return mismatch.unequal_types(batch)
    if len({value.shape for value in batch}) > 1:
        return mismatch.unequal_shapes(batch)
    if len({value.dtype for value in batch}) > 1:
        return mismatch.unequal_dtypes(batch, cause)
    return None


TENSORS = TensorLeaves()
