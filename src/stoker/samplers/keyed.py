"""The common part of batch samplers whose epochs are functions of a key."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from stoker.samplers.base import Sampler
from stoker.samplers.draws import AnyGenerator, draws_from
from stoker.samplers.order import BatchOrder, Int64Array
from stoker.samplers.passes import WalkedInEpochs
from stoker.samplers.permutation import Permutation

KEPT = 1024
"""Permutations cached for each epoch. One of up to 4,096 numbers holds 8 bytes for each: 32 MiB in total at most."""


class KeyedBatchSampler(WalkedInEpochs, Sampler[list[int]]):
    """A batch sampler that returns its batches by number; iterating over it requests them in turn.

    Attributes:
        shuffle: whether the batches depend on the key.
        generator: draws the key of an iteration; None is torch's global generator or, if torch is not wanted, one
            seeded from NumPy's global state.
    """

    stoker_protocol = True
    shuffle: bool = True
    generator: AnyGenerator = None

    def batches(self, key: int) -> BatchOrder:
        """Returns the epoch that belongs to `key`, any integer of up to 64 bits."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the batches of an epoch; its key is drawn when the first batch is requested."""
        return self._drawn() if self._passes is None else self._passes.batches(self)

    def _drawn(self) -> Iterator[list[int]]:
        epoch = self.batches(draws_from(self.generator).below(2**63 - 1, 1)[0] if self.shuffle else 0)
        for number in range(len(epoch)):
            yield epoch.batch(number)


def keys(key: int) -> Permutation:
    """Returns the keys derived from `key`: a different one for each number from 0 on."""
    return Permutation(2**62, key)


def permutations(sizes: Int64Array, key: int) -> Callable[[int], Permutation]:
    """Returns a function that returns the i-th permutation, of `sizes[i]` numbers; the last ones used are cached."""
    following = keys(key)

    @lru_cache(KEPT)
    def permutation(i: int) -> Permutation:
        return Permutation(int(sizes[i]), following[i])

    return permutation


def positive(name: str, value: Any) -> int:
    """Returns an argument that is a count."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number <= 0:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={value!r}")
    return number


def flag(name: str, value: Any) -> bool:
    """Returns an argument that is a switch."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} should be a boolean value, but got {name}={value!r}")
    return value


def numbered(number: int, count: int) -> int:
    """Returns the number of one of `count` batches."""
    if not 0 <= number < count:
        raise IndexError(f"there is no batch {number}: the epoch has {count}, counted from 0")
    return operator.index(number)
