"""Numbers in groups, without end, each number as often as any other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stoker.samplers.order import Int64Array
from stoker.samplers.permutation import Permutation


class EvenGroups:
    """Groups of different numbers below n; before each group, no number came more than once more often than another.

    The numbers stand in cycles, each a permutation of all, and groups are cut from them. A group that is cut from two
    cycles could hold a number twice. So a cycle gives those of its first numbers later that the group holds already:
    that changes the order of its first `size` numbers, never its end, on which the next cycle depends, and any group is
    known from two permutations. Both fit into a cycle from n = 2 * size - 1 on; below, it is the numbers that a group
    leaves out which are grouped so.

    Args:
        n: how many numbers there are.
        size: how many are in a group, from 1 to n.
        permutation: gives a permutation of n numbers for each cycle, counted from 0.
    """

    def __init__(self, n: int, size: int, permutation: Callable[[int], Permutation]) -> None:
        self._n = n
        self._size = size
        self._permutation = permutation
        self._left_out = EvenGroups(n, n - size, permutation) if n < 2 * size - 1 and size < n else None

    def group(self, number: int) -> tuple[Int64Array, Int64Array]:
        """Returns the numbers of a group, and for each in how many groups before it came."""
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
        """In how many groups before group `number` each of these numbers came."""
        cycle, place = divmod(number * self._size, self._n)
        return cycle + np.isin(numbers, self._numbers(cycle, 0, place)).astype(np.int64)

    def _numbers(self, cycle: int, start: int, stop: int) -> Int64Array:
        """What stands at these places of a cycle."""
        numbers = self._permutation(cycle).take(np.arange(start, stop))
        begun = cycle * self._n % self._size  # how many of the cycle's first group stand in the cycle before
        if begun and start < self._size:
            first = self._permutation(cycle).take(np.arange(self._size))
            again = np.isin(first, self._permutation(cycle - 1).take(np.arange(self._n - begun, self._n)))
            kept = np.concatenate([first[~again], first[again]])[start:stop]
            numbers[: len(kept)] = kept
        return numbers
