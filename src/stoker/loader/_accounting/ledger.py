"""Counts the outcomes of samples, for the latest epoch and since the loader was made, and dispatches events to their
receivers.

Every sample that an epoch planned is one of: delivered, replaced, skipped, quarantined, raised, not requested. Samples
are counted when their batch is delivered, so each counts once, even if workers died or batches were made again before.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stoker import errors
from stoker._core.exceptions import users_level
from stoker._core.interruption import harmless
from stoker._engine.activity import Activity, Position
from stoker._engine.backend import Where
from stoker._engine.process.worker_events import DOING
from stoker.events import Event, HelperDied, Listener, PoisonSample, plain_index
from stoker.loader._accounting import observer
from stoker.loader._epoch.plan import Step

if TYPE_CHECKING:
    from stoker.events import FaultRecord


class Fault(Protocol):
    """The common part of a run's fault and a quarantine file's record."""

    @property
    def kind(self) -> str:
        """The cause, as in `FaultRecord`."""

    @property
    def exception(self) -> str | None:
        """Class and text of the exception, as in `FaultRecord`."""


KEPT = 100
"""Events of each kind, and classes of exceptions, that are kept; more are only counted. A loader may live for weeks."""


_OF_A_WORKER = re.compile(
    r"^WorkerDiedError: DataLoader worker \(pid\(s\) \d+\) (?:exited unexpectedly: DataLoader worker \(pid \d+\) )?"
)
"""Torch's prefix of the message; the cause follows it."""


def class_of(fault: Fault) -> str:
    """Returns the name of the exception's class. The text may differ for each file, even with the same cause."""
    if fault.kind == "skip":
        return "SkipSample"
    return str(fault.exception or "").partition(":")[0].strip() or str(fault.kind)


def on_one_line(fault: Fault) -> str:
    """Returns the exception's text, shortened, as the end of a line."""
    text = _OF_A_WORKER.sub("", " ".join(str(fault.exception or "").split()))
    return f": {text if len(text) <= 100 else f'{text[:99]}…'}" if text else ""


def plain(fault: FaultRecord) -> dict[str, Any]:
    """Returns a fault as JSON values."""
    values = {each.name: getattr(fault, each.name) for each in fields(fault)}
    indices = {name: plain_index(values[name]) for name in ("index", "replacement")}
    return {**values, **indices, "time": in_utc(fault.time)}


