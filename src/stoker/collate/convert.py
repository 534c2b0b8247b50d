"""The default conversion of a sample that is not batched (`batch_size=None`).

NumPy arrays and scalars become leaves of the output, inside mappings, named tuples, tuples (which become lists) and
other sequences. All other values stay unchanged: numbers, strings, arrays of strings or objects, dataclasses. Arrays
and tensors keep their memory. The functions are stateless: any thread and process may call them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.collate import registry, structure
from stoker.collate._leaves.stacking import NumpyLeaves
from stoker.collate._leaves.tensors import is_tensor
from stoker.errors import BatchError

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
