"""The default conversion of a sample that is not batched (`batch_size=None`).

NumPy arrays and scalars become leaves of the output, inside mappings, named tuples, tuples (which become lists) and
other sequences; everything else is left as it is: numbers, strings, arrays of strings or objects, dataclasses. Arrays
and tensors keep their memory. The functions keep no state: they may be called from any thread and process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.collate import registry, structure
from stoker.collate.leaves import NumpyLeaves
from stoker.collate.tensors import is_tensor
from stoker.errors import BatchError

_AS_THEY_ARE = frozenset({int, float, bool, str, bytes, type(None)})


def default_convert(data: Any) -> Any:
    """Converts a sample: arrays become torch tensors where torch is installed, else stay NumPy arrays.

    Args:
        data: one sample, of any structure.

    Raises:
        LeafTypeError: an array has a dtype that the output does not know. The message names its field.
    """
    return _convert(data, registry.leaves_for(None))


def numpy_convert(data: Any) -> Any:
    """Converts a sample as `default_convert` does, but its tensors to NumPy arrays."""
    return _convert(data, registry.leaves_for("numpy"))


def deferred_convert(data: Any) -> Any:
    """`default_convert` for a worker that has not imported torch: what is to be a tensor is a `TensorLeaf`."""
    return _convert(data, registry.leaves_for("deferred"))


def _convert(data: Any, leaves: NumpyLeaves) -> Any:
    try:
        return _quickly(data, leaves)
    except BatchError:
        return _converted(data, leaves)  # which names the field


def _quickly(data: Any, leaves: NumpyLeaves) -> Any:
    """What `_converted` gives. A sample may have a thousand leaves, so what is common is not asked what it is."""
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
        # As in torch, an array of another package's class is left to that package.
        if type(data).__module__ != "numpy" or data.dtype.kind in "SUO":
            return data
        leaves.accept(data.dtype)
        return leaves.of_array(data)
    whole = structure.collated((data,), lambda values, _key: _converted(values[0], leaves))
    return data if whole is structure.NOT_A_STRUCTURE else whole
