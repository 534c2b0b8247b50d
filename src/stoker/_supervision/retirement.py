"""Which workers are to be replaced before they do harm: a pure policy, facts in, decisions out. No clock, no I/O."""

from __future__ import annotations

SHARE = 0.5
"""Without `memory_budget`: share of the memory that is free at the start which all workers together may grow by. One
that keeps what it reads ends there instead of in the kernel's hands."""


class Retirement:
    """Counts what each worker has made, and what it has grown by.

    Args:
        most_samples: from which on it retires; None for never.
        most_bytes: of private memory beyond what it was born with; None for any.

    Attributes:
        counts: whether it has to be told of every unit; else only from time to time.
        most_bytes: may also be set when it is known.
    """

    def __init__(self, most_samples: int | None, most_bytes: int | None) -> None:
        self.counts = most_samples is not None
        self.most_bytes = most_bytes
        self._most_samples = most_samples
        self._samples: dict[int, int] = {}
        self._at_first: dict[int, int] = {}
        self._grown: dict[int, int] = {}

    def born(self, worker: int) -> None:
        """Another begins under this number."""
        self._samples[worker] = 0
        self._at_first.pop(worker, None)
        self._grown.pop(worker, None)

    def made(self, worker: int, samples: int) -> None:
        """It has made so many samples more."""
        self._samples[worker] += samples

    def has(self, worker: int, size: int) -> None:
        """It has so many bytes of private memory now; the first time is what it was born with."""
        self._grown[worker] = size - self._at_first.setdefault(worker, size)

    def reason(self, worker: int) -> str | None:
        """Why it is to retire, in words, or None."""
        samples, grown = self._samples[worker], self._grown.get(worker, 0)
        if self._most_samples is not None and samples >= self._most_samples:
            return f"it has made {samples:,} samples (max_samples_per_worker={self._most_samples:,})"
        if self.most_bytes is not None and grown > self.most_bytes:
            return (
                f"its private memory has grown by {grown / 2**20:,.0f} MiB, and {self.most_bytes / 2**20:,.0f} are "
                "allowed for each worker: its equal part of half of memory_budget, or, where there is none, of half of "
                "what was free. The dataset keeps something of each sample: a cache without a bound, a list that grows?"
            )
        return None
