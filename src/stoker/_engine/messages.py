"""Every message between the trainer, the supervisor of the workers, and the workers.

The supervisor of forked workers runs in the zygote; that of spawned workers in the trainer itself. A message is a
record here, and a plain tuple on the wire: its name and its fields (`packed`, `unpacked`), because pickling the record
itself costs three times as much. The file is long because the whole protocol is in one place.

=======================  ============  ========================================================
message                  way           meaning
=======================  ============  ========================================================
Submit                   trainer → s.  queues a unit
Freed                    trainer → s.  returns slots
NeedsMemory              trainer → s.  the trainer holds no batch to release before this unit
Streams                  trainer → s.  states of the workers' streams, for a new supervisor
Drop                     trainer → s.  drops the units below a number
Grow                     trainer → s.  raises the number of workers
Pulse                    trainer → s.  requests a sign of life
AskStacks, AskWorkers    trainer → s.  request a report (on a connection of its own)
AskPool                  trainer → s.  the same
Unit                     s. → worker   a unit, or rows of one, to make
SlotGiven                s. → worker   the answer to `SlotWanted` or `RowsWanted`
Resume                   s. → worker   state of the stream that the worker continues
TrimMemory               s. → worker   returns unused memory to the system
Leave                    s. → worker   ends the worker
Unpickled                upward        the worker has unpickled the job
Leaves                   worker → s.   the worker ends by itself
SlotWanted               worker → s.   requests a slot for a batch
RowsWanted               worker → s.   requests the slot of a batch that several workers write
UnitDone                 worker → s.   the outcome of a unit, or of rows of one
Broken                   upward        workers cannot be started, which ends the run
Delivery                 s. → trainer  the outcome of a unit
WorkerPids               s. → trainer  the pids of the workers
Starved, Fed             s. → trainer  the earliest unit waits for memory; it no longer does
Shares                   s. → trainer  whether workers share units
Costs                    s. → trainer  costs of a sample and a unit, which later workers know
MarkingHeap, HeapMarked  s. → trainer  marking of the heap begins, which may take long; it ended
LastDeath                s. → trainer  a worker has died, and the run ends
DeathsCounted            s. → trainer  the times of the deaths that count
Happened                 s. → trainer  an incident for the user: one of the records below
WorkersLocked            s. → trainer  all workers wait for locks since they were forked
GaveUp                   s. → trainer  the supervisor has failed; another is to take its place
Flushing                 s. → trainer  workers have duties at their end
Alive                    s. → trainer  the answer to `Pulse`
ReportAnswer             s. → trainer  the answer to `AskStacks` or `AskWorkers`
=======================  ============  ========================================================

Workers on other machines have a bridge between them and the zygote (`stoker._engine.machines`), and an agent beside
each:

=======================  ================  ====================================================
message                  way               meaning
=======================  ================  ====================================================
StartRemote              zygote → bridge   starts a worker
ForRemote, FromRemote    both ways         a message for a worker, or of one
EndRemote                zygote → b. → a.  ends the process of a worker
InspectRemote            zygote → b. → a.  requests a worker's stack
RemoteInspected          a. → b. → zygote  the answer to it
RemoteStarted            bridge → zygote   a worker has unpickled the job
RemoteStartFailed        bridge → zygote   a worker cannot be started, now
RemoteExited             a. → b. → zygote  the end of a worker
Greeting                 agent → bridge    the agent's host, process and versions
Activities               a. → b. → zygote  the mark of a worker: a sign of life too
PoolUse                  a. → b. → zygote  the share of a rank in a process of its pool
RemoteDrains             bridge → zygote   the machine of a worker is to be taken away
StoreUse                 bridge → trainer  bytes in the scheduler's object store
=======================  ================  ====================================================

`Happened` carries one of `Replaced`, `Stalled`, `HeldBack`, `Crowded`, `Retires`, `Stays`. Messages hold only plain
values and records of this package; the user's objects travel inside as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

from stoker._engine.activity import Position
from stoker._engine.backend import KnownFault, PlainGuess, UnitReport
from stoker._engine.timings import UnitTimings
from stoker.events import FaultRecord

if TYPE_CHECKING:
    from stoker._engine.transport.rows import LeafRows

PlainSlot = tuple[int, int, int]
"""A slot of the arena: number, offset, capacity."""

PlainLayout = tuple["tuple[LeafRows, ...]", bytes]
"""A `Layout`, field by field."""

Part = tuple[int, int, int, PlainLayout | None]
"""Rows of a unit: the first, the one behind the last, the number of the unit's rows, and their layout, if it is known.
"""

MadePart = tuple[int, int, int, PlainLayout | None, dict[int, bytes], bytes]
"""Rows of a unit that a worker has made: the first, the one behind the last, the number of the unit's rows; then either
their layout in the unit's slot, their texts, and the form of their samples; or None, nothing, and the samples. Form and
samples are pickled.
"""

PlainReport = tuple[
    list[str],
    bytes | None,
    list[FaultRecord],
    int,
    bool,
    PlainGuess | None,
    tuple[UnitTimings, ...],
    tuple[str, ...],
    bytes | None,
    tuple[int, Sequence[int]] | None,
]
"""A `UnitReport`, field by field."""

# From the trainer to the supervisor


class Submit(NamedTuple):
    """Queues a unit, for `worker` if it is bound to one. Workers may share its `rows`, unless these are 0. `freed` are
    the slots that the trainer has let go of since the last message. The work of a run is a list, for the units from
    `unit` on, in order.
    """

    unit: int
    worker: int | None
    work: bytes | list[bytes]
    freed: list[int]
    rows: int


class Freed(NamedTuple):
    """Returns slots that the trainer has let go of."""

    slots: list[int]


class NeedsMemory(NamedTuple):
    """The trainer holds no batch that it could release before this unit arrives. A device no longer reads the
    `unregistered` slots in place.
    """

    slots: list[int]
    unit: int
    unregistered: list[int] = []  # noqa: RUF012 - never written


class Streams(NamedTuple):
    """The states of streams after their last answers, by worker: for a supervisor that replaces another."""

    states: dict[int, bytes]


class Drop(NamedTuple):
    """Drops the units below this number."""

    before: int


class Grow(NamedTuple):
    """Raises the number of workers to this in all."""

    workers: int


class Pulse(NamedTuple):
    """Requests a sign of life while the trainer waits: `Alive`."""


class AskStacks(NamedTuple):
    """Requests the workers' stacks, from any thread of the trainer. `ReportAnswer` has the same number."""

    number: int


