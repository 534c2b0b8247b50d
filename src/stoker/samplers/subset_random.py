"""A subset of indices in random order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stoker._core import nominal
from stoker.samplers.base import Sampler
from stoker.samplers.draws import AnyGenerator, draws_from
from stoker.samplers.order import Int64Array, Order
from stoker.samplers.passes import WalkedInEpochs
from stoker.samplers.permutation import Permutation


class SubsetRandomSampler(WalkedInEpochs, Sampler[int], nominal.base("SubsetRandomSampler")):  # type: ignore[misc]
    """Yields each of the given indices once, in random order.

    With a `torch.Generator`, or torch's global one, the order is the one that torch's sampler draws from it; if torch
    is not wanted, None is a generator seeded from NumPy's global state.

    Args:
        indices: the indices; kept, not copied.
        generator: draws the order; it advances with each iteration.
    """

    indices: Sequence[Any]

    def __init__(self, indices: Sequence[Any], generator: AnyGenerator = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[Any]:
        """Yields the indices; the order is drawn when the first is requested."""
        return self._drawn() if self._passes is None else self._passes.indices(self)

    def _drawn(self) -> Iterator[Any]:
        for place in draws_from(self.generator).permutation(len(self.indices)):
            yield self.indices[place]

    def order(self, key: int) -> Order:
        """Returns the order that belongs to `key`; a loader uses it if there is no generator."""
        return _Given(self.indices, Permutation(len(self.indices), key))

    def __len__(self) -> int:
        """Returns the number of indices."""
        return len(self.indices)


class _Given:
    """Given indices in a permuted order. Values other than integers stay unchanged, and a sequence without `__array__`
    needs only a length and `[place]`."""

    def __init__(self, indices: Sequence[Any], places: Permutation) -> None:
        self._places = places
        self._given: Any = None
        self._range = indices if isinstance(indices, range) else None
        if self._range is not None:  # never expanded, as it may have any length
            return
        given = None
        if isinstance(indices, (list, tuple)) or hasattr(indices, "__array__"):
            with contextlib.suppress(ValueError):  # sequences of unequal lengths
                given = np.asarray(indices)
        if given is None or given.ndim != 1 or given.dtype.kind not in "iu":
            given = np.empty(len(indices), object)
            for place in range(len(indices)):
                given[place] = indices[place]
        self._given = given

    def __len__(self) -> int:
        return self._places.n

    def take(self, positions: Int64Array) -> Any:
        places = self._places.take(positions)
        return self._given[places] if self._range is None else self._range.start + self._range.step * places
