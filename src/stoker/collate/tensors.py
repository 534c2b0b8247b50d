"""Tensors, where torch is loaded: stacked into the memory of the batch, and to and from arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.collate import memory, mismatch
from stoker.collate.memory import Array
from stoker.errors import BatchError, LeafTypeError

if TYPE_CHECKING:
    import torch

_dtype_of = attrgetter("dtype")
_REFUSED = (
    "Batches of {} tensors are not currently supported by the default collate_fn; "
    "please provide a custom collate_fn to handle them appropriately."
)


def is_tensor(value: object) -> bool:
    """Whether it is a torch tensor; torch is not imported to find out."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)  # another thread may be importing torch: it has none yet
    return kind is not None and isinstance(value, kind)


def stacked(batch: Sequence[Any]) -> torch.Tensor:
    """Tensors of one shape: one tensor, shape (batch, *shape).

    Plain CPU tensors are written in lent memory, where there is some. Those that autograd follows, that live on a
    device or are of a subclass are stacked as torch stacks them.
    """
    import torch

    elem = batch[0]
    if elem.is_nested:
        raise BatchError(_REFUSED.format("nested"))
    if elem.layout is not torch.strided and "sparse" in str(elem.layout):
        raise BatchError(_REFUSED.format("sparse"))
    out = memory.lent_tensor((len(batch), *elem.shape), elem.dtype) if _is_plain(batch) else None
    if out is not None:
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


def as_tensor(value: Any) -> torch.Tensor:
    """`torch.as_tensor`, also for reversed views and foreign byte orders, which are copied."""
    import torch

    if isinstance(value, np.ndarray) and not (value.dtype.isnative and min(value.strides, default=0) >= 0):
        value = np.array(value, value.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(value)


def over(array: Array) -> torch.Tensor:
    """`torch.as_tensor` of an array in the machine's byte order, in a third of its time.

    `torch.from_numpy` is what that comes to, unless the user has set a default device, or a mode of torch's.
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
    except AttributeError:  # nobody promises these
        return False


def as_array(tensor: torch.Tensor) -> Array:
    """The tensor's values as an array, over the same memory where it lies in the CPU's."""
    try:
        array: Array = tensor.numpy(force=True)
        return array
    except TypeError as cause:
        raise LeafTypeError(f'{cause}. Convert it in the dataset, or choose output="torch".') from cause


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is nothing but values in the CPU's memory, which autograd does not follow."""
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
