"""Some samples of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from stoker import _nominal
from stoker.datasets.base import Dataset

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
