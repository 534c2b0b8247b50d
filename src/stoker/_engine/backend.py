"""The interface of a backend: units in, answers out.

A backend runs a *job* (a callable made by the loader) on workers. It knows nothing of datasets or samplers: a unit is
an opaque picklable object, and what the job returns is an answer. The file is long because both sides of the interface,
the job and the backend, use the same records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from stoker import errors
from stoker._core.exceptions import format_exception, summary_of
from stoker._engine.activity import Mark, Position
from stoker._engine.timings import Stopwatch, UnitTimings
from stoker._engine.tracebacks import users_story
from stoker.events import Event, FaultRecord

if TYPE_CHECKING:
    from stoker._engine.transport.reader import Lease

NOT_PLAIN: object = object()
"""Returned by a `PlainMaker` for a batch that needs a worker or the full path of a unit."""

PlainPlace = Callable[[], tuple[int, int]]
"""Returns the position of the batch that is being made, and the distance of its samples' positions."""

PlainMaker = Callable[[list[object]], object]
"""Makes the batch of a list of indices in the caller's thread; returns `NOT_PLAIN` for a batch that needs more."""


class StreamEnd(Exception):
    """Raised by a job: this worker has no more batches in this epoch."""


class NothingLeft(Exception):
    """Raised by a job: every sample of the unit was left out."""


class KnownFault(NamedTuple):
    """A fault that a unit has already caused in its workers.

    Attributes:
        position: place in the unit at which workers ended.
        kind: whether they died or stalled.
        message: the same in words.
        stack: the last worker's Python stack, if it was available.
    """

    position: Position
    kind: Literal["death", "stall"]
    message: str
    stack: str = ""


KnownFaults = Sequence[KnownFault]


def of_the_gone(error: errors.StokerError) -> errors.StokerError:
    """Marks an exception about a process that is gone: our own traceback would add nothing to it."""
    vars(error)["_of_the_gone"] = True
    return error


def _is_of_the_gone(error: BaseException) -> bool:
    return issubclass(type(error), errors.StokerError) and "_of_the_gone" in vars(error)


ADVICE = {
    "Cannot re-initialize CUDA in forked subprocess": (
        "Stoker: a sample or the collate_fn used CUDA in a forked worker. Leave samples on the CPU and pass device= "
        "to the loader, or move the batch in the training loop (batch.to(device)); if the worker must use CUDA for "
        "itself, pass multiprocessing_context='spawn'."
    ),
}
"""Advice on known errors of other libraries in workers, by a part of their text."""


PlainGuess = tuple[int, str, str, tuple[int | None, ...], bool]
"""A guess of a job's, field by field (`stoker.loader._job.stream_guesses`)."""


class UnitReport(NamedTuple):
    """A job's report on a unit, beside its batch. Plain values: it passes through processes that know no other classes.

    Attributes:
        notes: messages to show to the user once.
        stream_state: state of the worker's stream after the unit; None without a stream.
        faults: how samples that failed were treated.
        samples: number of samples in the batch, or intended for one that failed.
        movable: whether another worker can continue from this one's state.
        guess: changes of the loader's guess that the stream shares itself out (`stoker.loader._job.stream_guesses`).
        timings: times of the unit in each worker that made some of it; empty unless they are asked for.
        drawn: names of random generators that the worker has found to be drawn from.
        since: without `stream_state`, what the stream has read since its last one.
        rows_at: seed and positions of the batch's samples, for a transform in the trainer; None if they are the unit's.
    """

    notes: list[str] = []  # noqa: RUF012 - never written
    stream_state: bytes | None = None
    faults: list[FaultRecord] = []  # noqa: RUF012 - never written
    samples: int = 0
    movable: bool = True
    guess: PlainGuess | None = None
    timings: tuple[UnitTimings, ...] = ()
    drawn: tuple[str, ...] = ()
    since: bytes | None = None
    rows_at: tuple[int, Sequence[int]] | None = None


class MadeRows(NamedTuple):
    """Samples of a unit that another worker has made.

    Attributes:
        first: place of the first in the unit.
        rows: the samples in a list, or their collated rows.
        form: of the samples, if they are collated.
    """

    first: int
    rows: object
    form: object