def in_utc(seconds: float) -> str:
    """Returns seconds since 1970 in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


@dataclass
class Like:
    """Faults with the same class of exception."""

    name: str
    first: FaultRecord
    count: int = 0


@dataclass
class Counts:
    """The outcomes of the samples of one epoch, or of several.

    Attributes:
        planned: samples, or None if the number is unknown: a stream, a sampler without a length.
        delivered: fetched and delivered.
        replaced: another sample was delivered in its place.
        skipped: left out because the dataset raised `SkipSample`.
        quarantined: left out for an error.
        raised: in a batch that was an error.
        batches: delivered.
        waited: seconds in which the training loop waited for a batch of any epoch, counted in the latest epoch.
        asked: time of the first batch's request, by `time.perf_counter`.
        until: arrival of the latest batch; None before, and for several epochs.
        spent_before: seconds of the epochs that are added up here.
        faults: by class of exception.
    """

    planned: int | None = None
    delivered: int = 0
    replaced: int = 0
    skipped: int = 0
    quarantined: int = 0
    raised: int = 0
    batches: int = 0
    waited: float = 0.0
    asked: float = 0.0
    until: float | None = None
    spent_before: float = 0.0
    faults: dict[str, Like] = field(default_factory=dict)

    def plus(self, other: Counts) -> Counts:
        """Returns the sum of both."""
        known = self.planned is not None and other.planned is not None
        both = Counts((self.planned or 0) + (other.planned or 0) if known else None)
        for name in _NUMBERS:
            setattr(both, name, getattr(self, name) + getattr(other, name))
        both.spent_before = self.spent + other.spent
        for like in (*self.faults.values(), *other.faults.values()):
            both._keep(like.name, like.first, like.count)
        return both

    @property
    def spent(self) -> float:
        """Returns the seconds from the epoch's first `next()` to the arrival of the latest batch."""
        if self.until is None:
            return self.spent_before
        # Another iterator may have waited since before the epoch
        return max(self.until - self.asked, self.waited)

    @property
    def requested(self) -> int:
        """Returns the number of samples with an outcome."""
        return self.delivered + self.replaced + self.skipped + self.quarantined + self.raised

    @property
    def not_requested(self) -> int | None:
        """Returns the number of planned samples not requested (yet), or None if the plan is unknown."""
        return None if self.planned is None else max(0, self.planned - self.requested)  # a stream's length is a guess

    def copy(self) -> Counts:
        """Returns a copy of the present counts."""
        return replace(self, faults={name: replace(like) for name, like in self.faults.items()})

    def add_delivered(self, samples: int, faults: Sequence[FaultRecord]) -> None:
        """Counts a delivered batch, from which failed samples were left out or replaced."""
        if not faults:
            self.delivered += samples
            self.batches += samples > 0
            return
        replaced = sum(fault.outcome == "replaced" for fault in faults)
        left_out = [fault.kind for fault in faults if fault.outcome == "skipped"]
        skipped = left_out.count("skip")
        self.delivered += samples - replaced
        self.replaced += replaced
        self.skipped += skipped
        self.quarantined += len(left_out) - skipped
        self.batches += samples > 0
        self._keep_all(faults)

    def add_raised(self, samples: int, faults: Sequence[FaultRecord]) -> None:
        """Counts a batch that was an error: none of its planned samples was delivered."""
        self.raised += samples
        self._keep_all(faults)

    def _keep_all(self, faults: Sequence[FaultRecord]) -> None:
        for fault in faults:
            self._keep(class_of(fault), fault, 1)

    def _keep(self, name: str, first: FaultRecord, count: int) -> None:
        if name not in self.faults and len(self.faults) >= KEPT:
            name = "others"
        self.faults.setdefault(name, Like(name, first)).count += count


_NUMBERS = ("delivered", "replaced", "skipped", "quarantined", "raised", "batches", "waited")
"""Counts that are added up."""


@dataclass
class EventTally:
    """Events of one kind: how many, and the latest of them."""

    count: int = 0
    latest: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT))


