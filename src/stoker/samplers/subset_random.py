"""Given indices in random order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stoker import _nominal
from stoker.samplers.base import Sampler
from stoker.samplers.draws import AnyGenerator, draws_from


class SubsetRandomSampler(Sampler[int], _nominal.base("SubsetRandomSampler")):  # type: ignore[misc]
    """Yields each of the given indices once, in random order.

    A `torch.Generator`, or torch's global one, gives the order that torch's sampler draws from it; where torch is not
    wanted, None is a generator seeded from NumPy's global state.

    Args:
        indices: the indices; kept, not copied.
        generator: draws the order; it moves on with each iteration.
    """

    indices: Sequence[Any]

    def __init__(self, indices: Sequence[Any], generator: AnyGenerator = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[Any]:
        """Yields the indices; the order is drawn when the first is asked for."""
        for place in draws_from(self.generator).permutation(len(self.indices)):
            yield self.indices[place]

    def __len__(self) -> int:
        """Returns the number of indices."""
        return len(self.indices)
