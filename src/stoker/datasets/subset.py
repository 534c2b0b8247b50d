"""A selection of a dataset's samples, and random splits."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stoker._core import nominal
from stoker.datasets.base import Dataset
from stoker.datasets.gather import Indices, describe, gather_from, inside, is_tensor, layout_of

if TYPE_CHECKING:
    import torch


T_co = TypeVar("T_co", covariant=True)


class Subset(Dataset[T_co], nominal.base("Subset")):  # type: ignore[misc]
    """The dataset's samples at the given indices: sample i is the dataset's at `indices[i]`.

    Args:
        dataset: the whole dataset.
        indices: the selected samples, in order. The sequence is kept, not copied.

    Raises:
        NotImplementedError: a subclass overrides only `__getitem__`, which a loader would never call.
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
        """Returns the sample at `idx`; a list of positions is passed to the dataset as a list of indices."""
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]
        return self.dataset[self.indices[idx]]

    def __getitems__(self, indices: Sequence[Any]) -> list[T_co]:
        """Returns the samples at these positions, in one call of the dataset's `__getitems__` if it has one."""
        chosen = [self.indices[i] for i in indices]
        if callable(getattr(self.dataset, "__getitems__", None)):
            samples: list[T_co] = self.dataset.__getitems__(chosen)
            return samples
        return [self.dataset[index] for index in chosen]

    def __len__(self) -> int:
        """Returns the number of indices."""
        return len(self.indices)

    def describe(self, idx: Any) -> Any:
        """Returns the dataset's description of the sample at `idx`, if it offers `describe`; else None."""
        try:
            index = self.indices[idx]
        except (LookupError, TypeError):  # `__getitem__` raises for it
            return None
        return describe(self.dataset, index)

    def gather_layout(self) -> Any:
        """Returns the dataset's layout, if it can gather."""
        return layout_of(self.dataset)

    def gather(self, indices: Indices, out: Any) -> Any:
        """Makes the dataset write the samples at these positions."""
        chosen = _chosen(self.indices, inside(indices, len(self.indices)))
        return NotImplemented if chosen is None else gather_from(self.dataset, chosen, out)


def _chosen(indices: Any, places: Indices) -> Indices | None:
    """Returns the indices at these places, read anew because a list may change; None if they are not integers."""
    if isinstance(indices, range):
        return indices.start + indices.step * places
    if isinstance(indices, np.ndarray) or is_tensor(indices):  # other types may be indexed by label, or be files
        chosen = np.asarray(indices)[places]
    else:
        at = places.tolist()
        chosen = np.array([indices[at[0]]] if len(at) == 1 else itemgetter(*at)(indices))
    integers = chosen.ndim == 1 and chosen.dtype.kind in "iu"
    if not integers or (chosen.dtype == np.uint64 and chosen.size and int(chosen.max()) >= 2**63):
        return None  # an index would become negative
    return chosen.astype(np.int64, copy=False)


def random_split(
    dataset: Any, lengths: Sequence[int | float], generator: torch.Generator | np.random.Generator | None = None
) -> list[Subset[Any]]:
    """Splits a dataset at random into disjoint subsets.

    With a `torch.Generator`, or torch's global one, the permutation is the same as torch's. Without torch, NumPy's
    global generator is used.

    Args:
        dataset: has `__len__` and `__getitem__`.
        lengths: numbers of samples that sum up to `len(dataset)`, or fractions that sum up to 1. Samples left over by
            rounding down are assigned one by one to the first subsets.
        generator: draws the permutation; None is the global generator.

    Returns:
        One `Subset` for each length.

    Raises:
        ValueError: a fraction is not between 0 and 1, a length is negative, or the lengths do not sum up to that of the
            dataset.
    """
    total: int | float = sum(lengths)
    if math.isclose(total, 1) and total <= 1:
        lengths = _lengths_of(lengths, len(dataset))
        for place, length in enumerate(lengths):
            if length == 0:
                warnings.warn(
                    f"Length of split at index {place} is 0. This might result in an empty dataset.", stacklevel=2
                )
    total = sum(lengths)
    if total != len(dataset):
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    if min(lengths, default=0) < 0:
        raise ValueError(f"Length of a split is negative: {min(lengths)}. Give numbers of samples, or fractions.")
    order = iter(_permutation(total, generator))
    return [Subset(dataset, list(itertools.islice(order, length))) for length in lengths]  # type: ignore[arg-type]


def _lengths_of(fractions: Sequence[float], n: int) -> list[int]:
    for place, fraction in enumerate(fractions):
        if not 0 <= fraction <= 1:
            raise ValueError(f"Fraction at index {place} is not between 0 and 1")
    lengths = [math.floor(n * fraction) for fraction in fractions]
    left = n - sum(lengths)
    return [length + left // len(lengths) + (place < left % len(lengths)) for place, length in enumerate(lengths)]


def _permutation(n: Any, generator: Any) -> list[int]:
    numbers: Any
    if isinstance(generator, np.random.Generator):
        numbers = generator.permutation(n)
    elif generator is None and not nominal.torch_is_wanted():
        numbers = np.random.permutation(n)
    else:
        import torch

        numbers = torch.randperm(n, generator=generator)
    return numbers.tolist()  # type: ignore[no-any-return]
