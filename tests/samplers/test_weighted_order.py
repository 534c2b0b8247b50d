from __future__ import annotations

import math
import tracemalloc
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stoker._core.hashing import hashes
from stoker.samplers import weighted_order as module
from stoker.samplers.weighted_order import DrawnOrder, RacedOrder, Sums, walk

WEIGHTS = np.array([0.5, 0.0, 3.0, 1.0, 0.0, 2.5])
SMALLEST, LARGEST = 5e-324, 1.7e308


def drawn(weights: Any, size: int, key: int) -> np.ndarray:
    return DrawnOrder(Sums(np.asarray(weights, float)), size, key).take(np.arange(size))


def raced(weights: Any, size: int, key: int) -> np.ndarray:
    return RacedOrder(np.asarray(weights, float), size, key).take(np.arange(size))


def shares(weights: Any) -> list[Fraction]:
    """The exact probability of each index: how many of all 2**64 numbers fall on it, found by bisection."""
    sums = Sums(np.asarray(weights, float))
    index = np.arange(len(weights))
    begins = np.zeros(len(weights), np.uint64)  # the last number known to fall before an index, or zero
    for bit in range(63, -1, -1):
        further = begins | np.uint64(1 << bit)
        begins = np.where(sums.find(further) < index, further, begins)
    first_falls_on = int(sums.find(np.zeros(1, np.uint64))[0])
    counts = [int(begin) + (i > first_falls_on) for i, begin in enumerate(begins)] + [2**64]
    return [Fraction(after - begin, 2**64) for begin, after in pairwise(counts)]


def expected(weights: Any) -> list[Fraction]:
    exact = [Fraction(float(weight)) for weight in weights]
    return [weight / sum(exact) for weight in exact]