class Ledger:
    """Counts for a loader, in the thread of the trainer. Each of its iterators counts into an epoch of its own.

    Attributes:
        epoch: counts of the latest epoch.
        epoch_number: number of the latest epoch, or None before the first.
        epochs: number of epochs begun.
        events: by kind, since the loader was made.
        row_seconds: a worker's cost of a sample, from the latest measurement; None before one.
        growth: bytes by which a worker grew for a batch, from the latest measurement; None before one.
        dearer: latest comparisons in a row in which parts of batches cost more than whole ones (`SplitPolicy`).
        ascending: batches that workers could share, and whose indices ascend, since workers share batches.
        marked: objects that were marked immortal before the latest workers, and the seconds that took; None for none.
        unpickled: seconds in which one of the latest workers unpickled the dataset, and bytes of its memory; None if
            none did.
        machines: other machines that made batches of the latest epoch: how many, and their bytes.
        object_store: bytes in that of the other machines: put by this loader, used by anybody, and the room.
    """

    machines: dict[str, tuple[int, int]] = {}  # noqa: RUF012 - of the class, as pickles of former versions lack it
    object_store: tuple[int, int, int] = (0, 0, 0)

    def __init__(self) -> None:
        self.epoch = Counts()
        self._before = Counts(planned=0)  # of epochs without an owner
        self._open: list[tuple[weakref.ref[Any], Counts]] = []  # open epochs and their owners
        self.epoch_number: int | None = None
        self.epochs = 0
        self.events: dict[str, EventTally] = {}
        self.row_seconds: float | None = None
        self.growth: int | None = None
        self.dearer = 0
        self.ascending = 0
        self.marked: tuple[int, float] | None = None
        self.unpickled: tuple[float, int] | None = None
        self.machines = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy's epochs have no owner
        return {**self.__dict__, "_before": self.total, "_open": []}

    @property
    def total(self) -> Counts:
        """Returns the counts of all epochs since the loader was made."""
        return functools.reduce(Counts.plus, (counts for _, counts in self._open), self._before).copy()

    def begin(self, owner: object, epoch_number: int, planned: int | None, asked: float = 0.0) -> Counts:
        """Begins an epoch of `planned` samples: those still to come, if it is resumed.

        Args:
            owner: counts into the epoch, until it begins another or is garbage.
            epoch_number: counted from 0.
            planned: None if unknown.
            asked: time of its first batch's request, by `time.perf_counter`.

        Returns:
            The epoch's counts, for `add_delivered` and `add_raised`.
        """
        still_open = []
        for whose, counts in self._open:
            if whose() is None or whose() is owner:
                self._before = self._before.plus(counts)
            else:
                still_open.append((whose, counts))
        self.machines = {}
        self.epoch = Counts(planned, asked=asked)
        self._open = [*still_open, (weakref.ref(owner), self.epoch)]
        self.epoch_number = epoch_number
        self.epochs += 1
        return self.epoch

    def event(self, event: Event) -> None:
        """Counts an event."""
        happened = self.events.setdefault(event.kind, EventTally())
        happened.count += 1
        happened.latest.append(event)
        if observer.current is not None:
            observer.current.event(event)


# Dispatch of events. A dispatcher is shared by an iterator and its backend and refers to neither, so that a dropped
# iterator ends at once.


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
        reported: kinds already warned of; owned by the loader, so that each kind warns once.

    Attributes:
        steps: the steps of the units in progress.
        later: events for `flush` to send.
        accounts: receives each event of `ACCOUNTED`, last; its errors pass through. Weak: it refers to this object.
    """

    def __init__(self, ledger: Ledger, listener: Listener | None, reported: set[str]) -> None:
        self._ledger = ledger
        self._listener = listener
        self._told = reported
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

    def came_from(self, machine: str, size: int) -> None:
        """Counts a batch of another machine, and its bytes, in the latest epoch."""
        batches, total = self._ledger.machines.get(machine, (0, 0))
        self._ledger.machines[machine] = batches + 1, total + size

    def stored(self, sizes: tuple[int, int, int]) -> None:
        """Keeps the bytes in the object store of the other machines in the ledger, for the report."""
        self._ledger.object_store = sizes

    def locate(self, unit: int, position: Position) -> Where:
        """Returns the location of a unit's position: "batch 7, sample 30"."""
        step = self.steps.get(unit)
        if step is None:
            return Where("a batch that is no longer needed")
        if step.indices is None or isinstance(step.indices, dict):
            return Where(f"a batch of its stream, {DOING.get(position.activity, f'sample {position.place + 1} of it')}")
        text = f"batch {step.number}, {self._sample(step, position)}"
        is_listed = isinstance(step.indices, (list, np.ndarray)) and position.place < len(step.indices)
        known = is_listed and position.activity is Activity.SAMPLE
        return Where(text, step.number, plain_index(step.indices[position.place]) if known else None)

    def _sample(self, step: Step, position: Position) -> str:
        activity, place = position
        if activity in DOING:
            return DOING[activity]
        if activity is Activity.SEVERAL:
            first = self._sample(step, Position(Activity.SAMPLE, place))
            return f"{first}, or another sample that was made at the same time (threads_per_worker, concurrency)"
        indices = step.indices.tolist() if isinstance(step.indices, np.ndarray) else step.indices
        if not isinstance(indices, list):
            return f"sample {indices!r}"
        return f"sample {indices[place]!r}" if place < len(indices) else "a sample"
