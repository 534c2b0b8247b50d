"""Steady growth of a process's memory: leaks of many kinds are found, what levels off or jumps is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from stoker.diagnostics.run_findings import LIFE, Point, slope, steady_growth

MIB = 1 << 20


def readings(size: Callable[[float], float], seconds: float = 60.0, every: float = 1.0) -> list[Point]:
    """Readings of a process whose size, in MiB, is a function of its batches, ten in a second."""
    return [Point(n * every, 10 * n * every, MIB * size(10 * n * every)) for n in range(int(seconds / every) + 1)]


def noisy(scatter: float) -> Callable[[float], float]:
    noise = random.Random(7)
    return lambda batches: 100 + noise.gauss(0, scatter)


def test_leak_is_found_with_its_rate() -> None:
    found = steady_growth(readings(lambda batches: 100 + 0.2 * batches))
    assert found is not None
    assert found.rate == pytest.approx(2 * MIB) and found.seconds == pytest.approx(40.0)


def test_wild_readings_and_noise_do_not_move_it() -> None:
    noise = random.Random(3)
    points = readings(lambda batches: 100 + 0.2 * batches + noise.gauss(0, 2) + (300 if noise.random() < 0.1 else 0))
    found = steady_growth(points)
    assert found is not None and found.rate == pytest.approx(2 * MIB, rel=0.1)


def test_leak_is_found_where_batches_come_at_changing_rates() -> None:
    points = [
        Point(second, batches, MIB * (100 + 0.5 * batches))
        for second, batches in enumerate([*range(0, 100, 10), *([100] * 20), *range(100, 120), *range(120, 400, 20)])
    ]
    found = steady_growth(points)
    assert found is not None and found.rate * found.seconds == pytest.approx(MIB * 0.5 * 248, rel=0.05)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(lambda batches: 100, id="even"),
        pytest.param(lambda batches: 100 + 0.001 * batches, id="little"),
        pytest.param(lambda batches: 300 - 0.2 * batches, id="falls"),
        pytest.param(lambda batches: 100 + min(batches, 200), id="warm-up"),
        pytest.param(lambda batches: 100 + min(batches, 400), id="cache that is full at two thirds"),
        pytest.param(lambda batches: 100 + 500 * (1 - math.exp(-batches / 250)), id="cache that fills ever slower"),
        pytest.param(lambda batches: 100 + 200 * (batches > 300), id="jump"),
        pytest.param(lambda batches: 100 + batches % 150, id="sawtooth"),
        pytest.param(noisy(30), id="noise"),
    ],
)
def test_other_curves_are_none(size: Callable[[float], float]) -> None:
    assert steady_growth(readings(size)) is None


def test_short_lives_and_few_readings_are_not_judged() -> None:
    assert steady_growth(readings(lambda batches: batches, seconds=LIFE - 1, every=0.25)) is None
    assert steady_growth(readings(lambda batches: batches, every=10.0)) is None
    assert steady_growth([]) is None


def test_worker_without_batches_is_not_judged() -> None:
    assert steady_growth([Point(second, 5, MIB * second) for second in range(60)]) is None


def test_slope_of_few_points() -> None:
    assert slope([]) == slope([(1, 2)]) == slope([(1, 2), (1, 3)]) == 0
    assert slope([(0, 0), (1, 2), (2, 4), (3, 6), (4, 99)]) == pytest.approx(2)
