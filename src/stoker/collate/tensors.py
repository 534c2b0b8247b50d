"""Tensors: allocated in the memory of the batch, stacked, and converted to and from arrays. Never imports torch by
itself.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._core.worker_info import current
from stoker.collate import mismatch
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
    out = lent_tensor((len(batch), *elem.shape), elem.dtype) if _is_plain(batch) else None
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


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a batch of `torch.stack` as torch's loader gives it: from a worker contiguous, without workers in the
    memory format of its samples."""
    if tensor.dim() < 5 or current.info is None or tensor.is_contiguous():
        return tensor
    return tensor.contiguous()


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


def are_as_ever() -> bool:
    """Returns whether no mode of torch's and no level of forward differentiation changes what functions of torch do."""
    import torch

    try:
        return _is_as_ever(torch._C) and torch.autograd.forward_ad._current_level < 0
    except AttributeError:  # it is private too
        return False


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


# Allocation of a collator's output: in the batch's own memory while a worker collates, else in new memory.
#
# A worker of a process backend lends the collator the memory in which the batch travels, so that it is written once.
# Collators call `empty()` or `empty_tensor()` in both cases. Thread safe: each thread has its own lender.


Array = np.ndarray[Any, np.dtype[Any]]

Lender = Callable[[int], Any]
"""Takes a number of bytes; returns a writable buffer of at least that size, aligned to 64 bytes, or None."""


class _Lending(threading.local):
    lender: Lender | None = None


_lending = _Lending()


class lent_by:  # a class, since every batch enters it: a generator would take twice as long
    """Context in which `empty()` and `empty_tensor()` of this thread ask `lender` for memory; None: no lender.

    Lent memory travels and is reused for other batches. User code that may keep its allocations, such as a dataset that
    collates, therefore runs under None.
    """

    def __init__(self, lender: Lender | None) -> None:
        self._lender = lender

    def __enter__(self) -> None:
        self._before, _lending.lender = _lending.lender, self._lender

    def __exit__(self, *error: object) -> None:
        _lending.lender = self._before


def is_lent() -> bool:
    """Returns whether this thread has a lender."""
    return _lending.lender is not None


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Returns an uninitialised, contiguous array, in lent memory if available."""
    if (lender := _lending.lender) is None:
        return np.empty(shape, dtype)
    count = math.prod(shape)
    buffer = lender(count * dtype.itemsize) if count and dtype.itemsize and not dtype.hasobject else None
    return np.empty(shape, dtype) if buffer is None else np.frombuffer(buffer, dtype, count).reshape(shape)


def empty_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns an uninitialised, contiguous CPU tensor, in lent memory if available."""
    import torch

    lent = lent_tensor(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device="cpu") if lent is None else lent


def lent_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Returns an uninitialised, contiguous CPU tensor in lent memory; None if no memory is lent for it.

    Serves callers with a faster way than writing into given memory: `torch.stack` takes twice as long with `out`.
    """
    if (lender := _lending.lender) is None:
        return None
    import torch

    count = math.prod(shape)
    buffer = lender(count * dtype.itemsize) if count else None
    return None if buffer is None else torch.frombuffer(buffer, dtype=dtype, count=count).view(tuple(shape))