class Job(Protocol):
    """The work of a worker. Made once for each worker, in that worker.

    Attributes:
        mark: receives the job's place in the unit and its activity (`stoker._engine.activity`): another process
            reads them if the worker dies or stalls.
        weigh: called when a unit takes most memory, unless that is at its end or at a request for memory.
        upcoming: returns the units that have arrived since the last call. They may be begun: they run next, in this
            order.
        repeats: whether a unit can be run again after an interruption. A stream has moved on.
        stopwatch: measures the times of units; None unless they are asked for.
    """

    mark: Mark
    repeats: bool
    stopwatch: Stopwatch | None
    weigh: Callable[[], None]
    upcoming: Callable[[], Iterable[object]]

    def run(
        self,
        work: object,
        /,
        lend: Lender | None = None,
        known: KnownFaults = (),
        rows: tuple[int, int] | None = None,
        made_rows: Sequence[MadeRows] = (),
    ) -> object:
        """Returns the batch of a unit; raises the exceptions of the user's code, StreamEnd, or NothingLeft.

        `lend` gives memory in which a collator may write (`stoker.collate.tensors`). Each `known` fault of
        the unit is treated as an error at its position, and the sample is not tried again. For a unit that workers
        share, only the `rows` from the first to before the second are made. If these cannot be joined with others,
        one worker makes the unit of the samples that are `made_rows`, and of those that are not.
        """

    def handed_over(self, written: bool) -> object:
        """Returns the samples of the last rows, as far as they were made, or only their form if they are `written`."""

    def plain(self, seed: int, place: PlainPlace) -> PlainMaker | None:
        """Returns a maker of batches for the caller's thread, if units need only samples and collation; else None."""

    def report(self) -> UnitReport:
        """Returns the report on the last unit. Called once for each unit."""

    def failed_index(self) -> object:
        """Returns the index of the sample at which the last unit failed, or None."""

    def resume(self, state: bytes) -> None:
        """Continues the stream of a worker that died, from its last `stream_state`, with `since` behind it."""

    def stream_state(self, since: bytes) -> bytes | None:
        """Returns the state of the stream now, if it stands where it said `since`; else None."""

    def close(self) -> None:
        """Ends what the job has begun beyond its last unit. Called once, when the worker ends by itself."""


Lender = Callable[[int], object]

JobFactory = Callable[[int], Job]
"""Makes the job of the worker with this number; called in the worker."""


class JobSource(NamedTuple):
    """Where a worker process gets the job factory from."""

    job_factory: Callable[[], JobFactory]
    """Called in each worker."""
    unpickles: bool
    """Whether a worker unpickles the job factory. This may take long, so it reports the end."""


def located(where: str, index: object) -> str:
    """Returns `where` with the sample at which it happened, or with the first few indices of a whole batch."""
    if index is None:
        return where
    if not isinstance(index, list):
        return f"{where}, at sample {index!r}"
    return f"{where}, at samples {_few(index)} ({len(index)} in the batch){_odd(index)}"


class BatchIndices(list[object]):
    """The indices of a batch, and the places of those that differ from most of it."""

    odd: Sequence[int] = ()


def _few(indices: Sequence[object]) -> str:
    return ", ".join(map(repr, indices[:8])) + (", …" if len(indices) > 8 else "")


def _odd(index: list[object]) -> str:
    odd = getattr(index, "odd", ())
    if not odd:
        return ""
    return f", where {_few([index[place] for place in odd])} differ{'s' if len(odd) == 1 else ''} from the others"


