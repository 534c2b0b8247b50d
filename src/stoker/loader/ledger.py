"""What became of the samples: of the latest epoch, and of all since the loader was made.

Every sample that an epoch planned is one of: delivered, replaced, skipped, quarantined, raised, not requested. Counted
when a batch is delivered, so that each is counted once, whatever died or was made again before.

A *fault* is what an answer carries for each sample that was not fetched, or what it was where no sample is to blame: a
dictionary with the keys `kind` ("exception", "death", "stall", "skip", "batch"), `outcome` ("raised", "skipped",
"replaced"), `place` in its batch, `position` in the epoch, `index`, `description`, `exception`, `traceback`, `worker`,
`replacement` and `time`; the trainer adds `epoch` and `batch`.
"""

from __future__ import annotations

import functools
import operator
import re
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker._events import Event

Fault = Mapping[str, Any]

KEPT = 100
"""Events of each kind, and classes of exceptions, that are kept; more are only counted. A loader may live for weeks."""


_OF_A_WORKER = re.compile(
    r"^WorkerDiedError: DataLoader worker .*? exited unexpectedly: DataLoader worker \(pid \d+\) "
)
"""Torch's words, behind which it says what happened."""


def class_of(fault: Fault) -> str:
    """The name of the exception's class. A fault of the same cause has a text of its own for each file."""
    if fault["kind"] == "skip":
        return "SkipSample"
    return str(fault["exception"] or "").partition(":")[0].strip() or str(fault["kind"])


def on_one_line(fault: Fault) -> str:
    """What an exception said, as the end of a line, shortened."""
    text = _OF_A_WORKER.sub("", " ".join(str(fault["exception"] or "").split()))
    return f": {text if len(text) <= 100 else f'{text[:99]}…'}" if text else ""


def plain(fault: Fault) -> dict[str, Any]:
    """A fault as JSON has it."""
    indices = {name: plain_index(fault.get(name)) for name in ("index", "replacement")}
    return {**fault, **indices, "time": in_utc(fault["time"])}


def plain_index(index: Any) -> int | str | None:
    """An index as JSON has it: NumPy's and torch's integers are integers; what is neither number nor text, its repr."""
    if index is None or isinstance(index, str):
        return index
    try:
        return operator.index(index)
    except (TypeError, ValueError):
        return repr(index)


def in_utc(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601 writes them."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds")


@dataclass
class Like:
    """Faults with the same class of exception."""

    name: str
    first: Fault
    count: int = 0


@dataclass
class Counts:
    """What became of the samples of an epoch, or of several.

    Attributes:
        planned: samples, or None where nobody knows: a stream, a sampler without a length.
        delivered: fetched and delivered.
        replaced: another sample was delivered in its place.
        skipped: left out because the dataset raised `SkipSample`.
        quarantined: left out for an error.
        raised: in a batch that was an error.
        batches: delivered.
        waited: seconds in which the training loop waited for a batch. Counted in the latest epoch, whoever it waited
            for: it is one loop's time.
        asked: when the first batch was asked for, by `time.perf_counter`.
        until: when the latest was there; None before, and where it is no one epoch.
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
        """Both together."""
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
        """Seconds since the epoch's first `next()`, until the latest batch was there."""
        if self.until is None:
            return self.spent_before
        # Another iterator may have waited since before the epoch
        return max(self.until - self.asked, self.waited)

    @property
    def requested(self) -> int:
        """Samples that have met their fate."""
        return self.delivered + self.replaced + self.skipped + self.quarantined + self.raised

    @property
    def not_requested(self) -> int | None:
        """Samples that nobody has asked for (yet), or None where it is unknown how many are planned."""
        return None if self.planned is None else max(0, self.planned - self.requested)  # a stream's length is a guess

    def copy(self) -> Counts:
        """The counts as they are now."""
        return replace(self, faults={name: replace(like) for name, like in self.faults.items()})

    def add_delivered(self, samples: int, faults: Sequence[Fault]) -> None:
        """A batch of so many samples is delivered; those that failed are left out, or another is among them."""
        if not faults:
            self.delivered += samples
            self.batches += samples > 0
            return
        replaced = sum(fault["outcome"] == "replaced" for fault in faults)
        left_out = [fault["kind"] for fault in faults if fault["outcome"] == "skipped"]
        skipped = left_out.count("skip")
        self.delivered += samples - replaced
        self.replaced += replaced
        self.skipped += skipped
        self.quarantined += len(left_out) - skipped
        self.batches += samples > 0
        self._keep_all(faults)

    def add_raised(self, samples: int, faults: Sequence[Fault]) -> None:
        """A batch of so many planned samples that was an error: none of them was delivered."""
        self.raised += samples
        self._keep_all(faults)

    def _keep_all(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._keep(class_of(fault), fault, 1)

    def _keep(self, name: str, first: Fault, count: int) -> None:
        if name not in self.faults and len(self.faults) >= KEPT:
            name = "others"
        self.faults.setdefault(name, Like(name, first)).count += count


_NUMBERS = ("delivered", "replaced", "skipped", "quarantined", "raised", "batches", "waited")
"""What of the counts is added up."""


@dataclass
class Happened:
    """Events of one kind: how many, and the latest of them."""

    count: int = 0
    latest: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT))


class Ledger:
    """Counts for a loader, in the thread of the trainer. Each of its iterators counts into an epoch of its own.

    Attributes:
        epoch: counts of the latest epoch.
        epoch_number: number of the latest epoch, or None before the first.
        epochs: how many have begun.
        events: by kind, since the loader was made.
        row_seconds: what a sample has cost a worker, as the last ones found; None while nobody knows.
        growth: bytes by which a worker grew for a batch, as the last ones found; None while nobody knows.
        marked: objects that were marked immortal before the latest workers, and the seconds that took; None for none.
    """

    def __init__(self) -> None:
        self.epoch = Counts()
        self._before = Counts(planned=0)  # of epochs into which nobody counts any more
        self._open: list[tuple[weakref.ref[Any], Counts]] = []  # whose epoch it is, and the others
        self.epoch_number: int | None = None
        self.epochs = 0
        self.events: dict[str, Happened] = {}
        self.row_seconds: float | None = None
        self.growth: int | None = None
        self.marked: tuple[int, float] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Nobody counts into a copy's epochs
        return {**self.__dict__, "_before": self.total, "_open": []}

    @property
    def total(self) -> Counts:
        """Counts of all epochs since the loader was made, as they are now."""
        return functools.reduce(Counts.plus, (counts for _, counts in self._open), self._before).copy()

    def begin(self, owner: object, epoch_number: int, planned: int | None, asked: float = 0.0) -> Counts:
        """An epoch begins, of so many samples: those that are still to come, where it is resumed.

        Args:
            owner: who counts into it, until it begins another or is garbage.
            epoch_number: counted from 0.
            planned: None where nobody knows.
            asked: when its first batch was asked for, by `time.perf_counter`.

        Returns:
            What it counts into, by `add_delivered` and `add_raised`.
        """
        still_open = []
        for whose, counts in self._open:
            if whose() is None or whose() is owner:
                self._before = self._before.plus(counts)
            else:
                still_open.append((whose, counts))
        self.epoch = Counts(planned, asked=asked)
        self._open = [*still_open, (weakref.ref(owner), self.epoch)]
        self.epoch_number = epoch_number
        self.epochs += 1
        return self.epoch

    def event(self, event: Event) -> None:
        """Something happened beside the batches."""
        happened = self.events.setdefault(event.kind, Happened())
        happened.count += 1
        happened.latest.append(event)
