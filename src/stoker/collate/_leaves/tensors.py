"""Tensors: stacked into the memory of the batch, and converted to and from arrays. Never imports torch by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._core.worker_info import current
from stoker.collate._leaves import batch_memory, mismatch
from stoker.collate._leaves.batch_memory import Array
from stoker.errors import BatchError, LeafTypeError

if TYPE_CHECKING:
    import torch

_dtype_of = attrgetter("dtype")
_REFUSED = (
    "Batches of {} tensors are not currently supported by the default collate_fn; "
    "please provide a custom collate_fn to handle them appropriately."
)


def is_tensor(value: object) -> bool:
    """Returns whether the value is a torch tensor, without importing torch."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)  # missing while another thread imports torch
    return kind is not None and isinstance(value, kind)


def stacked(batch: Sequence[Any]) -> torch.Tensor:
    """Returns one tensor of tensors of one shape, shape (batch, *shape).

    Plain CPU tensors are written into lent memory, if available. Tensors with gradients, on a device or of a subclass
    are stacked by torch.
    """
    import torch

    elem = batch[0]
    if elem.is_nested:
        raise BatchError(_REFUSED.format("nested"))
    if elem.layout is not torch.strided and "sparse" in str(elem.layout):
        raise BatchError(_REFUSED.format("sparse"))
    out = batch_memory.lent_tensor((len(batch), *elem.shape), elem.dtype) if _is_plain(batch) else None
    if out is not None:
        # A later sample may have a gradient, be on a device or have another shape: handled below.
        with suppress(RuntimeError):
            return torch.stack(batch, 0, out=out)  # type: ignore[arg-type]
    try:
        return in_order(torch.stack(batch, 0))  # type: ignore[arg-type]
    except (RuntimeError, TypeError) as cause:
        explained = _explained(batch, cause)
        if explained is None:
            raise
        raise explained from cause


def in_order(made: torch.Tensor) -> torch.Tensor:
    """Returns a batch of `torch.stack` as torch's loader gives it: from a worker contiguous, without workers in the
    memory format of its samples."""
    if made.dim() < 5 or current.info is None or made.is_contiguous():
        return made
    return made.contiguous()


def as_tensor(value: Any) -> torch.Tensor:
    """Returns `torch.as_tensor`; reversed views and foreign byte orders are copied."""
    import torch

    if isinstance(value, np.ndarray) and not (value.dtype.isnative and min(value.strides, default=0) >= 0):
        value = np.array(value, value.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(value)


def over(array: Array) -> torch.Tensor:
    """Returns `torch.as_tensor` of an array in the machine's byte order, in a third of its time.

    Uses `torch.from_numpy`, which is equivalent unless the user has set a default device or a torch function mode.
    """
    import torch

    return torch.from_numpy(array) if _is_as_ever(torch._C) else torch.as_tensor(array)


def _is_as_ever(inner: Any) -> bool:
    try:
        return (
            not inner._len_torch_function_stack()
            and not inner._len_torch_dispatch_stack()
            and inner._get_default_device() == "cpu"
        )
    except AttributeError:  # these are private functions of torch
        return False


def as_array(tensor: torch.Tensor) -> Array:
    """Returns the tensor's values as an array, over the same memory if that is the CPU's."""
    try:
        array: Array = tensor.numpy(force=True)
        return array
    except TypeError as cause:
        raise LeafTypeError(f'{cause}. Convert it in the dataset, or choose output="torch".') from cause


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether it is a plain dense CPU tensor without gradient."""
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
    )


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
