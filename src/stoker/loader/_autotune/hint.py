"""The hint of a loader without workers to a training loop that waits for it: the number of workers that would help.
Pure: no clock.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.loader._autotune.wait_share import WAITS

BATCHES, SECONDS = 20, 2.0
"""Batches and seconds that are measured. The first batch, which opens files, does not count."""

HAND_OVER = 0.001
"""Seconds that a worker's batch costs the worker, and the trainer, beside its making: more than it mostly does."""

GAIN = 0.8
"""A training loop must take less than this part of its time, for workers to be worth it."""


class Hint:
    """Sums up the time of batches. One for each loader, for all its epochs.

    Attributes:
        is_given: whether the hint was given; it is given once.
    """

    def __init__(self) -> None:
        self.is_given = False
        self._count = -1
        self._own = self._waited = 0.0

    def delivered(self, own: float, waited: float, cpus: Callable[[], int], batches: int = 1) -> str | None:
        """Counts delivered batches; returns the hint if it is due.

        Args:
            own: the training loop's own seconds since the previous batches.
            waited: seconds that it waited.
            cpus: returns the number of CPUs for this process; called only if needed, since it reads files.
            batches: number of batches.
        """
        self._count += batches
        if not self._count:
            return None
        self._own += own
        self._waited += waited
        spent = self._own + self._waited
        if self._count < BATCHES or spent < SECONDS:
            return None
        own, cost = self._own / self._count, self._waited / self._count
        self._count, self._own, self._waited = 0, 0.0, 0.0  # it may be different later
        number = workers_for(own, cost, cpus())
        if cost <= WAITS * (own + cost) or number == 0:
            return None
        self.is_given = True
        return (
            f"the training loop waits {cost / (own + cost):.0%} of its time, {1e3 * cost:.3g} ms for each batch, "
            "because num_workers=0 makes batches when they are asked for. "
            f"num_workers={number} would make them meanwhile; num_workers='auto' finds the number by itself."
        )


def workers_for(own: float, cost: float, cpus: int) -> int:
    """Returns the number of workers to use; 0 if they would not help.

    Args:
        own: seconds of the training loop's own for a batch.
        cost: seconds to make a batch.
        cpus: for all of them.
    """

    def seconds(workers: int) -> float:
        whole = own + cost + 2 * HAND_OVER
        return max(own + HAND_OVER, (cost + HAND_OVER) / workers, whole / cpus)

    best = min(map(seconds, range(1, cpus + 1)))
    if best > GAIN * (own + cost):
        return 0
    return next(workers for workers in range(1, cpus + 1) if seconds(workers) <= 1.05 * best)