class AskWorkers(NamedTuple):
    """Requests the workers' pids, from any thread of the trainer. `ReportAnswer` has the same number."""

    number: int


class AskPool(NamedTuple):
    """Requests the use of the pool, from any thread of the trainer. `ReportAnswer` has the same number."""

    number: int


# From the supervisor to a worker


class Unit(NamedTuple):
    """A unit to make, or a `part` of one, and an idle slot for it, if there is one. `known` are its known faults.
    `made` are parts of it that other workers have made: those with a layout lie in the slot. The work of a run is a
    list, for the units from `unit` on, in order; its first units have a slot each, as far as there are idle ones.
    """

    unit: int
    work: bytes | list[bytes]
    slots: Sequence[PlainSlot]
    known: Sequence[KnownFault]
    part: Part | None
    made: Sequence[MadePart] = ()


class SlotGiven(NamedTuple):
    """The answer to this question of the worker: a slot, or the reason for having none, in words: that there is no
    memory or, for rows, that their layout is not that of other rows. None if there is no memory for rows.
    """

    question: int
    given: PlainSlot | str | None


class Resume(NamedTuple):
    """The state of the stream that the worker continues in another's place."""

    state: bytes


class TrimMemory(NamedTuple):
    """Returns unused memory to the system, since no work is in sight."""


class Leave(NamedTuple):
    """Ends the worker: it has nothing in hand, and gets nothing more."""


# From a worker to the supervisor


class Unpickled(NamedTuple):
    """The worker has unpickled the job and can begin. Goes from the worker to the supervisor, and from there to the
    trainer.

    Attributes:
        seconds: duration of the unpickling.
        size: bytes of memory that the unpickling took.
        own: bytes of private memory that the worker has now.
    """

    seconds: float
    size: int
    own: int


class Leaves(NamedTuple):
    """The worker ends by itself."""


class SlotWanted(NamedTuple):
    """Requests a slot of `size` for the unit in place of its present one; the worker waits for `SlotGiven`. It has
    `own` bytes of private memory.
    """

    unit: int
    size: int
    question: int
    own: int


class RowsWanted(NamedTuple):
    """Requests the slot in which several workers write the unit; the worker waits for `SlotGiven`. It was told no
    `layout`, and has this one.
    """

    unit: int
    size: int
    question: int
    own: int
    layout: PlainLayout | None = None


Kind = Literal["batch", "error", "end", "empty", "rows", "misfit", "short"]
"""The kind of a worker's answer. A "batch", an "error", the "end" of a stream, "empty" if all samples were left out.
For part of a unit: "rows", with layout, texts and the form of the samples; "misfit" if the results cannot be joined as
rows, and "short" if there was no memory, with the samples in their place and whether the same holds for all units.
"""