@dataclass
class Failure:
    """An exception on its way from a worker to the user.

    The user's objects travel pickled: unpickling may fail if their module cannot be imported, and must not cost more
    than this one answer.

    Attributes:
        kind: its class, pickled; the class itself if it stays in the process; or None.
        instance: the exception, pickled; itself if this process has read it; or None.
        text: its type and message.
        traceback: the worker's; empty if the message is complete without it.
        where: place at which it was raised, in words.
        advice: a cause or remedy, to be said first; or an empty text.
        shown: the part of the traceback for the user.
    """

    kind: type[BaseException] | bytes | None
    instance: BaseException | bytes | None
    text: str
    traceback: str
    where: str
    advice: str = ""
    shown: str = ""

    @classmethod
    def of(cls, error: BaseException, where: str) -> Failure:
        """Returns a description of an exception that was just caught; never fails itself."""
        import pickle

        try:
            instance = pickle.dumps(error)
            pickle.loads(instance)
        except BaseException:  # the user's class may raise anything: the class and the text suffice
            instance = None
        try:
            kind = pickle.dumps(type(error))
        except BaseException:
            kind = None
        text = summary_of(error)
        if _is_of_the_gone(error):
            return cls(kind, instance, text, "", where)
        whole = format_exception(error)
        advice, shown = users_story(error)
        known = next((advice for sign, advice in ADVICE.items() if sign in text), "")
        return cls(kind, instance, text, whole, where, known or advice, shown)

    @property
    def known_kind(self) -> type[BaseException] | None:
        """The exception's class, if this process has it."""
        kind = _unpacked(self.kind)
        return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None

    def rebuilt(self) -> BaseException:
        """Returns the exception for the user, of its own type, with the worker's traceback in its message, if any."""
        known = self.known_kind
        kind = known or RuntimeError
        name = known.__name__ if known else self.text.split(":")[0]
        if self.traceback:
            shown = self.shown and f"Original {self.shown}"
            message = "\n".join(filter(None, [f"Caught {name} {self.where}.", self.advice, shown]))
        else:
            message = f"{self.text.partition(': ')[2]}\nRaised {self.where}."
        error: BaseException
        try:
            if issubclass(kind, KeyError):
                error = kind(_Text(message))  # KeyError prints the repr of its argument
            elif hasattr(kind, "message"):
                error = kind(message=message)  # type: ignore[call-arg]
            else:
                error = kind(message)
            if message not in str(error):
                raise TypeError("the class has a message of its own")
        except Exception:  # the class is not made from a message: raise the instance itself, or a RuntimeError
            itself = _unpacked(self.instance)
            if isinstance(itself, BaseException):
                error = itself
                error.add_note(message)
            else:
                error = RuntimeError(message)
        return error


def _unpacked(data: object) -> object:
    """Returns the unpickled object, or None if this process cannot unpickle it; an object that is no pickle itself."""
    import pickle

    try:
        return pickle.loads(data) if isinstance(data, bytes) else data
    except Exception:  # the user's module or class may raise anything
        return None


class _Text(str):
    """A string whose repr is the string itself."""

    def __repr__(self) -> str:
        return str(self)


Whole = Literal["batch", "error", "end", "empty"]
"""The outcome of a unit."""


EARLY = 0.005
"""Seconds of work on a run of units after which a thread answers with the finished ones, before it makes the rest."""


class Cost(NamedTuple):
    """The cost of units that a worker made at once, one or a run.

    Attributes:
        units: number of them.
        seconds: of work.
        size: bytes of their batches; None if the backend does not know it.
    """

    units: int
    seconds: float
    size: int | None = None


@dataclass
class Answer:
    """The outcome of a unit. `value` belongs to the backend until `Backend.open`. The last answer of units that were
    made at once may have their `cost`.
    """

    unit: int
    kind: Whole
    value: object
    worker: int
    report: UnitReport = UnitReport()  # noqa: RUF009 - immutable
    cost: Cost | None = None


class Where(NamedTuple):
    """A place in a unit, for people.

    Attributes:
        text: the place in words.
        batch: number of the batch, if it has one.
        index: index of the sample, if it is one.
    """

    text: str
    batch: int | None = None
    index: object = None  # type: ignore[assignment] # hides the method of tuples


class EventSink(Protocol):
    """Receives a backend's events beside the answers. It must not know the backend's owner."""

    def tell(self, event: Event) -> None:
        """Reports an event that does not end the run."""

    def locate(self, unit: int, position: Position) -> Where:
        """Returns the place in words, such as "batch 7, sample 30"."""

    def learned(self, row_seconds: float | None, growth: int | None, dearer: int) -> None:
        """Records the seconds per sample and the bytes per unit of a worker, for later workers, and whether parts of
        units cost more than whole units (`SplitPolicy`).
        """

    def marked(self, objects: int, seconds: float) -> None:
        """Records that the shared heap was marked immortal: the number of objects, and the seconds it took."""

    def unpickled(self, seconds: float, size: int) -> None:
        """Records that a worker unpickled its own copy of the job: the seconds it took, and the bytes of its memory."""

    def came_from(self, machine: str, size: int) -> None:
        """Records that a batch of this many bytes has come from another machine."""

    def stored(self, sizes: tuple[int, int, int]) -> None:
        """Records the bytes in other machines' object store: put by this loader, used by anybody, and the room."""


