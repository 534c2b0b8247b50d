"""Descriptions of samples for messages, by the method `describe(index)` of a dataset, also through wrappers."""

from __future__ import annotations

from typing import Any

from stoker._core.protocol import offered
from stoker.datasets.gather import standing_in_for


def describe(dataset: Any, index: Any) -> Any:
    """Returns the dataset's description of the sample at `index`; None if it has none.

    A `Subset` or `ConcatDataset`, also torch's own, forwards to the dataset that holds the sample.

    Raises:
        Exception: the dataset's method raised it.
    """
    own = offered(dataset, "describe")
    if callable(own):
        return own(index)
    ours = getattr(standing_in_for(type(dataset)), "describe", None)
    return None if ours is None else ours(dataset, index)
