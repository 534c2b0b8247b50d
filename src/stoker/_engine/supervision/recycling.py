"""Decides which workers to replace before they do harm: a pure policy, facts in, decisions out. No clock, no I/O."""

from __future__ import annotations

SHARE = 0.5
"""Share of the memory that is free at the start by which all workers together may grow, without `memory_budget`. A
worker that keeps all that it reads retires there, before the kernel kills it.
"""


class RecyclingPolicy:
    """Counts each worker's samples, and its growth.

    Args:
        most_samples: number of samples after which a worker retires; None for never.
        most_bytes: private memory that it may grow by since its birth; None for any.

    Attributes:
        counts: whether it needs a report on every unit; else only from time to time.
        most_bytes: may also be set once it is known.
    """

    def __init__(self, most_samples: int | None, most_bytes: int | None) -> None:
        self.counts = most_samples is not None
        self.most_bytes = most_bytes
        self._most_samples = most_samples
        self._samples: dict[int, int] = {}
        self._at_first: dict[int, int] = {}
        self._grown: dict[int, int] = {}

    def born(self, worker: int) -> None:
        """Resets the counts for a new worker of this number."""
        self._samples[worker] = 0
        self._at_first.pop(worker, None)
        self._grown.pop(worker, None)

    def made(self, worker: int, samples: int) -> None:
        """Adds to the worker's samples."""
        self._samples[worker] += samples

    def has(self, worker: int, size: int) -> None:
        """Records the worker's private memory in bytes; the first value counts as that of its birth."""
        self._grown[worker] = size - self._at_first.setdefault(worker, size)

    def reason(self, worker: int) -> str | None:
        """Returns the reason for the worker to retire, in words, or None."""
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
