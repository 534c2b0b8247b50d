"""Some samples of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from stoker import _nominal
from stoker.datasets.base import Dataset
from stoker.datasets.described import describe
from stoker.datasets.gather import Indices, gather_from, inside, is_tensor, layout_of

T_co = TypeVar("T_co", covariant=True)


class Subset(Dataset[T_co], _nominal.base("Subset")):  # type: ignore[misc]
    """Sample i is the dataset's sample at `indices[i]`.

    Args:
        dataset: the whole.
        indices: which samples, in which order. It is kept, not copied.

    Raises:
        NotImplementedError: a subclass overrides `__getitem__` alone, which a loader would never call.
    """

    dataset: Any
    indices: Sequence[Any]

    def __init__(self, dataset: Any, indices: Sequence[Any]) -> None:
        self.dataset = dataset
        self.indices = indices
        cls = type(self)
        if cls.__getitem__ is not Subset.__getitem__ and cls.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(
                f"{cls.__name__} overrides __getitem__ but not __getitems__. "
                "When subclassing Subset and overriding __getitem__, you must also override "
                "__getitems__ to ensure DataLoader works correctly with your custom logic. "
                "A simple implementation:\n\n"
                "def __getitems__(self, indices):\n"
                "    return [self.__getitem__(idx) for idx in indices]"
            )

    def __getitem__(self, idx: Any) -> Any:
        """Returns the sample at `idx`; a list of positions is handed to the dataset as a list of indices."""
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]
        return self.dataset[self.indices[idx]]

    def __getitems__(self, indices: Sequence[Any]) -> list[T_co]:
        """Returns the samples at these positions, asking a dataset with `__getitems__` once."""
        chosen = [self.indices[i] for i in indices]
        if callable(getattr(self.dataset, "__getitems__", None)):
            samples: list[T_co] = self.dataset.__getitems__(chosen)
            return samples
        return [self.dataset[index] for index in chosen]

    def __len__(self) -> int:
        """Returns the number of indices."""
        return len(self.indices)

    def describe(self, idx: Any) -> Any:
        """Returns what the dataset says of the sample at `idx`, by a `describe(index)` of its own; else None."""
        try:
            index = self.indices[idx]
        except (LookupError, TypeError):  # it is none of ours, as whoever asks for it is told
            return None
        return describe(self.dataset, index)

    def gather_layout(self) -> Any:
        """Returns the dataset's, if it can gather."""
        return layout_of(self.dataset)

    def gather(self, indices: Indices, out: Any) -> Any:
        """Has the dataset write the samples at these positions."""
        chosen = _chosen(self.indices, inside(indices, len(self.indices)))
        return NotImplemented if chosen is None else gather_from(self.dataset, chosen, out)


def _chosen(indices: Any, places: Indices) -> Indices | None:
    """The indices at these places, read anew each time, because a list may change; None if they are no integers."""
    if isinstance(indices, range):
        return indices.start + indices.step * places
    if isinstance(indices, np.ndarray) or is_tensor(indices):  # others may be asked by label, or be files
        chosen = np.asarray(indices)[places]
    else:
        at = places.tolist()
        chosen = np.array([indices[at[0]]] if len(at) == 1 else itemgetter(*at)(indices))
    integers = chosen.ndim == 1 and chosen.dtype.kind in "iu"
    if not integers or (chosen.dtype == np.uint64 and chosen.size and int(chosen.max()) >= 2**63):
        return None  # it would become negative
    return chosen.astype(np.int64, copy=False)
