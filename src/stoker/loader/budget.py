"""How many bad samples an epoch may have: pure, numbers in, a reason to stop out."""

from __future__ import annotations

import copy
import math
import numbers
from typing import Any

from stoker.loader import arguments

DEFAULT_COUNT = 100
"""Errors in an epoch: more than anybody looks through one by one. A few bad files in a large dataset are everyday life
and should not end a night's run; a hundred are a broken disk or a bug, also where they are few among billions."""

DEFAULT_RATE = 0.01
"""Errors by samples seen: what is left is still the dataset that was meant. A run on 1,000 samples does not lose 100 of
them, as the count alone would allow."""

FEW = 10
"""Errors that the rate lets pass: one bad sample in the first batch is a rate of a third, and bad luck."""


class ErrorBudget:
    """Counts samples and errors since the epoch began, and says when there are too many.

    Args:
        max_errors: errors in an epoch that are allowed; None for any number.
        max_error_rate: errors by samples seen, from 0 to 1, that are allowed beyond the first `FEW`; 0 allows none at
            all, and None any number.

    Raises:
        ValueError, TypeError: not such numbers.
    """

    def __init__(self, max_errors: int | None = DEFAULT_COUNT, max_error_rate: float | None = DEFAULT_RATE) -> None:
        self._most, self._rate = check(max_errors, max_error_rate)
        self.rewind()

    def rewind(self) -> None:
        """A new epoch begins, with all of its budget."""
        self._samples = self._errors = 0

    def add(self, samples: int, errors: int) -> str | None:
        """Counts a batch.

        Args:
            samples: how many the sampler chose, with those that failed.
            errors: how many of them failed.

        Returns:
            What has been exceeded, in words with numbers, or None.
        """
        self._samples += samples
        self._errors += errors
        if not self._errors:
            return None
        if self._most is not None and self._errors > self._most:
            return f"{self._counts()}, and max_errors={self._most} allows {self._most:,}"
        if self._rate is not None and self._errors > (allowed := self._allowed_by(self._rate)):
            return f"{self._counts()}, and max_error_rate={self._rate:g} allows {allowed:,} of so many"
        return None

    def foreseen(self, samples: int, errors: int) -> str | None:
        """What `add` would return for a batch, which is not counted."""
        return copy.copy(self).add(samples, errors)

    def _allowed_by(self, rate: float) -> int:
        rounded = math.floor(rate * self._samples + 1e-6)  # 0.29 * 100 is a little less than 29
        return max(FEW, rounded) if rate else 0

    def _counts(self) -> str:
        samples = max(self._samples, self._errors)
        share = f"{self._errors / samples:.2%}"
        return f"{self._errors:,} of {samples:,} samples of this epoch ({share}) were bad"


def check(max_errors: Any, max_error_rate: Any) -> tuple[int | None, float | None]:
    """The arguments as Python's numbers.

    Raises:
        ValueError, TypeError: they are not what `ErrorBudget` takes.
    """
    return (
        None if max_errors is None else arguments.count("max_errors", max_errors, "None"),
        None if max_error_rate is None else _rate("max_error_rate", max_error_rate),
    )


def _rate(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} should be a number from 0 to 1, or None, but got {name}={value!r}")
    if not 0 <= (rate := float(value)) <= 1:  # NaN is not either
        raise ValueError(f"{name} should be a number from 0 to 1, but got {name}={value!r}")
    return rate
