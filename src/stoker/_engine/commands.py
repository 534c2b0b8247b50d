"""The supervisor's events and commands.

An event is a message of the trainer (`stoker._engine.messages.FromTrainer`), or one of the records below. The backend
reports events and carries out commands; it decides nothing.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from stoker._core.machine.memory import Available
from stoker._engine.activity import Position
from stoker._engine.backend import UnitReport
from stoker._engine.messages import FromTrainer, FromWorker, Incident, ToTrainer, ToWorker

# Events


class Heard(NamedTuple):
    """A worker has sent a message. All its messages are handed over before its `Exited`."""

    worker: int
    message: FromWorker


class Started(NamedTuple):
    """The process of a worker has been started, by a `Spawn` or when the backend began. That of a worker on another
    machine is named by a text.
    """

    worker: int
    pid: int | str


class StartFailed(NamedTuple):
    """The process of a worker could not be started."""

    worker: int
    error: OSError


class AllStarted(NamedTuple):
    """The workers that the backend begins with have been started; `available` is the available memory in bytes."""

    available: int


class Exited(NamedTuple):
    """The process of a worker has ended, and is reaped.

    Attributes:
        worker: its number.
        code: its exit code; negative for a signal; None if unknown.
        position: its activity and place.
        stack: its last Python stack, if it could still write it.
        is_lost: whether its machine ended with it, or cannot be reached: no work of its own may be to blame.
        in_hand: number of the unit of a run that it made last, or has in hand.
    """

    worker: int
    code: int | None
    position: Position
    stack: str = ""
    is_lost: bool = False
    in_hand: int = -1


class Drains(NamedTuple):
    """The machine of a worker is to be taken away: it gets no new unit, and leaves after those that it holds."""

    worker: int
    reason: str


class Inspected(NamedTuple):
    """The answer to `Inspect`."""

    worker: int
    unit: int | None
    seconds: float
    position: Position
    stack: str
    in_hand: int = -1


class Away(NamedTuple):
    """The supervisor was not called for this time, in which workers may have waited for it."""

    seconds: float


class Tick(NamedTuple):
    """The moment of the last `SetTimer` has come."""


Event = FromTrainer | Heard | Started | StartFailed | AllStarted | Exited | Drains | Inspected | Away | Tick

# Commands


class Send(NamedTuple):
    """A message for a worker."""

    worker: int
    message: ToWorker


class Tell(NamedTuple):
    """A message for the trainer."""

    message: ToTrainer


class Notify(NamedTuple):
    """An incident for the trainer, with the time of day."""

    incident: Incident


class Spawn(NamedTuple):
    """Start the process of this worker; answered by `Started` or `StartFailed`."""

    worker: int


class Dismiss(NamedTuple):
    """Dismisses a worker that has nothing in hand: it reads the end of its messages, and leaves."""

    worker: int


class Kill(NamedTuple):
    """End the process of the worker at once. `Exited` follows."""

    worker: int


class Inspect(NamedTuple):
    """Find out the activity of a worker that has spent `seconds` on the unit, or on unpickling the job; answered by
    `Inspected`. Messages that the worker has sent meanwhile come with the answer.
    """

    worker: int
    unit: int | None
    seconds: float


class CheckLocks(NamedTuple):
    """Find out whether these workers, all that are busy, wait for locks since their birth; none has answered yet."""

    workers: tuple[int, ...]


class SetTimer(NamedTuple):
    """Send `Tick` at this moment, instead of that of the timer before."""

    at: float


class Trim(NamedTuple):
    """There is no work: this process gives unused memory back, too."""


class Stop(NamedTuple):
    """The run has ended: all workers are ended."""


Command = Send | Tell | Notify | Spawn | Dismiss | Kill | Inspect | CheckLocks | SetTimer | Trim | Stop


class Facts(Protocol):
    """Measurements that the supervisor requests while it decides."""

    def own_bytes(self, worker: int) -> int:
        """Returns the private memory of a worker; 0 if unknown."""

    def has_duties(self, worker: int) -> bool:
        """Returns whether a worker has duties at its end."""

    def available(self) -> Available:
        """Returns the memory that is available."""


# The states of workers' streams, from which other workers continue.


class StreamStates:
    """The latest state of each worker's stream, and what it has read since.

    Args:
        states: by worker, as `all()` returns them.
    """

    def __init__(self, states: dict[int, bytes] | None = None) -> None:
        self._whole = dict(states or {})
        self._since: dict[int, bytes] = {}

    def take(self, worker: int, report: UnitReport) -> None:
        """Takes a worker's report on a unit."""
        if report.stream_state is not None:
            self._whole[worker] = report.stream_state
            self._since.pop(worker, None)
        elif report.since is not None:
            self._since[worker] = report.since

    def of(self, worker: int) -> bytes | None:
        """Returns a worker's state, with what it has read since behind it; None if it has given nothing."""
        whole = self._whole.get(worker)
        return None if whole is None else whole + self._since.get(worker, b"")

    def all(self) -> dict[int, bytes]:
        """Returns the states of all workers."""
        return {worker: whole + self._since.get(worker, b"") for worker, whole in self._whole.items()}
