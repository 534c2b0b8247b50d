"""What happens beside the batches, told to whoever wants to hear: warnings, logging, `on_event`, the ledger.

Shared by an iterator and its backend. It knows neither, so that an iterator that is dropped ends at once.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
import weakref
from collections import deque

import numpy as np

from stoker import errors
from stoker._engine import interruption
from stoker._engine.base import SEVERAL, Where
from stoker._engine.process import fates
from stoker._events import Event, Listener
from stoker.loader.ledger import Ledger, plain_index
from stoker.loader.plan import Step

_log = logging.getLogger("stoker")
_log.addHandler(logging.NullHandler())  # else Python prints what the warning has said already

_LEVELS = {**dict.fromkeys(("skip", "auto", "hint", "retired"), logging.INFO), "quarantine_failed": logging.ERROR}
_SILENT = ("skip", "auto")
"""What somebody asked for is no matter for a warning."""
_HINTS = ("hint", "crowded")
"""What is well meant depends on the clock, or the machine: it must not fail a run in which warnings are errors."""


ACCOUNTED = ("blamed", "zygote_death")
"""What says before a batch is delivered that it cannot be."""


class Witness:
    """Tells of events, and where in the epoch a unit is.

    Args:
        ledger: counts them.
        listener: the user's `on_event`.
        told: kinds of which there was a warning; the loader's own, so that each comes once.

    Attributes:
        steps: the steps of the units that are under way.
        later: what `flush` is to tell.
        accounts: who else hears of each event of `ACCOUNTED`, last; what it raises passes through. Weak: it knows us.
    """

    def __init__(self, ledger: Ledger, listener: Listener | None, told: set[str]) -> None:
        self._ledger = ledger
        self._listener = listener
        self._told = told
        self.steps: dict[int, Step] = {}
        self.later: deque[Event] = deque()
        self.accounts: weakref.WeakMethod[Listener] | None = None

    def tell_later(self, event: Event) -> None:
        """As `tell`, when `flush` is called: where what the user's listener raises does no harm."""
        self.later.append(event)

    def flush(self) -> None:
        """Tells what was to be told later."""
        while self.later:
            self.tell(self.later.popleft())

    @interruption.harmless
    def tell(self, event: Event) -> None:
        """Counts, logs, and passes on an event; the first of each kind is a warning too. What the user's listener
        raises passes through."""
        self._ledger.event(event)
        _log.log(_LEVELS.get(event.kind, logging.WARNING), event.message)
        try:
            if self._listener is not None:
                self._listener(event)
            is_told = event.kind in _SILENT or event.kind in self._told or "ends" in event.details
            if not is_told:
                self._told.add(event.kind)
                with contextlib.suppress(errors.StokerWarning) if event.kind in _HINTS else contextlib.nullcontext():
                    warnings.warn(event.message, errors.StokerWarning, stacklevel=users_level())
        finally:
            account = self.accounts() if self.accounts is not None and event.kind in ACCOUNTED else None
            if account is not None:
                account(event)

    def learned(self, row_seconds: float | None, growth: int | None) -> None:
        """What a sample costs a worker, and a batch takes of it: the ledger keeps it for the next epoch's workers."""
        self._ledger.row_seconds, self._ledger.growth = row_seconds, growth

    def marked(self, objects: int, seconds: float) -> None:
        """What was marked immortal for workers: the ledger keeps it for the next epoch's."""
        self._ledger.marked = objects, seconds

    def locate(self, unit: int, mark: int) -> Where:
        """Where that is: "batch 7, sample 30"."""
        step = self.steps.get(unit)
        if step is None:
            return Where("a batch that is not wanted any more")
        if step.indices is None or isinstance(step.indices, dict):
            return Where(f"a batch of its stream, {fates.DOING.get(mark, f'sample {mark + 1} of it')}")
        told = f"batch {step.number}, {self._sample(step, mark)}"
        known = isinstance(step.indices, (list, np.ndarray)) and 0 <= mark < len(step.indices)
        return Where(told, step.number, plain_index(step.indices[mark]) if known else None)

    def _sample(self, step: Step, mark: int) -> str:
        if mark in fates.DOING:
            return fates.DOING[mark]
        if mark <= SEVERAL:
            first = self._sample(step, SEVERAL - mark)
            return f"{first}, or another that was made at the same time (threads_per_worker)"
        indices = step.indices.tolist() if isinstance(step.indices, np.ndarray) else step.indices
        if not isinstance(indices, list):
            return f"sample {indices!r}"
        return f"sample {indices[mark]!r}" if mark < len(indices) else "a sample"


def users_level() -> int:
    """Stack level, for the caller's `warnings.warn`, of the nearest code that is not ours."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "stoker":
        level, frame = level + 1, frame.f_back
    return level
