"""Events beside the batches. `DataLoader(on_event=...)` receives each; `loader.report()` keeps the latest of a kind.

Event
├── SampleEvent
│   ├── SampleFailed (error)              a sample that failed was left out or replaced
│   └── SampleSkipped (skip)              the dataset raised SkipSample
├── WorkerEnd
│   ├── WorkerDied (death)                a worker process ended, and is replaced
│   └── PoisonSample (poison_sample)      a sample that has ended several workers, or stalled them
├── WorkerStalled (stall)                 a worker has been busy with one sample for too long
├── WorkerRetired (retired)               a worker that grew too large or old is replaced between two batches
├── RetireFailed (retire_failed)          such a worker stays: its stream cannot be reopened at its position
├── RestartDelayed (restart_delayed)      a worker's replacement cannot be started yet
├── MemoryThrottled (memory_throttled)    workers wait for their turn, because memory is short
├── ForkDeadlock (fork_deadlock)          forked workers hung in their first samples, and are started again
├── HelperDied (helper_death)             the helper process ended, and is replaced
├── QuarantineFailed (quarantine_failed)  the quarantine file cannot be written
├── WorkersChosen (auto)                  num_workers="auto" has found the number of workers
└── WorkersWouldHelp (hint)               num_workers=0 makes the training loop wait
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

FaultKind = Literal["exception", "death", "stall", "skip", "batch"]
Outcome = Literal["raised", "skipped", "replaced"]


@dataclass(kw_only=True, slots=True)
class FaultRecord:
    """A sample that was not fetched, or a batch that could not be made without a single sample at fault.

    Attributes:
        kind: "exception"; "death" or "stall" of a worker that made it; "skip" (`SkipSample`); "batch".
        outcome: the fate of the sample.
        place: of the sample in its batch; None for a batch.
        position: in the epoch's order, counted from 0; in a stream, in the part that its worker reads.
        index: as the sampler gave it; its `repr` if it is neither a number nor a text; None in a stream.
        description: the result of the dataset's `describe(index)`.
        exception: class and text of the exception, or the reason to skip.
        traceback: of the exception; for a death, the last stack of the worker.
        worker: number of the worker.
        replacement: index of the sample that took its place.
        time: seconds since 1970.
        epoch: number of the epoch.
        batch: number of the batch in the epoch.
        rank: of this process.
    """

    kind: FaultKind
    outcome: Outcome
    position: int
    exception: str
    traceback: str
    worker: int
    place: int | None = None
    index: Any = None
    description: str | None = None
    replacement: Any = None
    time: float = field(default_factory=time.time)
    epoch: int = 0
    batch: int = 0
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Event:
    """An incident that a user may want to know of. It does not end the run, unless its `ends` is true.

    Attributes:
        kind: names the class of the event; a class attribute.
        message: a sentence for users.
        time: seconds since 1970.
        worker: number of the worker, if the event concerns one.
        batch: number of the batch in its epoch, if the event concerns one.
    """

    kind: ClassVar[str] = "event"
    message: str
    time: float = field(default_factory=time.time)
    worker: int | None = None
    batch: int | None = None

    @property
    def details(self) -> dict[str, Any]:
        """Returns the attributes of this kind of event beyond those of all events."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _OF_ALL}


_OF_ALL = {each.name for each in fields(Event)}


@dataclass(frozen=True, kw_only=True)
class SampleEvent(Event):
    """A sample was not delivered.

    Attributes:
        fault: the record of the sample.
    """

    fault: FaultRecord

    @property
    def details(self) -> dict[str, Any]:
        """Returns the attributes of the fault."""
        return {each.name: getattr(self.fault, each.name) for each in fields(self.fault)}


@dataclass(frozen=True, kw_only=True)
class SampleFailed(SampleEvent):
    """A sample that failed was left out, or replaced by another (`on_error`)."""

    kind: ClassVar[str] = "error"


@dataclass(frozen=True, kw_only=True)
class SampleSkipped(SampleEvent):
    """A sample for which the dataset raised `SkipSample` was left out, or replaced by another."""

    kind: ClassVar[str] = "skip"


