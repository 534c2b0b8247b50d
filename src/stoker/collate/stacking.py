"""Collation of leaves: each becomes one array or tensor, written into the memory in which the batch travels.

Each method collates one kind of leaf and can be an entry of a `collate_fn_map`. Each kind of output is a subclass that
defines the accepted dtypes and the type of the finished leaf. All kinds follow the rules of torch's default collation,
promotion of dtypes included, even without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.collate import mismatch, tensors
from stoker.collate.mismatch import common_dtype
from stoker.collate.tensors import Array, as_array, as_tensor, is_tensor, over, stacked
from stoker.errors import LeafTypeError

if TYPE_CHECKING:
    import torch

Map = Mapping[Any, Any] | None

_dtype_of = attrgetter("dtype")
_shape_of = attrgetter("shape")
_INT64 = np.dtype(np.int64)
_FLOAT64 = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)
_NUMBERS = ((bool, _BOOL), (int, _INT64), (float, np.dtype(np.float32)), (complex, np.dtype(np.complex64)))
"""The dtypes that torch gives to Python's numbers in a mixed batch."""


class NumpyLeaves:
    """Leaves are NumPy arrays of any dtype."""

    def leaf(self, array: Array) -> Any:
        """Returns the batch's leaf for a finished array."""
        return array

    def of_array(self, array: Array | np.generic) -> Any:
        """Returns a leaf over the memory of a sample's array."""
        return self.leaf(np.asarray(array))

    def of_tensor(self, tensor: Any) -> Any:
        """Returns a leaf over the memory of a sample's tensor."""
        return self.leaf(as_array(tensor))

    def accept(self, dtype: np.dtype[Any]) -> None:
        """Raises LeafTypeError for a dtype that this kind of output cannot hold."""

    def tensors(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> Any:
        """Returns one leaf of tensors of one shape, shape (batch, *shape)."""
        return self.of_tensor(stacked(batch))

    def arrays(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> Any:
        """Returns one leaf of NumPy arrays or scalars of one shape, shape (batch, *shape)."""
        if not all(issubclass(kind, (np.ndarray, np.generic)) for kind in set(map(type, batch))):
            return self.mixed_arrays(batch, collate_fn_map)
        return self._stacked(batch)

    def scalars(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> Any:
        """Returns one leaf of NumPy scalars, shape (batch,)."""
        if not all(issubclass(kind, np.generic) for kind in set(map(type, batch))):
            return self.mixed_numbers(batch)
        return self._stacked(batch)

    def floats(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> Any:
        """Returns one leaf of Python numbers, the first a float: shape (batch,), float64."""
        if not {float, int, bool}.issuperset(map(type, batch)):
            return self.mixed_numbers(batch, _FLOAT64)
        return self._filled(batch, _FLOAT64)

    def ints(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> Any:
        """Returns one leaf of Python numbers, the first an int or a bool: shape (batch,), int64 or bool."""
        kinds = set(map(type, batch))
        if not kinds <= {int, bool}:
            return self.mixed_numbers(batch)
        return self._filled(batch, _INT64 if int in kinds else _BOOL)

    def strings(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> Any:
        """Returns strings or bytes unchanged, in the given sequence."""
        return batch

    def mixed_arrays(self, batch: Sequence[Any], collate_fn_map: Map) -> Any:
        """Returns one leaf of arrays mixed with tensors or numbers."""
        return self._stacked([_as_array(value, batch) for value in batch])

    def mixed_numbers(self, batch: Sequence[Any], dtype: np.dtype[Any] | None = None) -> Any:
        """Returns one leaf of numbers of several kinds."""
        arrays = [_as_array(value, batch, dtype) for value in batch]
        if any(array.shape for array in arrays):
            raise mismatch.unequal_types(batch)
        if dtype is not None and not all(np.can_cast(array.dtype, dtype, "same_kind") for array in arrays):
            raise mismatch.unequal_types(batch)
        return self._stacked(arrays, dtype)

    def _stacked(self, batch: Sequence[Any], dtype: np.dtype[Any] | None = None) -> Any:
        dtypes = set(map(_dtype_of, batch))
        for each in dtypes:
            self.accept(each)
        if len(set(map(_shape_of, batch))) > 1:
            raise mismatch.unequal_shapes(batch)
        return self._filled(batch, dtype or common_dtype(dtypes, batch), batch[0].shape)

    def _filled(self, batch: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Any:
        out = tensors.empty((len(batch), *shape), dtype)
        try:
            # One assignment is the fastest way for rows of any size. (A structured dtype takes a tuple for a record.)
            out[...] = batch if type(batch) is list else list(batch)
        except OverflowError as cause:
            raise mismatch.overflow(batch) from cause
        return self.leaf(out)


class TensorLeaf(Array):
    """An array that becomes a tensor in the trainer: made by workers that have not imported torch."""


class DeferredLeaves(NumpyLeaves):
    """Leaves are arrays that become tensors in another process, with dtypes that torch supports."""

    def leaf(self, array: Array) -> Any:
        """Returns the same memory as a `TensorLeaf`."""
        return array.view(TensorLeaf)

    def accept(self, dtype: np.dtype[Any]) -> None:
        """Raises LeafTypeError for dtypes that torch refuses, with torch's message."""
        if dtype.kind in "SUO":
            raise LeafTypeError(
                f"{mismatch.FOUND}{dtype}. An array of strings or objects is no tensor: leave it out, or make it a "
                "list or a number in the dataset."
            )
        if dtype.char not in "?bBhHiIlLqQefdFD":
            raise LeafTypeError(
                f"can't convert np.ndarray of type {dtype.type.__module__}.{dtype.type.__name__}. The only supported "
                "types are: float64, float32, float16, complex64, complex128, int64, int32, int16, int8, uint64, "
                'uint32, uint16, uint8, and bool. Convert it in the dataset, or choose output="numpy".'
            )


class TensorLeaves(DeferredLeaves):
    """Leaves are tensors, as torch's default collation makes them."""

    def leaf(self, array: Array) -> torch.Tensor:
        """Returns a tensor over the same memory."""
        return over(array)

    def of_array(self, array: Array | np.generic) -> torch.Tensor:
        """Returns a tensor over the memory of a sample's array, or a copy if torch does not support its layout."""
        return as_tensor(array)

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor itself."""
        return tensor

    def tensors(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> torch.Tensor:
        """Returns one tensor of tensors of one shape, shape (batch, *shape)."""
        return stacked(batch)

    def arrays(self, batch: Sequence[Any], *, collate_fn_map: Map = None) -> Any:
        """Returns one tensor of NumPy arrays of one shape, or the result of the function registered for tensors."""
        import torch

        of_tensors = (collate_fn_map or {}).get(torch.Tensor, self.tensors)
        if type(of_tensors) is MethodType and of_tensors == self.tensors:  # a user's object is not compared
            return super().arrays(batch, collate_fn_map=collate_fn_map)
        self.accept(batch[0].dtype)
        return of_tensors([as_tensor(value) for value in batch], collate_fn_map=collate_fn_map)

    def mixed_arrays(self, batch: Sequence[Any], collate_fn_map: Map) -> torch.Tensor:
        """Returns one tensor of arrays mixed with tensors, numbers or lists of numbers."""
        try:
            tensors = [as_tensor(value) for value in batch]
        except (RuntimeError, TypeError, ValueError) as cause:
            raise mismatch.unequal_types(batch) from cause
        return self.tensors(tensors)

    def mixed_numbers(self, batch: Sequence[Any], dtype: np.dtype[Any] | None = None) -> torch.Tensor:
        """Returns one tensor of numbers of several kinds, also one-element tensors."""
        import torch

        try:
            return torch.tensor(batch, dtype=None if dtype is None else torch.float64)
        except (RuntimeError, TypeError, ValueError) as cause:
            raise mismatch.unequal_types(batch) from cause


def _as_array(value: Any, batch: Sequence[Any], real: np.dtype[Any] | None = None) -> Array:
    """Returns a value of a mixed batch as an array: real numbers of Python as `real`, else with torch's dtypes."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if is_tensor(value):
        return as_array(value)
    for kind, dtype in _NUMBERS:
        if isinstance(value, kind):
            with suppress(OverflowError):
                return np.asarray(value, dtype if kind is complex else real or dtype)
    raise mismatch.unequal_types(batch)


NUMPY = NumpyLeaves()
DEFERRED = DeferredLeaves()
TENSORS = TensorLeaves()
