"""What pairs say together: two that take turns, some pairs in each life, and the ratios of the two blocks of a pair.

Both see the same machine, also where its speed changes all the time. After some pairs both end, and others are born:
how their memory lies is luck that lasts as long as a process, so pairs of one life share it.

Shown is the mean of the ratios without the highest and the lowest quarter, and the ends of its interval (95 %, by
bootstrap: lives are drawn, each with all of its pairs; to draw pairs of theirs as well would count their chance twice,
see Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8).
"""

from __future__ import annotations

import random
import statistics

DRAWN = 2000


def middle(ratios: list[float]) -> float:
    """The mean of the middle half."""
    ratios = sorted(ratios)
    cut = len(ratios) // 4
    return statistics.fmean(ratios[cut : len(ratios) - cut])


def interval(lives: list[list[float]]) -> tuple[float, float]:
    """The ends of the middle's interval. Pairs of the same life share their luck."""
    chance = random.Random(0)
    drawn = []
    for _ in range(DRAWN):
        chosen = chance.choices(lives, k=len(lives))
        drawn.append(middle([ratio for life in chosen for ratio in life]))
    drawn.sort()
    return drawn[DRAWN // 40], drawn[-DRAWN // 40]
