"""The interface of a backend: units in, answers out.

A backend runs a *job* (a callable made by the loader) on workers. It knows nothing of datasets or samplers: a unit is
an opaque picklable object, and what the job returns is an answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from stoker import errors
from stoker._events import Event
from stoker._stories import story_of, summary_of


class StreamEnd(Exception):
    """Raised by a job: this worker has no more batches in this epoch."""


class NothingLeft(Exception):
    """Raised by a job: every sample of the unit was left out."""


IDLE, START, WHOLE, COLLATE, WRITE, DESCRIBE, POLICY = -1, -2, -3, -4, -5, -6, -7
"""Marks: what a worker does that is no single sample: nothing, the user's start, a whole batch at once, collating,
handing over; describing a sample that failed, deciding about it. A sample's mark is its place in the unit, from 0."""

SEVERAL = -8
"""A mark of `SEVERAL - place`: the sample at this place is waited for, and others are made at the same time."""

Known = Sequence[tuple[int, dict[str, Any]]]
"""What a unit is known to do, as (mark, story): at this mark it has ended its workers. A story has `kind` ("death" or
"stall"), `message` and `stack`."""


def of_the_gone(error: errors.StokerError) -> errors.StokerError:
    """Marks an exception that tells of a process that is gone: where in ours it is raised would only hide that."""
    vars(error)["_of_the_gone"] = True
    return error


def _is_of_the_gone(error: BaseException) -> bool:
    return issubclass(type(error), errors.StokerError) and "_of_the_gone" in vars(error)


ADVICE = {
    "Cannot re-initialize CUDA in forked subprocess": (
        "Stoker: a sample or the collate_fn used CUDA in a forked worker. Leave samples on the CPU and move the batch "
        "in the training loop (pin_memory=True, batch.to(device, non_blocking=True)); if the worker must use CUDA for "
        "itself, pass multiprocessing_context='spawn'.\n"
    ),
}
"""What to do about errors of other libraries that workers are known for, by a part of their text."""


class Said(NamedTuple):
    """What a job says beside a unit's batch. Plain values: it passes through processes that know no others.

    Attributes:
        notes: things to tell the user once.
        stream_state: where the worker's stream stands behind the unit; None without one.
        faults: what became of samples that failed (`stoker.loader.faults`).
        samples: how many there are in the batch, or would have been in one that failed.
        movable: whether another worker can go on where this one stands.
    """

    notes: list[str] = []  # noqa: RUF012 - never written
    stream_state: bytes | None = None
    faults: list[dict[str, Any]] = []  # noqa: RUF012 - never written
    samples: int = 0
    movable: bool = True


class Job(Protocol):
    """What a worker runs. Made once for each worker, in that worker.

    Attributes:
        mark: where the job leaves, at [0], what it is doing: somebody else reads it if the worker dies or stalls.
        weigh: called where a unit takes most memory, if that is neither its end nor where it asks for more.
        upcoming: gives the units that have arrived since it was last asked. They may be begun: they will be run next,
            in this order.
        repeats: whether a unit can be run again after an interruption. A stream has moved on.
    """

    mark: Any
    repeats: bool
    weigh: Callable[[], None]
    upcoming: Callable[[], Iterable[Any]]

    def run(self, work: Any, lend: Lender | None = None, known: Known = (), rows: tuple[int, int] | None = None) -> Any:
        """Makes the batch of a unit; raises what the user's code raises, StreamEnd, or NothingLeft.

        `lend` gives memory in which a collator may write (`stoker.collate.memory`). What is `known` of the unit is to
        be treated as an error there, and not done again. Of a unit that is shared only the `rows` from the first to
        before the second are made; whatever fails there is found again when the unit is made as a whole.
        """

    def said(self) -> Said:
        """About the last unit. Called once for each."""

    def failed_index(self) -> Any:
        """Index of the sample at which the last unit failed, or None."""

    def resume(self, state: bytes) -> None:
        """This worker replaces one that died: its stream goes on where that one's stood, `stream_state()` says."""


Lender = Callable[[int], Any]

Recipe = Callable[[int], Job]
"""Makes the job of the worker with this number; called in the worker."""


def located(where: str, index: Any) -> str:
    """`where`, and the sample at which it happened; of a whole batch's indices the first few."""
    if index is None:
        return where
    if not isinstance(index, list):
        return f"{where}, at sample {index!r}"
    return f"{where}, at samples {_few(index)} ({len(index)} in the batch){_odd(index)}"


class Batch(list[Any]):
    """The indices of a batch, and the places of those that differ from most of it."""

    odd: Sequence[int] = ()


def _few(indices: Sequence[Any]) -> str:
    return ", ".join(map(repr, indices[:8])) + (", …" if len(indices) > 8 else "")


def _odd(index: list[Any]) -> str:
    odd = getattr(index, "odd", ())
    if not odd:
        return ""
    return f", where {_few([index[place] for place in odd])} differ{'s' if len(odd) == 1 else ''} from the others"