def deviations(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square, in standard deviations from its mean."""
    mean = counts.sum() * probabilities / probabilities.sum()
    freedom = counts.size - 1
    return float((((counts - mean) ** 2 / mean).sum() - freedom) / math.sqrt(2 * freedom))


# A change of one of these changes the order of epochs that models were trained with.
HARMONIC = tuple(1 / n for n in range(1, 3000))
GOLDEN = {
    (tuple(WEIGHTS.tolist()), 0): ([5, 2, 5, 2, 5, 5, 2, 5], [3, 5, 2, 0]),
    (tuple(WEIGHTS.tolist()), 2**64 - 1): ([2, 5, 2, 3, 3, 5, 2, 3], [2, 3, 0, 5]),
    (HARMONIC, 42): ([687, 15, 1526, 0, 99, 39, 54, 23], [282, 61, 1434, 1983, 18, 277, 80, 3, 7, 694]),
    ((5e-324, 0.0, 1.5e-323), 7): ([2, 2, 2, 2, 0, 2, 2, 2], [2, 0]),
    ((1.7e308, 1.0, 1e308), 7): ([0, 0, 0, 2, 0, 0, 0, 2], [2, 0, 1]),
}


@pytest.mark.parametrize(("weights", "key"), GOLDEN)
def test_the_orders_never_change(weights: tuple[float, ...], key: int) -> None:
    positions = np.array([0, 1, 2, 3, 4, 5, 2**40, 2**62 - 1])
    one_by_one = DrawnOrder(Sums(np.array(weights)), 2**62, key).take(positions).tolist()
    assert module.FORMAT_VERSION == 1
    assert (one_by_one, raced(weights, len(GOLDEN[weights, key][1]), key).tolist()) == GOLDEN[weights, key]


def test_sums_and_times_never_change_in_any_bit() -> None:
    sums = Sums(np.array([1 / 3, 0.1, 1.7e-12]))
    assert sums._ends.tolist() == [6148914691236516864, 7993589098607472128, 7993589098638831593]
    bits = np.array([0, 1, 2**53, 2**62, 2**63, 2**64 - 2**60, 2**64 - 1], np.uint64)
    assert module._arrivals(np.full(7, 0.1), bits).tolist() == [
        -613375097516432451,
        -613375097516432451,
        -379185933422513369,
        -337600664862415238,
        -332140472518574080,
        -323133273263833088,
        -305206835684573184,
    ]


# With replacement


@pytest.mark.parametrize(
    "weights",
    [
        WEIGHTS,
        10.0 ** np.random.default_rng(1).uniform(-12, 0, 300),
        [1.0, *[2.0**-62] * 50, 0.0, *[2.0**-60] * 50],
        [SMALLEST, 0.0, 3 * SMALLEST],
        [LARGEST, SMALLEST, LARGEST, 1e300],
    ],
)
def test_probabilities_are_as_exact_as_promised(weights: Any) -> None:
    n = len(weights)
    for share, exact in zip(shares(weights), expected(weights), strict=True):
        assert abs(share - exact) < Fraction(1, 2**61) + exact * n / 2**62


@pytest.mark.parametrize("weights", [[1, 2, 3], [2**40, 0, 1, 2**20 + 1], range(300), [7]])
def test_probabilities_of_integers_are_exact_to_64_bits(weights: Any) -> None:
    for share, exact in zip(shares(weights), expected(weights), strict=True):
        assert abs(share - exact) <= Fraction(1, 2**64)


def test_many_tiny_weights_behind_a_huge_one_keep_their_share() -> None:
    tiny = 2.0**-56
    weights = np.array([1.0] + [tiny] * 2**18)
    assert np.cumsum(weights)[-1] == 1.0  # lost in float64
    # Of all numbers the last 2**26 are theirs, 2**8 for each.
    found = Sums(weights).find(np.array([2**64 - 2**27, *(2**64 - 2**26 + 2**23 * i for i in range(8))], np.uint64))
    assert found[0] == 0
    assert np.abs(found[1:] - np.arange(8) * 2**15).max() <= 1


@pytest.mark.parametrize("weights", [[0, 1, 0, 0, 2, 0], [0, SMALLEST, 0, LARGEST, 0], [0, 0, 5], [5, 0, 0]])
def test_a_weight_of_zero_has_no_share(weights: list[float]) -> None:
    assert all(share == 0 for share, weight in zip(shares(weights), weights, strict=True) if weight == 0)
    ends = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    assert all(weights[index] > 0 for index in Sums(np.array(weights, float)).find(ends))


def test_drawn_indices_have_the_right_frequencies() -> None:
    weights = np.random.default_rng(5).exponential(size=100) ** 2
    counts = np.bincount(drawn(weights, 200_000, 1), minlength=100)
    assert abs(deviations(counts, weights)) < 5


def test_neighbours_and_epochs_are_independent() -> None:
    weights = np.array([1.0, 2, 3, 4])
    both = np.outer(weights, weights).ravel()
    first, second = drawn(weights, 100_000, 8), drawn(weights, 100_000, 9)
    for a, b in ((first[:-1], first[1:]), (first, second)):
        assert abs(deviations(np.bincount(a * 4 + b, minlength=16), both)) < 5


def test_more_weights_than_torchs_limit_work() -> None:
    n = 2**24 + 3
    weights = np.zeros(n)
    weights[[5, n - 1]] = 1.0, 3.0
    places, counts = np.unique(drawn(weights, 4000, 0), return_counts=True)
    assert places.tolist() == [5, n - 1]
    assert abs(counts[0] - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)


def test_sums_take_eight_bytes_for_each_weight() -> None:
    n = 500_000
    weights = np.ones(n)
    tracemalloc.start()
    try:
        kept = Sums(weights)
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept.find(np.zeros(1, np.uint64))) == 1
    assert current < 8 * n + 10_000
    assert peak < 8 * n + 1_000_000


# Without replacement


def test_first_three_ranks_have_the_right_frequencies() -> None:
    counts = dict.fromkeys([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], 0)
    weights = [1, 2, 3]
    for key in range(4000):
        counts[tuple(raced(weights, 3, key).tolist())] += 1
    exact = [weights[a] / 6 * weights[b] / (6 - weights[a]) for a, b, _ in counts]
    assert abs(deviations(np.array(list(counts.values())), np.array(exact))) < 5


def test_heavy_weights_come_early_as_often_as_expected() -> None:
    n, m = 100_000, 1000
    first = raced(np.where(np.arange(n) % 2, 3.0, 1.0), m, 3)
    assert len(set(first.tolist())) == m
    assert abs((first % 2).sum() - 0.75 * m) < 5 * math.sqrt(m * 0.75 * 0.25)
    tenths = np.bincount(first * 10 // n, minlength=10)
    assert abs(deviations(tenths, np.ones(10))) < 5


def test_extreme_weights_are_drawn_and_zero_never() -> None:
    weights = np.repeat([0.0, SMALLEST, 1e-300, LARGEST, 1.0], 50)
    order = raced(weights, 200, 12)
    assert len(set(order.tolist())) == 200
    assert weights[order].tolist() == sorted(weights[weights > 0].tolist(), reverse=True)
    assert order.tolist() != sorted(order.tolist())


def test_a_part_is_the_beginning_of_the_whole() -> None:
    whole = raced(HARMONIC, len(HARMONIC), 4)
    assert sorted(whole.tolist()) == list(range(len(HARMONIC)))
    for size in (1, 2, 1000):
        assert raced(HARMONIC, size, 4).tolist() == whole[:size].tolist()


def test_equal_arrivals_are_ordered_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hashes", lambda _, numbers: (numbers % 3).astype(np.uint64) << np.uint64(60))
    weights = np.ones(3000)
    expected_order = sorted(range(3000), key=lambda index: (index % 3, index))
    assert raced(weights, 3000, 0).tolist() == expected_order
    assert raced(weights, 1500, 0).tolist() == expected_order[:1500]
    assert len(RacedOrder(weights, 1500, 0)) == 1500


def test_times_compare_as_exact_quotients_do() -> None:
    generator = np.random.default_rng(2)
    weights = np.ldexp(generator.uniform(0.5, 1, 400), generator.integers(-1073, 1024, 400))
    bits = hashes(1, np.arange(400))
    exact = [Fraction(time) / Fraction(weight) for time, weight in zip(module._exponential(bits), weights, strict=True)]
    assert np.argsort(module._arrivals(weights, bits)).tolist() == sorted(range(400), key=exact.__getitem__)


def test_the_logarithm_is_exact_to_fifty_bits() -> None:
    corners = [0, 2, 4, *(1 << bit for bit in range(1, 64)), *(2**64 - (1 << bit) for bit in range(1, 64))]
    near_root = [int(2**64 * (1 - math.sqrt(0.5) * factor)) for factor in (0.999999, 1.0, 1.000001)]
    bits = np.concatenate([np.array(corners + near_root, np.uint64), hashes(0, np.arange(300))])
    with localcontext() as context:
        context.prec = 60
        for number, time in zip(bits.tolist(), module._exponential(bits).tolist(), strict=True):
            exact = -(1 - Decimal(number >> 1 | 1) / 2**63).ln() / Decimal(2).ln()
            assert abs(Decimal(time) - exact) < exact / 2**50


# Both


@pytest.mark.parametrize("order_of", [drawn, raced])
def test_blocks_do_not_show(order_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = order_of(HARMONIC, 2000, 1).tolist()
    monkeypatch.setattr(module, "_BLOCK", 64)
    assert order_of(HARMONIC, 2000, 1).tolist() == whole


@pytest.mark.parametrize("order", [DrawnOrder(Sums(WEIGHTS), 40_000, 1), RacedOrder(np.ones(40_000), 40_000, 1)])
def test_an_order_is_a_function_of_the_position(order: Any) -> None:
    positions = np.random.default_rng(0).integers(0, 40_000, 300)
    many = order.take(positions)
    assert many.dtype == np.int64
    assert [order.take(positions[i : i + 1])[0] for i in range(300)] == many.tolist()
    assert order.take(positions[:0]).tolist() == []
    assert list(walk(order)) == order.take(np.arange(len(order))).tolist()
    for position in (-1, 40_000):
        with pytest.raises(IndexError, match=f"position {position} is outside of an order of 40000 indices"):
            order.take(np.array([0, position]))
