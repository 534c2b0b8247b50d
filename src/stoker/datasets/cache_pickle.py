"""Samples as a cache keeps them: pickled, each by itself."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any


class _Pickler(pickle.Pickler):
    """Keeps of a tensor what it shows. Torch pickles all of the memory that it is a view of, such as the data set."""

    def reducer_override(self, value: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if type(value) is not getattr(torch, "Tensor", None) or value.layout is not torch.strided:
            return NotImplemented
        if value.untyped_storage().nbytes() <= value.nbytes:
            return NotImplemented
        return value.detach().clone().requires_grad_(value.requires_grad).__reduce_ex__(5)


def pickled(sample: Any, number: int) -> bytes:
    """The pickle of a sample.

    Raises:
        TypeError: it has none.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(sample)
        return buffer.getvalue()
    except Exception as error:
        raise TypeError(
            f"sample {number} ({type(sample).__name__}) cannot be kept, because it cannot be pickled: {error}. Put the "
            "cache below the step that makes it so."
        ) from error


def loaded(data: bytes, number: int | None) -> Any:
    """The sample, or whatever was kept, from its pickle.

    Raises:
        RuntimeError: it cannot be unpickled.
    """
    try:
        return pickle.loads(data)
    except Exception as error:
        raise RuntimeError(
            f"sample {number} was kept, but cannot be made from its pickle: {error}. If its class has changed since, "
            "change key="
        ) from error
