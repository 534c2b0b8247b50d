"""Endless groups of numbers, with each number equally often."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stoker.samplers.order import Int64Array
from stoker.samplers.permutation import Permutation


class EvenGroups:
    """Groups of distinct numbers below n; before each group, the occurrences of two numbers differ by at most one.

    The numbers are arranged in cycles, each a permutation of all, and groups are cut from these. A group cut from two
    cycles could hold a number twice. Therefore a cycle postpones those of its first numbers that the group holds
    already. This changes the order of its first `size` numbers, never its end, on which the next cycle depends, so any
    group follows from two permutations. A cycle has room for this from n = 2 * size - 1 on; for smaller n, the numbers
    left out of each group are grouped in this way.

    Args:
        n: number of numbers.
        size: numbers in a group, from 1 to n.
        permutation: returns a permutation of n numbers for each cycle, counted from 0.
    """

    def __init__(self, n: int, size: int, permutation: Callable[[int], Permutation]) -> None:
        self._n = n
        self._size = size
        self._permutation = permutation
        self._left_out = EvenGroups(n, n - size, permutation) if n < 2 * size - 1 and size < n else None

    def group(self, number: int) -> tuple[Int64Array, Int64Array]:
        """Returns the numbers of a group, and for each the number of earlier groups with it."""
        if self._size == self._n:
            return np.arange(self._n), np.full(self._n, number)
        if self._left_out is not None:
            numbers = np.delete(np.arange(self._n), self._left_out.group(number)[0])
            return numbers, number - self._left_out._came(numbers, number)
        cycle, place = divmod(number * self._size, self._n)
        here = self._numbers(cycle, place, min(place + self._size, self._n))
        rest = self._size - len(here)
        numbers = np.concatenate([here, self._numbers(cycle + 1, 0, rest)]) if rest else here
        return numbers, cycle + (np.arange(self._size) >= len(here))

    def _came(self, numbers: Int64Array, number: int) -> Int64Array:
        """Returns, for each of these numbers, the number of groups before group `number` with it."""
        cycle, place = divmod(number * self._size, self._n)
        return cycle + np.isin(numbers, self._numbers(cycle, 0, place)).astype(np.int64)

    def _numbers(self, cycle: int, start: int, stop: int) -> Int64Array:
        """Returns the numbers at these places of a cycle."""
        numbers = self._permutation(cycle).take(np.arange(start, stop))
        begun = cycle * self._n % self._size  # numbers of the cycle's first group that lie in the previous cycle
        if begun and start < self._size:
            first = self._permutation(cycle).take(np.arange(self._size))
            again = np.isin(first, self._permutation(cycle - 1).take(np.arange(self._n - begun, self._n)))
            kept = np.concatenate([first[~again], first[again]])[start:stop]
            numbers[: len(kept)] = kept
        return numbers
