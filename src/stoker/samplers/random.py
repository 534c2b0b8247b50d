"""Samples in random order."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from itertools import islice

import numpy as np

from stoker._core import nominal
from stoker._core.hashing import hashes
from stoker.samplers.base import Sampler, described
from stoker.samplers.draws import AnyGenerator, Draws, TorchDraws, draws_from
from stoker.samplers.order import Int64Array, Order
from stoker.samplers.passes import WalkedInEpochs
from stoker.samplers.permutation import Permutation
from stoker.samplers.sequential import length_of

_AT_ONCE = 32  # torch's block size with replacement: a shared generator gives the same numbers


class RandomSampler(WalkedInEpochs, Sampler[int], nominal.base("RandomSampler")):  # type: ignore[misc]
    """Yields indices in random order: each once, or drawn with replacement.

    With a `torch.Generator`, the order is the one that torch's sampler draws from it. Without a generator, each
    iteration seeds a new one from torch's global one or, if torch is not wanted, from NumPy's global state.

    Without a generator, Stoker's loader draws the epoch's seed itself and uses `order(key)`: the order is then a
    function of that seed. If the loader has a `seed=`, iterating over its sampler gives the same orders as the loader.

    Args:
        data_source: the dataset, or any object with a length.
        replacement: draw each index independently, so that some repeat and some never come.
        num_samples: number of indices; by default the length of the dataset. Beyond that length, without replacement,
            one complete random order follows another.
        generator: draws the order; it advances with each iteration.

    Raises:
        TypeError: `replacement` is no bool.
        ValueError: `num_samples`, or the length of the dataset in its place, is no positive integer.
    """

    data_source: Sized
    replacement: bool

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: AnyGenerator = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        if not isinstance(self.num_samples, int) or self.num_samples <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={self.num_samples}")

    @property
    def num_samples(self) -> int:
        """Number of indices in an iteration: the given number, or the current length of the dataset."""
        return length_of(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        """Yields the indices; draws them on demand."""
        return self._drawn() if self._passes is None else self._passes.indices(self)

    def _drawn(self) -> Iterator[int]:
        n = length_of(self.data_source)
        draws = self._draws()
        if self.replacement:
            for _ in range(self.num_samples // _AT_ONCE):
                yield from draws.below(n, _AT_ONCE)
            yield from draws.below(n, self.num_samples % _AT_ONCE)
        else:
            for _ in range(self.num_samples // n):
                yield from draws.permutation(n)
            # Drawn even if none of it is used: the generator's state must then equal that after torch's sampler.
            yield from islice(draws.permutation(n), self.num_samples % n)

    def order(self, key: int) -> Order:
        """Returns the order that belongs to `key`; a loader uses it if there is no generator."""
        n = length_of(self.data_source)
        if self.replacement:
            return _DrawnIndices(n, self.num_samples, key)
        first = Permutation(n, key)
        return first if self.num_samples == n else _Repeated(first, self.num_samples)

    def __len__(self) -> int:
        """Returns `num_samples`."""
        return self.num_samples

    def __repr__(self) -> str:
        return described(self, "data_source", "replacement")

    def _draws(self) -> Draws:
        draws = draws_from(self.generator)
        if not isinstance(draws, TorchDraws) or draws.generator is not None:
            return draws
        import torch

        # One number of the global generator, as torch takes it: other code may draw from it during the iteration.
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        return TorchDraws(torch.Generator().manual_seed(seed))


class _DrawnIndices:
    """Indices drawn with replacement: each position from its own 64 bits."""

    def __init__(self, n: int, size: int, key: int) -> None:
        self._n = n
        self._size = size
        self._key = key

    def __len__(self) -> int:
        return self._size

    def take(self, positions: Int64Array) -> Int64Array:
        return (hashes(self._key, positions) % np.uint64(self._n)).astype(np.int64)


class _Repeated:
    """The first `size` indices of a series of permutations."""

    def __init__(self, first: Permutation, size: int) -> None:
        self._first = first
        self._size = size

    def __len__(self) -> int:
        return self._size

    def take(self, positions: Int64Array) -> Int64Array:
        passes, places = np.divmod(positions, self._first.n)
        indices = np.empty_like(positions)
        for number in np.unique(passes).tolist():
            inside = passes == number
            pass_ = Permutation(self._first.n, self._first.key + number)
            indices[inside] = pass_.take(places[inside])
        return indices
