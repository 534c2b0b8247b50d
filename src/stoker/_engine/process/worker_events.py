"""The death or stall of a worker: its consequence for the units, and the errors and events that describe it to the
user. The file is long because what a death proves and what is said of it are decided together.
"""

from __future__ import annotations

import contextlib
import errno
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stoker import errors
from stoker._core.machine.memory import shm_in_words
from stoker._engine.activity import IDLE, SEVERAL, Activity, Position
from stoker._engine.backend import EventSink, Failure, KnownFault, KnownFaults, Where
from stoker._engine.messages import (
    Crowded,
    HeldBack,
    Incident,
    LastDeath,
    Replaced,
    Retires,
    Stalled,
    Stays,
    WorkerExit,
)
from stoker._engine.process import linux
from stoker._engine.process.deadlines import PATIENCE
from stoker._engine.process.held_lock import held_lock
from stoker._engine.supervision.restarts import OWN_SIGNALS, TOLD, Restarts, Verdict
from stoker._engine.supervision.rules import Rules, Stall, Stalls
from stoker._engine.tracebacks import users_stacks, without_own_lines
from stoker.events import (
    Event,
    MemoryThrottled,
    PoisonSample,
    RestartDelayed,
    RetireFailed,
    WorkerDied,
    WorkerRetired,
    WorkerStalled,
)


def death(rules: Rules, end: WorkerExit, where: Where | None) -> Event:
    """Returns the event of a worker's death; `where` is its unit and mark, or None if it was idle."""
    if end.is_lost:
        at = "" if where is None else f", while it made {where.text}"
        message = (
            f"worker {end.worker} (pid {end.pid}) is lost{at}: its machine has ended, or cannot be reached. Other "
            "workers make its unfinished batches, and another is started in its place. This counts toward "
            f"max_restarts only where one batch has lost {HOSTS} machines."
        )
        return _of_death(WorkerDied, end, where, message)
    then = "It was replaced, and its unfinished batches are made again. "
    there = None if where is None else where.text
    then += f"Each worker that makes {there} dies." if end.blamed else f"(max_restarts={rules.max_restarts})"
    if end.stalled:
        message = f"worker {end.worker} (pid {end.pid}) stalled at {there}, and was ended. {then}"
    else:
        message = str(died(end.worker, end.pid, end.code, there, stack=end.stack, then=then))
    return _of_death(PoisonSample if end.blamed else WorkerDied, end, where, message)


def _of_death(
    kind: type[WorkerDied] | type[PoisonSample], end: WorkerExit, where: Where | None, message: str, ends: bool = False
) -> Event:
    at = where or Where("")
    return kind(
        message=message,
        worker=end.worker,
        batch=at.batch,
        unit=end.unit,
        mark=end.position.mark,
        code=end.code,
        stalled=end.stalled,
        index=at.index,
        ends=ends,
    )


