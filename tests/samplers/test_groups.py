from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
import pytest

from stoker.samplers.balanced import EvenGroups
from stoker.samplers.keyed import keys
from stoker.samplers.permutation import Permutation


def groups(n: int, size: int, key: int = 0) -> EvenGroups:
    return EvenGroups(n, size, lru_cache(lambda cycle: Permutation(n, keys(key)[cycle])))


@pytest.mark.parametrize("n", range(1, 17))
def test_numbers_of_a_group_differ_and_come_equally_often(n: int) -> None:
    for size in range(1, n + 1):
        came = np.zeros(n, int)
        order = groups(n, size)
        for number in range(4 * n):
            numbers, times = order.group(number)
            assert len(set(numbers.tolist())) == size
            assert times.tolist() == came[numbers].tolist()
            came[numbers] += 1
            assert came.max() - came.min() <= 1, (size, number)


def test_a_group_is_the_same_whatever_was_asked_before() -> None:
    order = groups(23, 7)
    forward = [order.group(number)[0].tolist() for number in range(60)]
    assert [groups(23, 7).group(number)[0].tolist() for number in reversed(range(60))] == forward[::-1]
    far = groups(10**9, 3).group(10**12)
    assert len(far[0]) == 3
    assert far[1].tolist() == [3 * 10**12 // 10**9] * 3


@pytest.mark.parametrize(("n", "size"), [(12, 4), (11, 4), (6, 4), (9, 8)])
def test_each_pair_meets_as_often(n: int, size: int) -> None:
    count = 1500
    met = np.zeros((n, n))
    order = groups(n, size)
    for number in range(count):
        numbers, _ = order.group(number)
        met[np.ix_(numbers, numbers)] += 1
    pairs = met[np.triu_indices(n, 1)]
    expected = count * size * (size - 1) / (n * (n - 1))
    # Groups of a cycle exclude each other, so counts scatter a little more or less than independent ones would.
    assert np.abs(pairs - expected).max() < 5.5 * math.sqrt(expected)
    assert len({tuple(sorted(order.group(number)[0].tolist())) for number in range(count)}) > 0.9 * min(
        math.comb(n, size), count / 2
    )


def test_group_across_two_cycles_never_repeats_a_number() -> None:
    n, size = 9, 5  # the smallest n that is not grouped by what is left out
    straddling = [number for number in range(200) if number * size // n != (number * size + size - 1) // n]
    assert len(straddling) > 80
    order = groups(n, size)
    plain = [
        np.concatenate([list(Permutation(n, keys(0)[c])) for c in (number * size // n, number * size // n + 1)])
        for number in straddling
    ]
    twice = sum(
        len(set(line[number * size % n :][:size].tolist())) < size
        for line, number in zip(plain, straddling, strict=True)
    )
    assert twice > 40  # cut from plain permutations, they would hold a number twice
    assert all(len(set(order.group(number)[0].tolist())) == size for number in straddling)


def test_keys_give_other_groups() -> None:
    firsts = [tuple(groups(50, 5, key).group(0)[0].tolist()) for key in range(20)]
    assert len(set(firsts)) == 20
    assert all(a != b for a, b in itertools.pairwise(firsts))
