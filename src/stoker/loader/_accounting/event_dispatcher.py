"""Sends events beside the batches to their receivers: warnings, logging, `on_event`, the ledger.

Shared by an iterator and its backend. It refers to neither, so that a dropped iterator ends at once.
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
from stoker._engine.activity import Activity, Position
from stoker._engine.backend import Where
from stoker._engine.process.worker_events import DOING
from stoker._engine.process_guard import harmless
from stoker.events import Event, HelperDied, Listener, PoisonSample, plain_index
from stoker.loader._accounting.ledger import Ledger
from stoker.loader._epoch.plan import Step

_log = logging.getLogger("stoker")
_log.addHandler(logging.NullHandler())  # else Python prints the text of the warning again

_LEVELS = {**dict.fromkeys(("skip", "auto", "hint", "retired"), logging.INFO), "quarantine_failed": logging.ERROR}
_SILENT = ("skip", "auto")
"""Events that give no warning, because the user asked for them."""
_HINTS = ("hint", "memory_throttled")
"""Events that depend on the clock or the machine: they must not fail a run in which warnings are errors."""


ACCOUNTED = (PoisonSample, HelperDied)
"""Events that show before a delivery that a batch cannot be delivered."""


class EventDispatcher:
    """Sends events, and locates units in the epoch.

    Args:
        ledger: counts the events.
        listener: the user's `on_event`.
        told: kinds already warned of; owned by the loader, so that each kind warns once.

    Attributes:
        steps: the steps of the units in progress.
        later: events for `flush` to send.
        accounts: receives each event of `ACCOUNTED`, last; its errors pass through. Weak: it refers to this object.
    """

    def __init__(self, ledger: Ledger, listener: Listener | None, told: set[str]) -> None:
        self._ledger = ledger
        self._listener = listener
        self._told = told
        self.steps: dict[int, Step] = {}
        self.later: deque[Event] = deque()
        self.accounts: weakref.WeakMethod[Listener] | None = None

    def tell_later(self, event: Event) -> None:
        """Queues an event until `flush`, at which an error of the user's listener does no harm."""
        self.later.append(event)

    def flush(self) -> None:
        """Sends the queued events."""
        while self.later:
            self.tell(self.later.popleft())

    @harmless
    def tell(self, event: Event) -> None:
        """Counts, logs and passes on an event; the first of each kind is a warning too. Errors of the user's listener
        pass through.
        """
        self._ledger.event(event)
        _log.log(_LEVELS.get(event.kind, logging.WARNING), event.message)
        try:
            if self._listener is not None:
                self._listener(event)
            is_told = event.kind in _SILENT or event.kind in self._told or getattr(event, "ends", False)
            if not is_told:
                self._told.add(event.kind)
                with contextlib.suppress(errors.StokerWarning) if event.kind in _HINTS else contextlib.nullcontext():
                    warnings.warn(event.message, errors.StokerWarning, stacklevel=users_level())
        finally:
            account = self.accounts() if self.accounts is not None and isinstance(event, ACCOUNTED) else None
            if account is not None:
                account(event)

    def learned(self, row_seconds: float | None, growth: int | None, dearer: int) -> None:
        """Keeps a worker's cost of a sample, and its growth for a batch, in the ledger for the next epoch's workers,
        and in how many comparisons parts of batches cost more than whole ones.
        """
        self._ledger.row_seconds, self._ledger.growth, self._ledger.dearer = row_seconds, growth, dearer

    def marked(self, objects: int, seconds: float) -> None:
        """Keeps the number of objects marked immortal, and its time, in the ledger for the next epoch's workers."""
        self._ledger.marked = objects, seconds

    def unpickled(self, seconds: float, size: int) -> None:
        """Keeps a worker's cost of unpickling the dataset in the ledger, for `describe()`."""
        self._ledger.unpickled = seconds, size

    def locate(self, unit: int, position: Position) -> Where:
        """Returns the location of a unit's position: "batch 7, sample 30"."""
        step = self.steps.get(unit)
        if step is None:
            return Where("a batch that is no longer needed")
        if step.indices is None or isinstance(step.indices, dict):
            return Where(f"a batch of its stream, {DOING.get(position.activity, f'sample {position.place + 1} of it')}")
        told = f"batch {step.number}, {self._sample(step, position)}"
        is_listed = isinstance(step.indices, (list, np.ndarray)) and position.place < len(step.indices)
        known = is_listed and position.activity is Activity.SAMPLE
        return Where(told, step.number, plain_index(step.indices[position.place]) if known else None)

    def _sample(self, step: Step, position: Position) -> str:
        activity, place = position
        if activity in DOING:
            return DOING[activity]
        if activity is Activity.SEVERAL:
            first = self._sample(step, Position(Activity.SAMPLE, place))
            return f"{first}, or another sample that was made at the same time (threads_per_worker)"
        indices = step.indices.tolist() if isinstance(step.indices, np.ndarray) else step.indices
        if not isinstance(indices, list):
            return f"sample {indices!r}"
        return f"sample {indices[place]!r}" if place < len(indices) else "a sample"


def users_level() -> int:
    """Returns the stack level of the nearest code outside Stoker, for the caller's `warnings.warn`."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "stoker":
        level, frame = level + 1, frame.f_back
    return level
