"""What a dataset says of a sample in messages, by its method `describe(index)`: through those that hand samples on."""

from __future__ import annotations

from typing import Any

from stoker.datasets.gather import standing_in_for


def describe(dataset: Any, index: Any) -> Any:
    """What the dataset says of the sample at `index`; None if it says nothing.

    A `Subset` or `ConcatDataset`, torch's own as well, says what the dataset says that has the sample.

    Raises:
        Exception: what the dataset's method raised.
    """
    own = getattr(dataset, "describe", None)
    if callable(own):
        return own(index)
    ours = getattr(standing_in_for(type(dataset)), "describe", None)
    return None if ours is None else ours(dataset, index)
