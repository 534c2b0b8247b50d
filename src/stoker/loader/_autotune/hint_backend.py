"""The serial backend of a loader with `num_workers=0`, which gives a hint once if the training loop waits for it."""

from __future__ import annotations

import time
from typing import Any

from stoker._core.machine import cpu_allocation
from stoker._engine.backend import Answer, JobFactory, PlainMaker, PlainPlace
from stoker._engine.serial import SerialBackend
from stoker.events import WorkersWouldHelp
from stoker.loader._accounting.event_dispatcher import EventDispatcher
from stoker.loader._autotune.hint import Hint

TOGETHER = 16
"""Batches that are noted at once while each is quick: to note one takes a tenth of the quickest."""

LONG = 0.1
"""Seconds of waiting after which fewer batches are recorded at once."""


class HintBackend(SerialBackend):
    """Runs units when their answers are requested, and measures the time.

    Args:
        recipe: makes the job.
        hint: the loader's.
        witness: reports the hint.
    """

    def __init__(self, recipe: JobFactory, hint: Hint, witness: EventDispatcher) -> None:
        super().__init__(recipe)
        self._hint: Hint | None = None if hint.is_given else hint
        self._witness = witness
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
        said = hint.delivered(max(0.0, now - before - waited), waited, cpu_allocation.for_this_rank, batches)
        if said is not None:
            self._hint = None
            self._witness.tell_later(WorkersWouldHelp(message=said))