class Teller:
    """Turns incidents of workers into events and errors for the user.

    Args:
        rules: limits of the workers.
        event_sink: knows the place of a unit in the epoch.
    """

    def __init__(self, rules: Rules, event_sink: EventSink) -> None:
        self._rules = rules
        self._event_sink = event_sink
        self._died: deque[str] = deque(maxlen=TOLD)  # the latest deaths, in short

    def event(self, incident: Incident) -> Event:
        """Returns the event of an incident."""
        match incident:
            case Replaced():
                return self._replaced(incident)
            case Stalled():
                return self._stalled(incident)
            case HeldBack():
                return _held_back(incident)
            case Crowded():
                return _crowded(incident)
            case Retires():
                message = (
                    f"worker {incident.worker} (pid {incident.pid}) is replaced between two batches: {incident.reason}"
                )
                return WorkerRetired(message=message, worker=incident.worker)
            case Stays():
                return _stays(incident)

    def error(self, incident: Incident) -> errors.StokerError | None:
        """Returns the error that ends the run because of an incident, if the rules say so."""
        if not isinstance(incident, Stalled) or self._rules.stall_action != "raise":
            return None
        where = self._place(incident)
        stack = users_stacks(incident.stack)
        return errors.StalledError(
            f"{_stalls(incident, where)} Raise stall_warning, or look at its Python stack:\n{stack}"
        )

    def held_lock(self, stacks: str, who: str = "It") -> str:
        """Returns a sentence on a lock that a worker waits for, at a space; "" if no worker has died."""
        return held_lock(stacks, who) if self._died else ""

    def last_death(self, message: LastDeath) -> tuple[errors.WorkerDiedError, Event]:
        """Returns the error with which a death ends the run, and the event of it."""
        end, deaths = message
        where = self._where(end)
        place = where and where.text
        error = died(end.worker, end.pid, end.code, place, deaths, end.stack, before=self._died)
        return error, _of_death(WorkerDied, end, where, str(error), ends=True)

    def _where(self, end: WorkerExit) -> Where | None:
        return without_unit(end.position) if end.unit is None else self._event_sink.locate(end.unit, end.position)

    def _place(self, incident: Stalled) -> Where:
        """Returns the place of a stall. A unit below 0 stands for the unpickling of the job."""
        if incident.unit < 0:
            return without_unit(Position(Activity.UNPICKLING)) or Where("")
        return self._event_sink.locate(incident.unit, incident.position)

    def _replaced(self, incident: Replaced) -> Event:
        end = incident.end
        where = self._where(end)
        self._died.append(in_short(end.worker, end.code, where and where.text))
        return death(self._rules, end, where)

    def _stalled(self, incident: Stalled) -> Event:
        worker, unit, position, seconds, stack = incident
        where = self._place(incident)
        follows = {
            "warn": "The worker goes on (stall_action='warn').",
            "restart": "The worker is ended, and another makes the batch (stall_action='restart').",
            "raise": "The run ends (stall_action='raise').",
        }
        lock = self.held_lock(stack)
        follow = follows[self._rules.stall_action]
        message = f"{_stalls(incident, where)}{lock} {follow} Its Python stack:\n{users_stacks(stack)}"
        return WorkerStalled(
            message=message,
            worker=worker,
            batch=where.batch,
            unit=None if unit < 0 else unit,
            mark=position.mark,
            seconds=seconds,
            index=where.index,
        )


def _stalls(stalled: Stalled, where: Where) -> str:
    return f"worker {stalled.worker} has been at {where.text} for {stalled.seconds:.3g} s."


def _stays(incident: Stays) -> Event:
    worker, pid, reason = incident
    message = (
        f"worker {worker} (pid {pid}) cannot be replaced, because its stream cannot be opened again where it stands. "
        "Give the dataset state_dict() and load_state_dict(state), or build it from stoker's streams. Reason for "
        f"the replacement: {reason}"
    )
    return RetireFailed(message=message, worker=worker)


def _crowded(incident: Crowded) -> Event:
    working, workers, growth, left, limit, source = incident
    message = (
        f"there is memory for {working} of {workers} workers at once: one takes up to {growth / 2**20:,.0f} MiB for "
        f"the batch that it makes, and {left / 2**20:,.0f} MiB are left of {limit / 2**20:,.0f} (limited by {source}). "
        "The other workers wait for their turn. Use a smaller batch_size or fewer workers, leave collation to the "
        "loader (it writes large samples into the batch as they come), delete batches that are still kept, or give "
        "the container more memory."
    )
    return MemoryThrottled(message=message, working=working, growth=growth, available=left, limit=limit)


def _held_back(incident: HeldBack) -> Event:
    worker, why, others = incident
    alone = f"No other worker is left: the start is tried again, and the run ends if it fails for {PATIENCE:g} s."
    meanwhile = "The other workers go on, and the start is tried again." if others else alone
    message = f"worker {worker} cannot be started again yet: {why}. {meanwhile}"
    return RestartDelayed(message=message, worker=worker)


_FROM_OUTSIDE = (
    "SIGKILL most often comes from the kernel, which is out of memory (see `dmesg`): use fewer workers or smaller "
    "batches."
)

_ITS_OWN = "This signal most often comes from a library in C: num_workers=0 shows where."

_LOST_MEMORY = (
    "SIGBUS most often comes from a mapped file that has no room for the memory, as a shared tensor in a full "
    "/dev/shm, or that was cut off."
)

_LEFT = (
    "The process ended itself: by sys.exit(), os._exit() or KeyboardInterrupt in the dataset or in a library, for "
    "instance."
)

MINDER = "the helper process"
"""The zygote's name in messages."""

