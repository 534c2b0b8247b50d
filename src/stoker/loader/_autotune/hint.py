"""The hint of a loader without workers to a training loop that waits for it: the number of workers that would help.
Pure: no clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stoker._core.machine import cpus
from stoker._engine.backend import Answer, JobFactory, PlainMaker, PlainPlace
from stoker._engine.serial import SerialBackend
from stoker.events import WorkersWouldHelp
from stoker.loader._accounting.ledger import EventDispatcher

BATCHES, SECONDS = 20, 2.0
"""Batches and seconds that are measured. The first batch, which opens files, does not count."""

HAND_OVER_SECONDS = 0.001
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
        if cost <= WAITING_SHARE * (own + cost) or number == 0:
            return None
        self.is_given = True
        return (
            f"the training loop waits {cost / (own + cost):.0%} of its time, {1e3 * cost:.3g} ms for each batch, "
            "because num_workers=0 makes batches when they are asked for. "
            f"num_workers={number} would make them meanwhile; num_workers='auto' finds the number by itself."
        )


def workers_for(own: float, cost: float, cpus: int) -> int:
    """Returns the number of workers with which a training loop waits least; 0 if they would not help.

    Args:
        own: seconds of the training loop's own for a batch.
        cost: seconds to make a batch.
        cpus: for all of them.
    """

    def seconds(workers: int) -> float:
        whole = own + cost + 2 * HAND_OVER_SECONDS
        return max(own + HAND_OVER_SECONDS, (cost + HAND_OVER_SECONDS) / workers, whole / cpus)

    best = min(map(seconds, range(1, cpus + 1)))
    if best > GAIN * (own + cost):
        return 0
    return next(workers for workers in range(1, cpus + 1) if seconds(workers) <= 1.05 * best)


# The serial backend of a loader with `num_workers=0`, which gives a hint once if the training loop waits for it.


TOGETHER = 16
"""Batches that are noted at once while each is quick: to note one takes a tenth of the quickest."""

LONG = 0.1
"""Seconds of waiting after which fewer batches are recorded at once."""


class HintBackend(SerialBackend):
    """Runs units when their answers are requested, and measures the time.

    Args:
        job_factory: makes the job.
        hint: the loader's.
        dispatcher: reports the hint.
    """

    def __init__(self, job_factory: JobFactory, hint: Hint, dispatcher: EventDispatcher) -> None:
        super().__init__(job_factory)
        self._hint: Hint | None = None if hint.is_given else hint
        self._dispatcher = dispatcher
        self._waited = 0.0
        self._opened: float | None = None

    def plain(self, seed: int, place: PlainPlace) -> PlainMaker | None:
        make = super().plain(seed, place)
        if make is None or self._hint is None:
            return make
        count = 0

        def watched(indices: list[Any]) -> Any:
            nonlocal count
            began = time.perf_counter()
            batch = make(indices)
            now = time.perf_counter()
            self._waited += now - began
            count += 1
            if (count == TOGETHER or self._waited > LONG) and self._hint is not None:
                self._note(self._hint, now, count)
                count = 0
            return batch

        return watched

    def receive(self, timeout: float | None) -> Answer:
        if self._hint is None:
            return super().receive(timeout)
        began = time.perf_counter()
        answer = super().receive(timeout)
        now = time.perf_counter()
        self._waited += now - began
        if answer.kind == "batch":
            self._note(self._hint, now)
        return answer

    def _note(self, hint: Hint, now: float, batches: int = 1) -> None:
        before, waited = self._opened, self._waited
        self._opened, self._waited = now, 0.0
        if before is None:
            return
        message = hint.delivered(max(0.0, now - before - waited), waited, cpus.for_this_rank, batches)
        if message is not None:
            self._hint = None
            self._dispatcher.tell_later(WorkersWouldHelp(message=message))


# Shares of the training loop's time that it may wait for batches: the limits of every verdict.


WAITING_SHARE = 0.2
"""Share of its time from which on a training loop counts as waiting for data."""

NEGLIGIBLE_SHARE = 0.05
"""Share of its time up to which a training loop is bound by its own work."""