class Capabilities(NamedTuple):
    """The capabilities of a backend.

    Attributes:
        has_workers: batches are made beside the training loop, ahead of it.
        own_process: each worker is a process, with its own copy of the dataset.
        lends_memory: batches are written into memory that the backend lends.
        splits_batches: several workers may make one batch.
        can_grow: it can have more workers than at its start.
        ends_stalled: it can end a worker that stalls.
        shares_heap: workers may share a heap that is marked immortal.
        has_stacks: it can return the stacks of workers.
    """

    has_workers: bool = True
    own_process: bool = False
    lends_memory: bool = False
    splits_batches: bool = False
    can_grow: bool = False
    ends_stalled: bool = False
    shares_heap: bool = False
    has_stacks: bool = False

    @property
    def are_threads(self) -> bool:
        """Whether workers are threads of the trainer, and share its dataset."""
        return self.has_workers and not self.own_process


class Backend(ABC):
    """Runs units on workers. Used by one thread at a time.

    Units are numbered upwards by the caller; answers come in any order, one for each unit that is not dropped.
    """

    capabilities: Capabilities

    @abstractmethod
    def submit(self, unit: int, work: object, worker: int | None, rows: int = 0) -> None:
        """Queues a unit, for `worker` if it is bound to one. Does not block. The unit begins with `receive` at the
        latest.

        Several workers may share a unit that has `rows`; one worker makes a unit with 0 rows.
        """

    def submit_run(self, unit: int, works: Sequence[object]) -> None:
        """Queues units for any worker, this one and those that follow it, which one worker may make in a run. Each is
        answered as any other.
        """
        for number, work in enumerate(works, unit):
            self.submit(number, work, None)

    @property
    def makes_runs(self) -> bool:
        """Whether a worker may make a run of units at once now."""
        return self.capabilities.has_workers

    def flush(self) -> None:  # noqa: B027 - most begin at once
        """Begins the submitted units now."""

    def plain(self, seed: int, place: PlainPlace) -> PlainMaker | None:
        """Returns a maker of batches for the caller's thread, if units need only samples and collation; else None."""
        return None

    def within_run(self) -> Answer | None:
        """Returns an answer that has arrived and is not the last of its run, if there is one and nothing else is to be
        done now; else None.
        """
        return None

    @property
    def ready(self) -> int:
        """Number of answers that have arrived and were not yet received."""
        return 0

    @property
    def has_answer(self) -> bool:
        """Whether `receive` returns at once with an answer."""
        return self.ready > 0

    @property
    def lease(self) -> Lease | None:
        """The lease of the batch that was opened last; None if it does not lie in a slot."""
        return None

    @property
    def shares(self) -> bool | None:
        """Whether workers share units: then fewer units need to be under way. None: not known yet."""
        return False

    @abstractmethod
    def receive(self, timeout: float | None) -> Answer:
        """Returns the next answer; raises LoaderTimeoutError after `timeout` seconds, WorkerDiedError, …"""

    @abstractmethod
    def open(self, answer: Answer) -> object:
        """Returns the batch of an answer. Called once for each answer of kind "batch" that is delivered."""

    @abstractmethod
    def discard(self, answer: Answer) -> None:
        """Frees the batch of an answer without opening it."""

    def grow(self, workers: int) -> None:
        """Starts workers up to this number in all, or as many as can be started; only if `can_grow`."""
        raise NotImplementedError

    @property
    def workers_there(self) -> int:
        """Number of workers that are known to have been started; only if `can_grow`."""
        raise NotImplementedError

    @property
    def grown(self) -> int:
        """Number of workers after growth; 0 before any growth. It may fall where workers come and go by demand."""
        return 0

    def cpu_seconds(self) -> dict[int, float]:
        """Returns the processor time that each worker has used or waited for, by pid; empty if unknown."""
        return {}

    @abstractmethod
    def drop(self, before: int) -> None:
        """Drops the units below `before`: `receive` will not return their answers."""

    def stacks(self) -> str:
        """Returns the Python stacks of the workers now, or an empty text if they are not available."""
        return ""

    @property
    def is_closed(self) -> bool:
        """Whether the backend is closed, also by the interpreter's end while a thread still uses it."""
        return False

    def memory(self) -> dict[str, int]:
        """Returns the bytes that this backend takes, by name; memory that processes share is divided among them."""
        return {}

    def pool_use(self) -> tuple[int, float, float] | None:
        """Returns the ranks in the pool of workers that this one shares, and the seconds that its units and those of
        all took there; None without a pool.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Ends all workers, within a second. Idempotent. Batches that the user holds stay valid."""