_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def died(
    number: int,
    pid: int | str,
    code: int | None,
    where: str | None,
    deaths: int = 1,
    stack: str = "",
    then: str = "",
    before: Iterable[str] = (),
) -> errors.WorkerDiedError:
    """Returns the error of a worker that has ended by itself.

    Args:
        code: its exit code; negative for a signal.
        where: its work, in words; None if it was idle.
        deaths: number of recent deaths, this one included.
        stack: its last Python stack, if it could still write it.
        then: the consequence, in words.
        before: the latest of the other deaths, a line each.
    """
    doing = " while it was idle" if where is None else f" while it made {where}"
    several = f" {deaths} workers have died within ten minutes (see `max_restarts`)." if deaths > 1 else ""
    shown = f"\nIts last Python stack:\n{users_stacks(stack).strip()}" if stack else ""
    return errors.WorkerDiedError(
        f"{_ended(pid, code)}. It was worker {number}, and ended{doing}.{several}{_cause(code)}"
        f"{_earlier(before)}{then and chr(10) + then}{shown}"
    )


DOING = {
    Activity.IDLE: "before it began",
    Activity.START: "in worker_init_fn, or before its first sample",
    Activity.WHOLE: "in __getitems__",
    Activity.COLLATE: "in collate_fn",
    Activity.TRANSFORM: "in batch_transform",
    Activity.WRITE: "while the batch was handed over",
    Activity.DESCRIBE: "in the dataset's describe()",
    Activity.POLICY: "in on_error",
}
"""Activities without a sample, in words."""


def without_unit(position: Position) -> Where | None:
    """Returns the activity of a worker without a unit, in words; None if it was idle."""
    if position.activity is not Activity.UNPICKLING:
        return None
    return Where("its copy of the dataset (unpickling)")


def blamed(pid: int | str, code: int | None, position: Position) -> str:
    """Returns the description of a position in a unit that ended several workers, the last one like this."""
    return f"{_ended(pid, code)}. So did each worker that made this batch before, {_there(position)}.{_cause(code)}"


def stalled(seconds: float, position: Position) -> str:
    """Returns the description of a position in a unit that took too long, again and again."""
    return (
        f"this batch takes longer than stall_warning {_there(position)}, and each worker that made it was ended "
        f"(stall_action='restart'), the last one after {seconds:.3g} s."
    )


def in_short(number: int, code: int | None, where: str | None) -> str:
    """Returns the description of a worker's death, on one line."""
    return f"worker {number} {linux.exit_text(code)}, {'idle' if where is None else f'while it made {where}'}"


DOUBTED = "a worker died while it made this unit and others at once"
"""The description of a unit that was made together with others."""


def _ended(pid: int | str, code: int | None) -> str:
    """Returns the description of a death, in the words of both errors of torch's, which programs look for."""
    ended = linux.exit_text(code)
    if ended.startswith("exited unexpectedly"):
        return f"DataLoader worker (pid(s) {pid}) {ended}"
    return f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {ended}"


def _cause(code: int | None) -> str:
    """Returns the most likely cause, as a sentence after others."""
    if code is None or code == linux.CLOSED:
        return ""
    if code >= 0:
        return f" {_LEFT}"
    if code == -getattr(signal, "SIGKILL", 9):
        return f" {_FROM_OUTSIDE}"
    if code == -getattr(signal, "SIGBUS", 0):
        return f" {_LOST_MEMORY} {shm_in_words()}".rstrip()
    return f" {_ITS_OWN}" if code in OWN_SIGNALS else ""


def _earlier(deaths: Iterable[str]) -> str:
    lines = "".join(f"\n- {death}" for death in deaths)
    return lines and f"\nBefore it:{lines}"


def _there(position: Position) -> str:
    return DOING.get(position.activity, "at this sample (on_error='skip' or 'replace' goes on without it)")


def not_started(who: str, error: OSError) -> errors.WorkerStartError:
    """Returns the error for a process that cannot be started; `who` names it."""
    why = "The limit on processes (`ulimit -u`, or the container's `pids.max`) or on memory is reached"
    if error.errno is None:  # no limit of this machine's: the text says all
        return errors.WorkerStartError(str(error))
    if error.errno in _DESCRIPTORS:
        why = "The limit on open files is reached (`ulimit -n`; of the whole machine: `fs.file-max`)"
    return errors.WorkerStartError(f"could not start {who}: {error}. {why}: use fewer workers, or raise the limit.")


