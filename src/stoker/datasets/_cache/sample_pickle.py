"""Pickles of samples for the cache, one for each sample."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any


class _SamplePickler(pickle.Pickler):
    """Pickles only the values that a tensor shows. Torch would pickle the entire memory of which it is a view."""

    def reducer_override(self, value: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if type(value) is not getattr(torch, "Tensor", None) or value.layout is not torch.strided:
            return NotImplemented
        if value.untyped_storage().nbytes() <= value.nbytes:
            return NotImplemented
        return value.detach().clone().requires_grad_(value.requires_grad).__reduce_ex__(5)


def pickled(sample: Any, number: int) -> bytes:
    """Returns the pickle of a sample.

    Raises:
        TypeError: the sample cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _SamplePickler(buffer, protocol=5).dump(sample)
        return buffer.getvalue()
    except Exception as error:
        raise TypeError(
            f"sample {number} ({type(sample).__name__}) cannot be cached, because it cannot be pickled: {error}. Put "
            "the cache below the step that makes it unpicklable."
        ) from error


def loaded(data: bytes, number: int | None) -> Any:
    """Returns the sample, or another cached object, from its pickle.

    Raises:
        RuntimeError: the data cannot be unpickled.
    """
    try:
        return pickle.loads(data)
    except Exception as error:
        raise RuntimeError(
            f"sample {number} was cached, but cannot be unpickled: {error}. If its class has changed since, change key="
        ) from error