Delivered = Literal["batch", "error", "end", "empty", "dropped"]
"""The kind of an answer to the trainer: "dropped" if the unit is no longer wanted."""


class UnitDone(NamedTuple):
    """The worker has made the unit or its part, in this number of seconds, of which its process used `processor`;
    `report` is the job's report.
    """

    unit: int
    kind: Kind
    value: object
    seconds: float
    report: PlainReport
    processor: float


class Broken(NamedTuple):
    """Workers cannot be started, or cannot unpickle the job: a packed `Failure`. Goes from a worker to the supervisor,
    and from there to the trainer.
    """

    failure: bytes


# From the supervisor to the trainer


class Delivery(NamedTuple):
    """The outcome of a unit, made in this number of `seconds`. A batch lies in the slot."""

    unit: int
    kind: Delivered
    value: object
    slot: PlainSlot | None
    worker: int
    report: PlainReport
    seconds: float = 0.0


class WorkerPids(NamedTuple):
    """The pids of the workers that have been started; of those on other machines, by number, the machine."""

    pids: list[int]
    machines: dict[int, str] = {}  # noqa: RUF012 - never written


class Starved(NamedTuple):
    """This unit, the earliest without an answer, waits for memory."""

    unit: int


class Fed(NamedTuple):
    """No unit waits for memory any longer."""


class Shares(NamedTuple):
    """Whether workers share units."""

    shares: bool


class Costs(NamedTuple):
    """The seconds of a worker per sample, and the bytes per unit; None if unknown. `SplitPolicy.dearer`."""

    row_seconds: float | None
    growth: int | None
    dearer: int


class MarkingHeap(NamedTuple):
    """The supervisor marks its heap immortal, and sends nothing during that time."""


class HeapMarked(NamedTuple):
    """The number of objects that were marked immortal, and the seconds it took."""

    objects: int
    seconds: float


class WorkerExit(NamedTuple):
    """The end of a worker.

    Attributes:
        worker: its number.
        pid: its process; a text for one on another machine.
        code: its exit code; negative for a signal; None if unknown.
        unit: the unit in hand, or None.
        position: place in the unit.
        stack: its last Python stack, if it could still write it.
        stalled: whether it was ended because it stalled there.
        blamed: whether the position is proven guilty.
        is_lost: as in `Exited`.
    """

    worker: int
    pid: int | str
    code: int | None
    unit: int | None
    position: Position
    stack: str = ""
    stalled: bool = False
    blamed: bool = False
    is_lost: bool = False


class LastDeath(NamedTuple):
    """A worker has died, and the run ends. `deaths` is the number of recent deaths."""

    end: WorkerExit
    deaths: int


class DeathsCounted(NamedTuple):
    """The times of the deaths that count at present."""

    times: tuple[float, ...]


class Replaced(NamedTuple):
    """A worker has died; another takes its place."""

    end: WorkerExit


class Stalled(NamedTuple):
    """A worker takes too long for a unit, or for the unpickling of the job: then `unit` is below 0. The stack is from
    the time of the report.
    """

    worker: int
    unit: int
    position: Position
    seconds: float
    stack: str


class HeldBack(NamedTuple):
    """A worker cannot be started for this reason; another attempt follows. `others` says whether other workers are
    there.
    """

    worker: int
    why: str
    others: bool


class Crowded(NamedTuple):
    """Only some of the workers work at once, because one takes up to `growth` bytes, and only `left` bytes are left."""

    working: int
    workers: int
    growth: int
    left: int
    limit: int
    source: str


class Retires(NamedTuple):
    """A worker has grown too large or old, and leaves after the units that it holds."""

    worker: int
    pid: int | str
    reason: str


class Stays(NamedTuple):
    """A worker has grown too large or old, and stays, because no other could continue its stream."""

    worker: int
    pid: int | str
    reason: str


Incident = Replaced | Stalled | HeldBack | Crowded | Retires | Stays


class Happened(NamedTuple):
    """An incident that does not end the run, and its time in seconds since 1970: the trainer may read it much later."""

    time: float
    incident: Incident


class WorkersLocked(NamedTuple):
    """All workers wait for locks in their first units; `stacks` are their stacks."""

    stacks: str


class GaveUp(NamedTuple):
    """The supervisor has failed; `why` is the traceback, or a sentence."""

    why: str


class Flushing(NamedTuple):
    """The run has ended, and workers have duties at their end: the end takes longer."""


class Alive(NamedTuple):
    """The answer to `Pulse`."""


class ReportAnswer(NamedTuple):
    """The answer to the question of this number."""

    number: int
    answer: object


# Between the zygote, the bridge, and the agents of workers on other machines


class StartRemote(NamedTuple):
    """Starts this worker on another machine; answered by `RemoteStarted` or `RemoteStartFailed`."""

    worker: int


