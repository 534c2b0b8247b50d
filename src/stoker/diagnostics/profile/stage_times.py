"""`StageTimes`: the durations of one stage, as sum, median and tails."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

KEPT = 1_000_000
"""Durations of a stage that are kept for median and tails, 8 bytes each; the sum and the longest count all."""


@dataclass(frozen=True)
class StageTimes:
    """The durations of one stage, in seconds.

    Attributes:
        count: number of them.
        seconds: their sum.
        median: the middle one.
        p95: the one that 95 % do not exceed.
        longest: the longest one.
    """

    count: int = 0
    seconds: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    longest: float = 0.0

    @property
    def mean(self) -> float:
        """Returns the sum divided by the number."""
        return self.seconds / self.count if self.count else 0.0

    def as_dict(self) -> dict[str, float]:
        """Returns the figures by name, with the mean."""
        return {
            "count": self.count,
            "seconds": self.seconds,
            "mean": self.mean,
            "median": self.median,
            "p95": self.p95,
            "longest": self.longest,
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> StageTimes:
        """Returns the times that `as_dict` gave."""
        return cls(*(values[name] for name in ("count", "seconds", "median", "p95", "longest")))


class Durations:
    """Collects durations."""

    def __init__(self) -> None:
        self._kept = array("d")
        self._count = 0
        self._seconds = self._longest = 0.0

    def add(self, seconds: float) -> None:
        """Counts a duration."""
        self._count += 1
        self._seconds += seconds
        self._longest = max(self._longest, seconds)
        if len(self._kept) < KEPT:
            self._kept.append(seconds)

    def extend(self, seconds: Sequence[float]) -> None:
        """Counts several durations."""
        self._count += len(seconds)
        self._seconds += sum(seconds)
        self._longest = max(self._longest, *seconds)
        self._kept.extend(seconds[: max(0, KEPT - len(self._kept))])

    def add_to_sum(self, seconds: float) -> None:
        """Adds to the sum what belongs to no single duration."""
        self._seconds += seconds

    @property
    def count(self) -> int:
        """Returns the number of durations."""
        return self._count

    @property
    def seconds(self) -> float:
        """Returns the sum of the durations."""
        return self._seconds

    def times(self) -> StageTimes:
        """Returns the figures that were counted until now."""
        if not self._count:
            return StageTimes()
        median, p95 = np.quantile(np.array(self._kept), (0.5, 0.95)).tolist()
        return StageTimes(self._count, self._seconds, median, p95, self._longest)