@contextlib.contextmanager
def starting(who: str) -> Iterator[None]:
    """Raises WorkerStartError with the exhausted resource if a process cannot be started in the block."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOMEM, *_DESCRIPTORS):
            raise
        raise not_started(who, error) from error


def broken(failure: Failure) -> BaseException:
    """Returns the error for a worker that could not be started, or could not unpickle the job."""
    error: BaseException
    kind = failure.known_kind
    if kind is not None and issubclass(kind, errors.StokerError):
        error = kind(failure.text.partition(": ")[2])
    else:
        error = errors.WorkerStartError(
            f"the workers could not be started: {failure.text}. A clean worker (spawn, forkserver) imports the "
            "dataset's modules again: they must be importable there."
        )
    error.__cause__ = errors.WorkerTraceback(without_own_lines(failure.traceback))
    return error


# The consequence of a death, as `stoker._engine.supervision` decides it, with a unit's faults in words for the next
# worker.


class WorkerDeath(NamedTuple):
    """The death of a worker.

    Attributes:
        units: units that it held, the one in work first.
        position: its activity and place.
        code: its exit code, negative for a signal; None if unknown.
        stack: its last Python stack, if it was available.
        stall: the stall for which it was ended, with its stack then; or None.
        is_lost: whether its machine may have ended with it.
    """

    units: Sequence[int]
    position: Position
    pid: int | str
    code: int | None
    stack: str = ""
    stall: tuple[Stall, str] | None = None
    is_lost: bool = False


HOSTS = 3
"""Machines that end while they make one unit, from which on the unit may be to blame, and such ends count as deaths."""


class Blame:
    """Finds the cause of deaths, and gives the known faults of a unit to the workers that make it again.

    Args:
        rules: number of deaths that are survived, and of units that a worker holds.
        stalls: knows the units that took too long.
    """

    def __init__(self, rules: Rules, stalls: Stalls) -> None:
        self._restarts = Restarts(rules.max_restarts, rules.deaths)
        self._stalls = stalls
        self._several = rules.units_at_once > 1  # samples of several units are made at a time
        self._known: dict[int, list[KnownFault]] = {}
        self._lost: dict[int, int] = {}  # unit → machines that ended while they made it

    def known(self, unit: int) -> KnownFaults:
        """Returns the known faults of the unit."""
        return self._known.get(unit, ())

    def answered(self, unit: int) -> None:
        """Forgets a unit that is done."""
        self._restarts.answered(unit)
        self._stalls.answered(unit)
        self._known.pop(unit, None)
        self._lost.pop(unit, None)

    @property
    def deaths(self) -> tuple[float, ...]:
        """The times of the deaths that count at present."""
        return self._restarts.times

    def died(self, death: WorkerDeath, now: float) -> Verdict:
        """Records the death of a worker; returns its consequence. A fault of the unit is known from now on."""
        unit = death.units[0] if death.units else None
        if death.is_lost:  # its mark may be old: it proves nothing
            if unit is not None:
                self._lost[unit] = self._lost.get(unit, 0) + 1
            few = unit is None or self._lost[unit] < HOSTS
            return Verdict(0.0) if few else self._restarts.died(unit, None, None, now)
        if self._several and unit is not None and unit not in self._known:
            return self._doubt(death.units, now)
        place = None if death.position == IDLE else death.position.mark
        if unit is None or death.stall is None or death.stall[0].unit != unit:
            verdict = self._restarts.died(unit, place, death.code, now)
            message = blamed(death.pid, death.code, death.position)
            fault = KnownFault(death.position, "death", message, death.stack)
        elif self._stalls.ended(unit, place):
            stall, stack = death.stall
            self._restarts.forgive(unit)
            verdict = Verdict(0.0, blamed=True)
            fault = KnownFault(death.position, "stall", stalled(stall.seconds, death.position), stack)
        else:
            return self._restarts.died(unit, None, death.code, now)  # it counts, and proves nothing yet
        if verdict.blamed and unit is not None:
            self._known.setdefault(unit, []).append(fault)
        return verdict

    def _doubt(self, units: Sequence[int], now: float) -> Verdict:
        """Marks the units of a worker that made several samples at once: their next worker makes them one by one."""
        for unit in units:
            self._known.setdefault(unit, []).append(KnownFault(SEVERAL, "death", DOUBTED))
            self._stalls.ended(unit, None)
        return self._restarts.died_among(list(units), now)