class ForRemote(NamedTuple):
    """A packed message for a worker on another machine."""

    worker: int
    message: tuple[object, ...]


class FromRemote(NamedTuple):
    """A packed message of a worker on another machine. A batch of it lies in a slot by now."""

    worker: int
    message: tuple[object, ...]


class EndRemote(NamedTuple):
    """Ends the process of this worker by SIGKILL; `RemoteExited` follows."""

    worker: int


class InspectRemote(NamedTuple):
    """Requests the Python stack of this worker; answered by `RemoteInspected`, with the same number."""

    worker: int
    question: int


class RemoteInspected(NamedTuple):
    """The Python stack of this worker, and its mark at that moment."""

    worker: int
    question: int
    stack: str
    place: int
    activity: int


class RemoteStarted(NamedTuple):
    """The worker has unpickled the job; `process` names its process and host."""

    worker: int
    process: str


class RemoteStartFailed(NamedTuple):
    """The worker cannot be started for this reason; it may be tried again."""

    worker: int
    why: str


class RemoteExited(NamedTuple):
    """The end of a worker on another machine, as `Exited` has it. `is_lost`: its host or its agent ended with it, or
    cannot be reached; then its exit code is unknown, and its mark may be older.
    """

    worker: int
    code: int | None
    place: int
    activity: int
    stack: str
    is_lost: bool


class Greeting(NamedTuple):
    """The first message of an agent: the scheduler's name of its machine, the host, and the versions of Stoker, Python
    and NumPy.
    """

    node: str
    host: str
    address: str
    pid: int
    versions: tuple[str, ...]


class Activities(NamedTuple):
    """The mark of a worker, whether it has duties at its end, and the time by the clock of timings there. A sign of
    life of its host.
    """

    worker: int
    place: int
    activity: int
    duties: int
    clock: float | None = None


class PoolUse(NamedTuple):
    """The use of a process of a pool since this rank has a worker there: ranks now, and seconds of turns: its own, and
    those of all ranks.
    """

    worker: int
    ranks: int
    own: float
    all: float


class StoreUse(NamedTuple):
    """Bytes in the scheduler's object store: put by this loader, used by anybody on all machines, and the room."""

    own: int
    used: int
    room: int


Question = AskStacks | AskWorkers | AskPool
FromTrainer = Submit | Freed | NeedsMemory | Streams | Drop | Grow | Pulse | Question
ToWorker = Unit | Drop | SlotGiven | Resume | TrimMemory | Leave
FromWorker = Unpickled | Leaves | SlotWanted | RowsWanted | UnitDone | Broken
ToTrainer = (
    Delivery
    | WorkerPids
    | Starved
    | Fed
    | Shares
    | Costs
    | MarkingHeap
    | HeapMarked
    | LastDeath
    | DeathsCounted
    | Happened
    | WorkersLocked
    | GaveUp
    | Broken
    | Unpickled
    | Flushing
    | Alive
    | ReportAnswer
    | StoreUse
)


class RemoteDrains(NamedTuple):
    """The machine of this worker is to be taken away: it gets no new unit, for this reason."""

    worker: int
    reason: str


ToBridge = StartRemote | ForRemote | EndRemote | InspectRemote
FromBridge = (
    RemoteDrains
    | RemoteStarted
    | RemoteStartFailed
    | FromRemote
    | RemoteExited
    | RemoteInspected
    | Activities
    | PoolUse
    | StoreUse
    | Broken
)
ToAgent = EndRemote | InspectRemote | Pulse
FromAgent = Greeting | Activities | PoolUse | RemoteExited | RemoteInspected
Message = FromTrainer | ToWorker | FromWorker | ToTrainer | ToBridge | FromBridge | FromAgent


class _Record(Protocol):
    """A named tuple."""

    @classmethod
    def _make(cls, fields: Iterable[object], /) -> object: ...


_UNIONS = (FromTrainer, ToWorker, FromWorker, ToTrainer, ToBridge, FromBridge, FromAgent)

KINDS: dict[str, type[_Record]] = {kind.__name__: kind for union in _UNIONS for kind in union.__args__}
"""Every message, by its name on the wire."""


def plain(report: UnitReport) -> PlainReport:
    """Returns a report as it travels."""
    return cast("PlainReport", tuple(report))


def packed(message: Message) -> tuple[object, ...]:
    """Returns the plain tuple that travels."""
    return (type(message).__name__, *message)


def unpacked(wire: tuple[object, ...]) -> Message:
    """Returns the message of a tuple that has arrived."""
    return cast("Message", KINDS[cast("str", wire[0])]._make(wire[1:]))
