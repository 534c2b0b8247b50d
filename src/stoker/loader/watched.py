"""The serial backend of a loader with `num_workers=0`, which says once if the training loop waits for it."""

from __future__ import annotations

import time

from stoker._engine.base import Answer, Recipe
from stoker._engine.serial import SerialBackend
from stoker._events import Event
from stoker._machine import shares
from stoker.loader.hint import Hint
from stoker.loader.witness import Witness


class WatchedBackend(SerialBackend):
    """Runs units where their answers are asked for, and measures what that takes.

    Args:
        recipe: makes the job.
        hint: the loader's.
        witness: who is told.
    """

    def __init__(self, recipe: Recipe, hint: Hint, witness: Witness) -> None:
        super().__init__(recipe)
        self._hint: Hint | None = None if hint.is_given else hint
        self._witness = witness
        self._waited = 0.0
        self._opened: float | None = None

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

    def _note(self, hint: Hint, now: float) -> None:
        before, waited = self._opened, self._waited
        self._opened, self._waited = now, 0.0
        if before is None:
            return
        said = hint.delivered(max(0.0, now - before - waited), waited, shares.for_this_rank)
        if said is not None:
            self._hint = None
            self._witness.tell_later(Event("hint", said))
