"""Is the shuffle as good as one drawn by chance? Five tests, their limits fixed beforehand, and what each can see.

A test turns an order, or many, into statistics that are standard normal deviations for a perfect shuffle: sums of
chi-square by the formula of Wilson and Hilferty ("The distribution of chi-square", PNAS 17, 1931), the others by exact
means and variances. Deviations to either side count: too even is no better than too uneven.

Where keys are many and orders short, numbers at fixed positions are counted over the keys. Where orders are long and
keys few, each order is counted by itself: what a key shifts to another place in each order shows only so.

**The limits** (`LIMITS`). A perfect shuffle is to exceed one anywhere in this file, quick and long, with a probability
below 1e-9: by Bonferroni's inequality each statistic gets 1e-9 divided by five tests, by `RUNS` and by the number of
statistics that a test makes in a run. That gives limits of about seven. Shuffles of NumPy's stay within them; a network
of two rounds exceeds the limit of every test at every size, one of four rounds that of some. (Up to `TABLE_UP_TO` the
order is no network but a table; there, this is the network that would be used without.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from stoker._core.hashing import hashes
from stoker.samplers import permutation as module
from stoker.samplers.permutation import TABLE_UP_TO, Permutation

Array = np.ndarray[Any, Any]
MANY = 100  # keys; from here on they are counted together

QUICK = {10: 5000, 100: 2000, 1000: 600, 5003: 20, 100_000: 4}  # size: keys
LONG = {10: 200_000, 100: 50_000, 1000: 10_000, 5003: 99, 65_536: 99, 1_000_003: 10, 10_000_000: 2}
RUNS = 4 * (len(QUICK) + len(LONG))


def standard(total: float, freedom: float) -> float:
    """Wilson and Hilferty: the cube root of chi-square by its degrees of freedom is normal."""
    spread = 2 / (9 * freedom)
    return float(((total / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(spread))


def chi_square(found: Array, probabilities: Array, fixed: int = 1) -> tuple[float, int]:
    """How often each number was found against its probability: chi-square and its degrees of freedom.

    What has no probability must not be found. Sums of counts that are the same for all orders are `fixed`.
    """
    counts = np.bincount(found, minlength=len(probabilities))
    possible = probabilities > 0
    assert not counts[~possible].any()
    mean = len(found) * probabilities[possible]
    return float(((counts[possible] - mean) ** 2 / mean).sum()), int(possible.sum()) - fixed


def bins_of(n: int, bins: int) -> Array:
    """How many of n numbers lie in each bin."""
    return np.bincount(np.arange(n) * bins // n, minlength=bins)


def related(n: int) -> list[int]:
    """Distances of positions that are neighbours in the network's rectangle."""
    width = math.isqrt(n - 1) + 1
    height = -(-n // width)
    return sorted({1, 2, height - 1, height, height + 1, width, 2 * width})


def dependence(before: Array, after: Array) -> float:
    """A table of bins for each row of two matrices, whose margins are fixed; the mean of its chi-square is exact."""
    keys, n = after.shape
    bins = max(2, min(32, math.isqrt(n // 10)))
    sizes = bins_of(n, bins)
    mean = np.outer(sizes, sizes).ravel() / n
    tables = (np.arange(keys)[:, None] * bins + before * bins // n) * bins + after * bins // n
    counts = np.bincount(tables.ravel(), minlength=keys * bins**2).reshape(keys, -1)
    return standard(((counts - mean) ** 2 / mean).sum() * (n - 1) / n, keys * (bins - 1) ** 2)


def normal(deviations: Array) -> list[float]:
    """Of many standard deviations: whether they are about zero, and whether they are as wide as they should be."""
    return [float(deviations.sum() / math.sqrt(len(deviations))), standard((deviations**2).sum(), len(deviations))]


def samples(orders: Array, distance: int) -> Iterator[tuple[Array, Array]]:
    """Numbers at two positions: of many orders at some fixed pairs; of few, each order's at all pairs, all around."""
    n = orders.shape[1]
    if len(orders) >= MANY:
        for start in (0, n // 2):
            yield orders[:, start], orders[:, (start + distance) % n]
    else:
        for order in orders:
            yield order, np.roll(order, -distance)


def summed(parts: Iterable[tuple[float, int]], orders: Array) -> list[float]:
    """Of many orders, each part is a statistic; of few, all together are one."""
    found = list(parts)
    return [standard(*part) for part in (found if len(orders) >= MANY else [map(sum, zip(*found, strict=True))])]


# The tests: a matrix of orders, one for each key, makes a list of statistics.


def positions(orders: Array) -> list[float]:
    """Where a number stands does not depend on the number."""
    n = orders.shape[1]
    bins = min(n, 100)
    found = [dependence(np.broadcast_to(np.arange(n), orders.shape), orders)]
    if len(orders) >= MANY:
        at = (orders[:, place] * bins // n for place in (0, 1, n // 2, n - 1))
        found += summed((chi_square(numbers, bins_of(n, bins) / n) for numbers in at), orders)
    return found


def pairs(orders: Array) -> list[float]:
    """Two numbers at related positions are any two."""
    n = orders.shape[1]
    bins = min(n, 16)
    sizes = bins_of(n, bins)
    likely = (np.outer(sizes, sizes) - np.diag(sizes)).ravel() / (n * (n - 1))
    fixed = 1 if len(orders) >= MANY else 2 * bins - 1
    found = []
    for distance in related(n):
        cells = (a * bins // n * bins + b * bins // n for a, b in samples(orders, distance))
        found += summed((chi_square(cell, likely, fixed) for cell in cells), orders)
    return found


def neighbours(orders: Array) -> list[float]:
    """The way from a number to one at a related position is of any length but zero."""
    n = orders.shape[1]
    bins = min(n - 1, 200)
    likely = bins_of(n - 1, bins) / (n - 1)
    found = []
    for distance in related(n):
        ways = (((b - a) % n - 1) * bins // (n - 1) for a, b in samples(orders, distance))
        found += summed((chi_square(way, likely) for way in ways), orders)
    return found


def serial(orders: Array) -> list[float]:
    """An order is not correlated with itself, moved on.

    Mean and variance over all orders are exact: Wald and Wolfowitz, "An exact test for randomness in the non-parametric
    case based on serial correlation", Annals of Mathematical Statistics 14, 1943.
    """
    n = orders.shape[1]
    centred = orders - (n - 1) / 2
    second, fourth = (float((centred[0] ** power).sum()) for power in (2, 4))
    mean = -second / (n - 1)
    variance = (second**2 - fourth) / (n - 1) + (second**2 - 2 * fourth) / ((n - 1) * (n - 2)) - mean**2
    found = []
    for distance in related(n):
        sums = np.einsum("ij,ij->i", centred, np.roll(centred, distance, axis=1))
        found += normal((sums - mean) / math.sqrt(variance))
    return found


def epochs(orders: Array) -> list[float]:
    """The orders of keys that follow one another have nothing in common."""
    n = orders.shape[1]
    bins = min(n, 100)
    before, after = orders[:-1], orders[1:]
    centred = orders - (n - 1) / 2
    correlations = np.einsum("ij,ij->i", centred[:-1], centred[1:]) / (n * (n**2 - 1) / 12)
    found = [dependence(before, after), *normal(correlations * math.sqrt(n - 1))]
    ways = (after - before) % n
    some = (ways[:, place] for place in (0, 1, n // 2, n - 1)) if len(orders) >= MANY else iter(ways)
    found += summed((chi_square(way * bins // n, bins_of(n, bins) / n) for way in some), orders)
    if len(orders) >= MANY:  # a pair of epochs has one number in its old place, in the mean, with a variance of one
        found.append((np.count_nonzero(ways == 0) - len(ways)) / math.sqrt(len(ways)))
    return found


# How many statistics each makes in a run, at most.
TESTS: dict[Callable[[Array], list[float]], int] = {positions: 5, pairs: 14, neighbours: 14, serial: 14, epochs: 8}
LIMITS = {test: NormalDist().inv_cdf(1 - 1e-9 / len(TESTS) / RUNS / count / 2) for test, count in TESTS.items()}
each_test = pytest.mark.parametrize("test", TESTS, ids=lambda test: test.__name__)


def orders_of(n: int, keys: int, rounds: int = 8, table_up_to: int = TABLE_UP_TO) -> Array:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROUNDS", rounds)
        patch.setattr(module, "TABLE_UP_TO", table_up_to)
        return np.stack([Permutation(n, key).take(np.arange(n)) for key in range(keys)])


def in_limits(orders: Array) -> dict[str, float]:
    """The largest deviation that each test finds, by its limit."""
    found = {test: test(orders) for test in TESTS}
    assert all(len(found[test]) <= TESTS[test] for test in TESTS)
    return {test.__name__: max(map(abs, found[test])) / LIMITS[test] for test in TESTS}


@pytest.mark.parametrize(("n", "keys"), QUICK.items())
def test_no_test_sees_a_difference_from_chance(n: int, keys: int) -> None:
    assert all(worst < 1 for worst in in_limits(orders_of(n, keys)).values())


@pytest.mark.parametrize(("n", "keys"), QUICK.items())
def test_no_test_sees_a_difference_in_numpy_shuffles(n: int, keys: int) -> None:
    generator = np.random.default_rng(n)
    shuffles = np.stack([generator.permutation(n) for _ in range(keys)])
    assert all(worst < 1 for worst in in_limits(shuffles).values())


@pytest.mark.parametrize(("n", "keys"), QUICK.items())
def test_statistics_detect_networks_with_too_few_rounds(n: int, keys: int) -> None:
    assert all(worst > 1 for worst in in_limits(orders_of(n, keys, 2, 0)).values())
    assert any(worst > 1 for worst in in_limits(orders_of(n, keys, 4, 0)).values())


@pytest.mark.long
@pytest.mark.parametrize(("n", "keys"), LONG.items())
def test_many_orders_show_no_difference_from_chance(n: int, keys: int) -> None:
    assert all(worst < 1 for worst in in_limits(orders_of(n, keys)).values())


@pytest.mark.long
@pytest.mark.parametrize("n", [100, 1000])
def test_no_test_sees_a_difference_in_small_network_orders(n: int) -> None:
    assert all(worst < 1 for worst in in_limits(orders_of(n, LONG[n], table_up_to=0)).values())


@pytest.mark.long
def test_why_few_numbers_need_a_table() -> None:
    assert any(worst > 1 for worst in in_limits(orders_of(10, LONG[10], table_up_to=0)).values())


# Each number comes once.


def is_bijection(n: int, key: int) -> bool:
    return not np.any(np.bincount(Permutation(n, key).take(np.arange(n)), minlength=n) != 1)


@pytest.mark.parametrize("table_up_to", [TABLE_UP_TO, 0])
def test_sizes_up_to_5000_are_bijections(table_up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_UP_TO", table_up_to)
    assert [n for n in range(table_up_to % 7, 5001, 7) if not is_bijection(n, n)] == []


@pytest.mark.long
@pytest.mark.parametrize("table_up_to", [TABLE_UP_TO, 0])
@pytest.mark.parametrize("key", [0, 1, -1, 2**63, 0x123456789ABCDEF])
def test_all_sizes_up_to_5000_are_bijections(key: int, table_up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_UP_TO", table_up_to)
    assert [n for n in range(5001) if not is_bijection(n, key)] == []


@pytest.mark.long
@pytest.mark.parametrize("n", [2**20 - 1, 2**20 + 1, 1_000_003, 3162**2 + 1, 3162 * 3163 + 1, 9_999_991])
def test_larger_odd_sizes_are_bijections(n: int) -> None:
    assert all(is_bijection(n, key) for key in range(3))


def distinct(numbers: Array) -> int:
    """As `len(np.unique(numbers))`, which takes minutes for millions in some versions."""
    ascending = np.sort(numbers)
    return 1 + np.count_nonzero(ascending[1:] != ascending[:-1])


def repeats_nothing(n: int, m: int) -> None:
    """m positions of each kind: in a row, down a column of the network's rectangle, and anywhere."""
    height = -(-n // (math.isqrt(n - 1) + 1))
    anywhere = (hashes(n, np.arange(m)) % np.uint64(n)).astype(np.int64)
    for chosen in (np.arange(m), np.arange(m) * height % n, anywhere):
        numbers = Permutation(n, n).take(chosen)
        assert 0 <= numbers.min() <= numbers.max() < n
        assert distinct(numbers) == distinct(chosen)
    assert m - distinct(anywhere) > 10  # repeats that a random function, which is no permutation, would have


@pytest.mark.parametrize("n", [9_999_991, 99_999_989, 2**27 + 1, 10**8 + 7])
def test_large_odd_sizes_repeat_nothing(n: int) -> None:
    repeats_nothing(n, 100_000)


@pytest.mark.long
@pytest.mark.parametrize("n", [2**31 - 1, 2**32 + 15, 10**10 + 19, 10**11 + 3, 10**12 + 39])
def test_larger_odd_sizes_repeat_nothing(n: int) -> None:
    repeats_nothing(n, 8_000_000)
