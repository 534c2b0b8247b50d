"""Whether a process's memory grows steadily: numbers over time in, the rate out. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

LIFE = 10.0
"""Seconds of use from which on the growth of a process is judged."""

READINGS = 10
"""Readings of its memory from which on it is judged: those of large processes are more than a second apart."""

WARM_UP = 1 / 3
"""Share of the batches at the beginning that do not count: imports, files, the allocator's pools, small caches."""

PARTS = 3
"""Parts of the rest, by batches; from each to the next the process must have grown."""

EVEN = 0.7
"""How much as fast as from the first part to the second it must grow from the second to the third, and the other way
round. A cache that fills slows down: one that has two thirds of its final size or more is taken to level off."""

LEAST = 16 << 20
"""Bytes that the process must have grown by in the rest. glibc's arenas and Python's pools move by a few MiB."""

SCATTER = 3.0
"""How many times the scatter of the readings around the line that must be: batches of many sizes scatter."""

PAIRED = 60
"""Readings, evenly chosen, of which the slopes of all pairs are compared."""


class Point(NamedTuple):
    """A process's memory, in bytes, after some batches of its loader and some seconds of use."""

    seconds: float
    batches: float
    size: float


@dataclass(frozen=True)
class SteadyGrowth:
    """The growth of a process after its warm-up.

    Attributes:
        rate: bytes per second.
        seconds: over which it was seen.
    """

    rate: float
    seconds: float


def is_long_enough(points: Sequence[Point]) -> bool:
    """Returns whether a process lived long enough to judge its growth."""
    return len(points) >= READINGS and points[-1].seconds - points[0].seconds >= LIFE


def steady_growth(points: Sequence[Point]) -> SteadyGrowth | None:
    """Returns the growth of a process; None if it does not grow, levels off, or did not live long enough.

    Judged is the growth by the batch, which does not depend on how fast these come. It is the median of the slopes of
    all pairs of readings (Theil, 1950; Sen, 1968), which up to 29 % of wild readings do not move.

    Args:
        points: in order.
    """
    if not is_long_enough(points) or points[-1].batches <= points[0].batches:
        return None
    begin, end = points[0].batches, points[-1].batches
    counted = [one for one in points if one.batches >= begin + WARM_UP * (end - begin)]
    first, batches, seconds = counted[0].batches, end - counted[0].batches, points[-1].seconds - counted[0].seconds
    if batches <= 0 or seconds <= 0:
        return None
    parts: list[list[Point]] = [[] for _ in range(PARTS)]
    for one in counted:
        parts[min(PARTS - 1, int(PARTS * (one.batches - first) / batches))].append(one)
    if not all(parts):
        return None
    middles = [(median(one.batches for one in part), median(one.size for one in part)) for part in parts]
    rates = [(size - before) / (at - earlier) for (earlier, before), (at, size) in itertools.pairwise(middles)]
    if min(rates) <= 0 or min(rates) < EVEN * max(rates):
        return None
    by_batch = slope([(one.batches, one.size) for one in counted])
    rest = [one.size - by_batch * one.batches for one in counted]
    middle = median(rest)
    scatter = 1.4826 * median(abs(size - middle) for size in rest)
    grown = by_batch * batches
    return SteadyGrowth(grown / seconds, seconds) if grown >= max(LEAST, SCATTER * scatter) else None


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns the median slope of all pairs of points, or of some points, evenly chosen; 0 for fewer than two."""
    some = points[:: -(-len(points) // PAIRED)] if points else points
    pairs = itertools.combinations(some, 2)
    return median([(y - b) / (x - a) for (a, b), (x, y) in pairs if x > a] or [0.0])