@dataclass(frozen=True, kw_only=True)
class WorkerEnd(Event):
    """A worker process has ended.

    Attributes:
        unit: number of the unit of work that it had, or None.
        mark: place of the sample in the unit; below 0 if the worker was at no sample.
        code: exit code, negative for a signal; None if unknown.
        stalled: whether it was ended because of a stall.
        index: index of the sample, if it was at one.
        ends: whether an error follows that ends the run.
    """

    unit: int | None = None
    mark: int = -1
    code: int | None = None
    stalled: bool = False
    index: Any = None
    ends: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerDied(WorkerEnd):
    """A worker process has ended, and another takes its place."""

    kind: ClassVar[str] = "death"


@dataclass(frozen=True, kw_only=True)
class PoisonSample(WorkerEnd):
    """Every worker that attempts a sample is killed by it, or hangs."""

    kind: ClassVar[str] = "poison_sample"


@dataclass(frozen=True, kw_only=True)
class WorkerStalled(Event):
    """A worker has been busy with one sample, or with its copy of the dataset, for longer than `stall_warning`.

    Attributes:
        unit: number of the unit of work; None while the worker unpickles its copy of the dataset.
        mark: place of the sample in the unit; below 0 if the worker is at no sample.
        seconds: since it began the sample; of the unpickling, since it took longer than expected.
        index: index of the sample, if it is at one.
    """

    kind: ClassVar[str] = "stall"
    unit: int | None
    mark: int
    seconds: float
    index: Any = None


@dataclass(frozen=True, kw_only=True)
class WorkerRetired(Event):
    """A worker has grown too large or old: another takes its place between two batches."""

    kind: ClassVar[str] = "retired"


@dataclass(frozen=True, kw_only=True)
class RetireFailed(Event):
    """A worker has grown too large or old, and stays: its stream cannot be reopened at its position."""

    kind: ClassVar[str] = "retire_failed"


@dataclass(frozen=True, kw_only=True)
class RestartDelayed(Event):
    """A worker's replacement cannot be started yet. The loader keeps trying."""

    kind: ClassVar[str] = "restart_delayed"


@dataclass(frozen=True, kw_only=True)
class MemoryThrottled(Event):
    """There is not enough memory for all workers at once: some wait for their turn.

    Attributes:
        working: number of workers that work at once.
        growth: bytes that one takes for its samples.
        available: bytes that are left.
        limit: bytes in total.
    """

    kind: ClassVar[str] = "memory_throttled"
    working: int
    growth: int
    available: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class ForkDeadlock(Event):
    """All forked workers waited for locks in their first samples, and are started again."""

    kind: ClassVar[str] = "fork_deadlock"


@dataclass(frozen=True, kw_only=True)
class HelperDied(Event):
    """The helper process that watches the workers has ended, and another takes its place.

    Attributes:
        ends: whether an error follows that ends the run.
    """

    kind: ClassVar[str] = "helper_death"
    ends: bool = False


@dataclass(frozen=True, kw_only=True)
class QuarantineFailed(Event):
    """The quarantine file cannot be written. Missing records are written as soon as it can be.

    Attributes:
        errno: of the error.
    """

    kind: ClassVar[str] = "quarantine_failed"
    errno: int | None = None


@dataclass(frozen=True, kw_only=True)
class WorkersChosen(Event):
    """`num_workers="auto"` has found the number of workers.

    Attributes:
        number: the number of workers; 0 if the training process makes batches itself.
        most: the number that affinity, cgroup and memory allow.
        seconds: seconds for a batch, by the numbers tried.
    """

    kind: ClassVar[str] = "auto"
    number: int
    most: int
    seconds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class WorkersWouldHelp(Event):
    """The training loop waits for batches that `num_workers=0` makes on request."""

    kind: ClassVar[str] = "hint"


Listener = Callable[[Event], None]


def plain_index(index: Any) -> int | str | None:
    """An index as JSON has it: NumPy's and torch's integers are integers; what is neither number nor text, its repr."""
    if index is None or isinstance(index, str):
        return index
    try:
        return operator.index(index)
    except (TypeError, ValueError):
        return repr(index)
