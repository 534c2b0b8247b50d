"""Random splits of a dataset."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._core import nominal
from stoker.datasets.subset import Subset

if TYPE_CHECKING:
    import torch


def random_split(
    dataset: Any,
    lengths: Sequence[int | float],
    generator: torch.Generator | np.random.Generator | None = None,
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