@dataclass
class Failure:
    """An exception on its way from a worker to the user.

    What is the user's travels packed: to unpack it may fail where its module cannot be imported, and must not cost more
    than this one answer.

    Attributes:
        kind: its class, pickled; or itself, where it does not leave the process; or None.
        instance: the exception, pickled; or None.
        text: its type and message.
        traceback: the worker's; empty where the message is all there is to tell.
        where: it was raised, in words.
    """

    kind: type[BaseException] | bytes | None
    instance: bytes | None
    text: str
    traceback: str
    where: str

    @classmethod
    def of(cls, error: BaseException, where: str) -> Failure:
        """Describes an exception that was just caught; never fails itself."""
        import pickle

        try:
            instance = pickle.dumps(error)
            pickle.loads(instance)
        except BaseException:  # whatever the user's class does: then the class and the text must do
            instance = None
        try:
            kind = pickle.dumps(type(error))
        except BaseException:
            kind = None
        text = summary_of(error)
        advice = next((advice for sign, advice in ADVICE.items() if sign in text), "")
        return cls(kind, instance, text, "" if _is_of_the_gone(error) else story_of(error) + advice, where)

    @property
    def known_kind(self) -> type[BaseException] | None:
        """Its class, if this process has it."""
        kind: Any = _unpacked(self.kind) if isinstance(self.kind, bytes) else self.kind
        return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None

    def rebuilt(self) -> BaseException:
        """The exception for the user: its own type, the worker's traceback, if any, in its message and as its cause."""
        known = self.known_kind
        kind = known or RuntimeError
        name = known.__name__ if known else self.text.split(":")[0]
        if self.traceback:
            message = f"Caught {name} {self.where}.\nOriginal {self.traceback}"
        else:
            message = f"{self.text.partition(': ')[2]}\nGiven up {self.where}."
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
        except Exception:  # a class that is not made from a message: the instance itself, or its story
            itself = _unpacked(self.instance)
            if isinstance(itself, BaseException):
                error = itself
                if hasattr(error, "add_note"):
                    error.add_note(message)
            else:
                error = RuntimeError(message)
        if self.traceback:
            error.__cause__ = errors.WorkerTraceback(self.traceback)
        return error


def _unpacked(data: bytes | None) -> Any:
    """What was pickled, or None if it cannot be had here."""
    import pickle

    try:
        return None if data is None else pickle.loads(data)
    except Exception:  # whatever the user's module or class does
        return None


class _Text(str):
    """A string that prints as itself where Python asks for its repr."""

    def __repr__(self) -> str:
        return str(self)


@dataclass
class Answer:
    """What became of a unit. `value` is the backend's own until `Backend.open`."""

    unit: int
    kind: Literal["batch", "error", "end", "empty"]
    value: Any
    worker: int
    said: Said = Said()  # noqa: RUF009 - immutable


class Where(NamedTuple):
    """A place in a unit, for people.

    Attributes:
        told: in words.
        batch: number of the batch, where it has one.
        index: of the sample, where it is one.
    """

    told: str
    batch: int | None = None
    index: Any = None


class Witness(Protocol):
    """Whom a backend tells what happens beside the answers. It must not know the backend's owner."""

    def tell(self, event: Event) -> None:
        """Something happened that does not end the run."""

    def locate(self, unit: int, mark: int) -> Where:
        """Where that is: "batch 7, sample 30"."""

    def learned(self, row_seconds: float | None, growth: int | None) -> None:
        """What a sample costs a worker, and the bytes that a unit takes of it, for those who come later."""

    def marked(self, objects: int, seconds: float) -> None:
        """The heap that workers share was marked immortal: so many objects, in so many seconds."""


class Backend(ABC):
    """Runs units on workers. Used by one thread at a time.

    Units are numbered upwards by the caller; answers come in any order, one for each unit that is not dropped.
    """

    @abstractmethod
    def submit(self, unit: int, work: Any, worker: int | None, rows: int = 0) -> None:
        """Queues a unit, for `worker` if it is bound to one. Does not block. Begun at the latest with `receive`.

        Workers may share a unit of so many `rows`; one of 0 is done by one of them.
        """

    def flush(self) -> None:  # noqa: B027 - most begin at once
        """What was submitted is begun now."""

    @property
    def ready(self) -> int:
        """Answers that have arrived and were not yet received."""
        return 0

    @property
    def shares(self) -> bool | None:
        """Whether workers share units: then fewer of these need to be under way. None: it is not known yet."""
        return False

    @abstractmethod
    def receive(self, timeout: float | None) -> Answer:
        """Waits for the next answer; raises LoaderTimeoutError after `timeout` seconds, WorkerDiedError, …"""

    @abstractmethod
    def open(self, answer: Answer) -> Any:
        """The batch of an answer. Called once for each answer of kind "batch" that is delivered."""

    @abstractmethod
    def discard(self, answer: Answer) -> None:
        """The batch of an answer is not wanted."""

    can_grow = False
    """Whether it can have more workers than it began with."""

    def grow(self, workers: int) -> None:
        """There are to be so many workers in all, or as many of them as can be started; only where it can grow."""
        raise NotImplementedError

    @property
    def workers_there(self) -> int:
        """How many workers have been started, as far as it is known; only where it can grow."""
        raise NotImplementedError

    @property
    def grown(self) -> int:
        """How many workers it has grown to; 0 while it has those that it began with."""
        return 0

    def cpu_seconds(self) -> dict[int, float]:
        """By worker's pid, the processor time that it has used or waited for; nothing where nobody knows."""
        return {}

    @abstractmethod
    def drop(self, before: int) -> None:
        """Units below `before` are not wanted: `receive` will not return their answers."""

    def stacks(self) -> str:
        """The Python stacks of the workers now, where they can be had."""
        return ""

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed, also by the interpreter's end while a thread still uses it."""
        return False

    def memory(self) -> dict[str, int]:
        """Bytes that are taken for this backend, by name; what processes share is divided among them."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Ends all workers, within a second. Idempotent. Batches that the user holds stay."""
