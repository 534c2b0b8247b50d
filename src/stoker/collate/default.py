"""The default collation, which makes a batch of samples of one structure, and the default conversion of a sample that
is not batched.

| samples                                    | batch of n                                                      |
|--------------------------------------------|-----------------------------------------------------------------|
| tensors, NumPy arrays, of shape `s`        | one leaf, shape `(n, *s)`, dtype as torch promotes              |
| NumPy scalars                              | one leaf, shape `(n,)`, their dtype                             |
| float; int; bool                           | one leaf, shape `(n,)`, float64; int64; bool                    |
| str, bytes                                 | unchanged: the sequence of them                                 |
| mappings                                   | the same type, each value collated                              |
| named tuples, dataclasses                  | the same type, each field collated                              |
| tuples                                     | a list, each place collated                                     |
| other sequences                            | the same type, each place collated                              |
| types in a `default_collate_fn_map`        | the result of the function registered there                     |

Leaves lie in new memory or, in a worker process, in the memory of the batch, written once. The functions are stateless:
any thread and process may call them. Samples are not changed, and the batch shares no memory with them.

Raises:
    BatchError: samples differ in shape, length, keys or structure. It is a RuntimeError, and also a TypeError or
        KeyError wherever torch raises one. The message names the field, the samples by their position in the batch,
        and the shape, length, keys or type of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.collate import mismatch, registry, structure
from stoker.collate.stacking import NumpyLeaves
from stoker.collate.tensors import is_tensor
from stoker.errors import BatchError


def default_collate(batch: Sequence[Any]) -> Any:
    """Returns samples collated into a batch: leaves are torch tensors if torch is installed, else NumPy arrays.

    Args:
        batch: samples of one structure, at least one.

    Returns:
        One structure like the first sample's, each leaf with a new first dimension of `len(batch)`.
    """
    return collated_by(batch, registry.functions(registry.leaves_for(None)))


def numpy_collate(batch: Sequence[Any]) -> Any:
    """Returns samples collated as by `default_collate`, with NumPy arrays as leaves; tensors are converted.

    Arrays may have any dtype here, also strings, dates and objects. Results of registered functions stay unchanged.
    """
    return collated_by(batch, registry.functions(registry.leaves_for("numpy")))


def deferred_collate(batch: Sequence[Any]) -> Any:
    """Returns `default_collate` of samples in a worker without torch: each future tensor is a `TensorLeaf`.

    If torch is loaded, by the dataset for instance, the leaves are tensors.
    """
    return collated_by(batch, registry.functions(registry.leaves_for("deferred")))


def collate(batch: Sequence[Any], *, collate_fn_map: Mapping[registry.Key, registry.CollateFn] | None = None) -> Any:
    """Returns samples collated with the given functions for leaves, and with no others.

    Args:
        batch: samples of one structure, at least one.
        collate_fn_map: from the type of a leaf, or a tuple of types, to `fn(batch, *, collate_fn_map)`. The exact type
            of a leaf takes precedence, then the first key that it is an instance of.

    Raises:
        LeafTypeError: a leaf has none of these types and is no structure.
    """
    return collated_by(batch, registry.in_place(collate_fn_map or {}))


def one_level(batch: Sequence[Any], fn_map: Mapping[registry.Key, registry.CollateFn], field: structure.Field) -> Any:
    """Returns the samples collated by the function for their type, else as a structure with fields by `field`."""
    fn = registry.function_for(batch[0], fn_map)
    if fn is not None:
        return fn(batch, collate_fn_map=fn_map)
    whole = structure.collated(batch, field)
    if whole is structure.NOT_A_STRUCTURE:
        whole = structure.collated_dataclass(batch, field)
    if whole is structure.NOT_A_STRUCTURE:
        raise mismatch.unequal_types(batch)
    return whole


def collated_by(batch: Sequence[Any], fn_map: Mapping[registry.Key, registry.CollateFn]) -> Any:
    """Returns the samples collated by these functions, structures field by field."""
    return one_level(batch, fn_map, lambda values, _key: collated_by(values, fn_map))


# The default conversion of a sample that is not batched (`batch_size=None`): NumPy arrays and scalars become leaves of
# the output, inside mappings, named tuples, tuples (which become lists) and other sequences. Other values stay as they
# are. Arrays and tensors keep their memory. Stateless: any thread and process may call the functions.


_AS_THEY_ARE = frozenset({int, float, bool, str, bytes, type(None)})


def default_convert(data: Any) -> Any:
    """Returns the sample with its arrays as torch tensors if torch is installed, else as NumPy arrays.

    Args:
        data: one sample, of any structure.

    Raises:
        LeafTypeError: an array has a dtype that the output does not support. The message names its field.
    """
    return converted(data, registry.leaves_for(None))


def numpy_convert(data: Any) -> Any:
    """Returns the sample as `default_convert` does, but with its tensors as NumPy arrays."""
    return converted(data, registry.leaves_for("numpy"))


def deferred_convert(data: Any) -> Any:
    """Returns `default_convert` of a sample in a worker without torch: future tensors are `TensorLeaf` arrays."""
    return converted(data, registry.leaves_for("deferred"))


def converted(data: Any, leaves: NumpyLeaves) -> Any:
    """Returns the sample with its arrays and tensors as leaves of this kind, as the module describes."""
    try:
        return _quickly(data, leaves)
    except BatchError:
        return _converted(data, leaves)  # its error names the field


def _quickly(data: Any, leaves: NumpyLeaves) -> Any:
    """Returns the same as `_converted`; common types take a shortcut, since a sample may have a thousand leaves."""
    kind = type(data)
    if kind in _AS_THEY_ARE:
        return data
    if kind is dict:
        return {key: _quickly(value, leaves) for key, value in data.items()}
    if kind is list or kind is tuple:
        return [_quickly(value, leaves) for value in data]
    return _converted(data, leaves)


def _converted(data: Any, leaves: NumpyLeaves) -> Any:
    if is_tensor(data):
        return leaves.of_tensor(data)
    if isinstance(data, (np.ndarray, np.generic)):
        # As in torch, arrays of another package's classes stay unchanged.
        if type(data).__module__ != "numpy" or data.dtype.kind in "SUO":
            return data
        leaves.accept(data.dtype)
        return leaves.of_array(data)
    whole = structure.collated((data,), lambda values, _key: _converted(values[0], leaves))
    return data if whole is structure.NOT_A_STRUCTURE else whole
