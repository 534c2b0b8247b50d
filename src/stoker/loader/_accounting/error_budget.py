"""The number of bad samples that an epoch may have. Pure."""

from __future__ import annotations

import copy
import math

from stoker.loader._options.argument_checks import DEFAULT_MAX_ERROR_RATE, DEFAULT_MAX_ERRORS, check_error_budget

FEW = 10
"""Errors that the rate always allows: one bad sample in a small first batch is already a high rate."""


class ErrorBudget:
    """Counts samples and errors since the epoch began, and reports when there are too many.

    Args:
        max_errors: errors allowed in an epoch; None for any number.
        max_error_rate: errors per sample, from 0 to 1, allowed beyond the first `FEW`; 0 allows none at all, and None
            any number.

    Raises:
        ValueError, TypeError: the numbers are invalid.
    """

    def __init__(
        self, max_errors: int | None = DEFAULT_MAX_ERRORS, max_error_rate: float | None = DEFAULT_MAX_ERROR_RATE
    ) -> None:
        self._most, self._rate = check_error_budget(max_errors, max_error_rate)
        self.rewind()

    def rewind(self) -> None:
        """Begins a new epoch, with a full budget."""
        self._samples = self._errors = 0

    def add(self, samples: int, errors: int) -> str | None:
        """Counts a batch.

        Args:
            samples: chosen by the sampler, including those that failed.
            errors: samples that failed.

        Returns:
            The exceeded limit as text, or None.
        """
        self._samples += samples
        self._errors += errors
        if not self._errors:
            return None
        if self._most is not None and self._errors > self._most:
            return f"{self._counts()}, and max_errors={self._most} allows {self._most:,}"
        if self._rate is not None and self._errors > (allowed := self._allowed_by(self._rate)):
            return f"{self._counts()}, and max_error_rate={self._rate:g} allows {allowed:,}"
        return None

    def foreseen(self, samples: int, errors: int) -> str | None:
        """Returns the result of `add` for a batch, without counting it."""
        return copy.copy(self).add(samples, errors)

    def _allowed_by(self, rate: float) -> int:
        rounded = math.floor(rate * self._samples + 1e-6)  # 0.29 * 100 is a little less than 29
        return max(FEW, rounded) if rate else 0

    def _counts(self) -> str:
        samples = max(self._samples, self._errors)
        share = f"{self._errors / samples:.2%}"
        return f"{self._errors:,} of {samples:,} samples of this epoch ({share}) were bad"
