"""Worker processes without fork: each is an interpreter of its own, which multiprocessing spawns.

The trainer carries out the supervisor's commands, as the zygote does elsewhere. That happens only while it asks for a
batch or submits a unit, so a worker that is done during a long training step waits. There is a pipe to each worker, no
thread and no lock.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from multiprocessing import connection
from typing import TYPE_CHECKING, TypeAlias, cast

from stoker import errors
from stoker._core.interruption import harmless
from stoker._core.machine import memory
from stoker._engine.backend import Answer, Backend, EventSink, UnitReport
from stoker._engine.backends import SPAWNED, Assemble, Parts
from stoker._engine.commands import (
    AllStarted,
    Away,
    Command,
    Dismiss,
    Event,
    Exited,
    Heard,
    Inspect,
    Inspected,
    Kill,
    Notify,
    Send,
    SetTimer,
    Spawn,
    Started,
    StartFailed,
    Tell,
    Tick,
)
from stoker._engine.messages import (
    Broken,
    Costs,
    Delivery,
    Drop,
    Fed,
    Freed,
    Grow,
    LastDeath,
    Leave,
    NeedsMemory,
    Shares,
    Starved,
    Submit,
    ToTrainer,
    Unpickled,
)
from stoker._engine.process import linux
from stoker._engine.process.answers import answer_of
from stoker._engine.process.deadlines import FROZEN, PULSE
from stoker._engine.process.worker_events import Teller, broken
from stoker._engine.process_guard import check_owner
from stoker._engine.spawn.worker_processes import WorkerProcesses
from stoker._engine.supervision.rules import Rules
from stoker._engine.supervisor import Supervisor
from stoker._engine.transport import leaves
from stoker._engine.transport.arena import Slot
from stoker._engine.transport.writer import Packed, Written
from stoker.events import Event as UserEvent

if TYPE_CHECKING:
    from stoker._engine.spawn.worker import Pipe

    Waitable: TypeAlias = Pipe | int

_Arrived = tuple[Slot | None, Packed]
"""The value of an answer with a batch: its slot, and the batch as written."""

AT_ONCE = 60
"""Number of objects in one wait. Before Python 3.13, Windows can wait for 63."""

TURN = 0.05
"""Seconds between looks at the objects beyond `AT_ONCE`."""

NO_STACK = "(the stack of a busy worker can be read only where workers are forked)"


class SpawnBackend(Backend):
    """Runs units in spawned worker processes.

    Args:
        parts: parts of the job, by name: these names begin the paths in `CannotSendError`.
        assemble: makes the job factory from the parts; a function of a module.
        workers: number of processes.
        rules: limits of the workers.
        event_sink: receives the events.
    """

    capabilities = SPAWNED

    def __init__(self, parts: Parts, assemble: Assemble, workers: int, rules: Rules, event_sink: EventSink) -> None:
        self._workers = workers
        self._event_sink = event_sink
        self._teller = Teller(rules, event_sink)
        self._life = WorkerProcesses({**parts, "assemble": assemble}, workers, rules)
        self._finalizer = weakref.finalize(self, self._life.end)
        self._inbox: deque[Answer] = deque()
        self._events: deque[UserEvent] = deque()  # not delivered yet
        self._dropped_below = 0
        self._grown_to = 0
        self._shares: bool | None = None
        self._starved_for: int | None = None  # the earliest unit that waits for memory
        self._was_starved = False  # units are single from then on, so that memory comes back one by one
        self._timer: float | None = None
        self._left = time.monotonic()  # time of the last call of the supervisor
        self._fatal: BaseException | None = None
        self._owner = os.getpid()
        self._supervisor = Supervisor(workers, rules, self._life.arena, self._life, unpickles=True)
        started = [Started(number, child.pid) for number, child in self._life.children.items()]
        self._handle([*started, AllStarted(memory.available().bytes)])

    def submit(self, unit: int, work: object, worker: int | None, rows: int = 0) -> None:
        check_owner(self._owner)
        self._handle([Submit(unit, worker, leaves.dumps_unit(work), self._life.reader.returned(), rows)])

    def submit_run(self, unit: int, works: Sequence[object]) -> None:
        check_owner(self._owner)
        blobs = list(map(leaves.dumps_unit, works))
        self._handle([Submit(unit, None, blobs, self._life.reader.returned(), 0)])

    @property
    def makes_runs(self) -> bool:
        return not self._was_starved

    @property
    def has_answer(self) -> bool:
        if not self._inbox and self._fatal is None:
            self._handle([Away(time.monotonic() - self._left)])
            self._listen(0.0)
            self._left = time.monotonic()
        return bool(self._inbox)

    @property
    def shares(self) -> bool | None:
        return self._shares

    def grow(self, workers: int) -> None:
        with contextlib.suppress(OSError):  # no memory for more: the present workers continue
            self._life.grow(workers)
            self._grown_to = workers
            self._handle([Grow(workers)])

    @property
    def grown(self) -> int:
        return self._grown_to

    @property
    def workers_there(self) -> int:
        return sum(child.is_ready for child in self._life.children.values())

    def cpu_seconds(self) -> dict[int, float]:
        used = {child.pid: linux.cpu_seconds_wanted(child.pid) for child in self._life.children.values()}
        return {pid: seconds for pid, seconds in used.items() if seconds}

    def receive(self, timeout: float | None) -> Answer:
        check_owner(self._owner)
        self._handle([Away(time.monotonic() - self._left)])
        try:
            return self._next_answer(timeout)
        finally:
            self._left = time.monotonic()

    def _next_answer(self, timeout: float | None) -> Answer:
        until = None if timeout is None else time.monotonic() + timeout
        wait = 0.0  # what has arrived comes first
        while self._fatal is None:
            before = time.monotonic()
            self._listen(wait)
            if (frozen := time.monotonic() - before) > wait + FROZEN:
                self._handle([Away(frozen)])
                until = until and until + frozen
            if self._timer is not None and time.monotonic() >= self._timer:
                self._timer = None
                self._handle([Tick()])
            if returned := self._life.reader.returned():
                self._handle([Freed(returned)])
            while self._events:  # here nothing is lost if the user's listener raises
                self._event_sink.tell(self._events.popleft())
            if self._inbox:
                break
            self._feed_the_next()
            now = time.monotonic()
            if until is not None and now >= until:
                raise errors.LoaderTimeoutError(
                    f"DataLoader timed out after {timeout:g} seconds: no batch arrived from {self._workers} worker(s). "
                    "Raise `timeout`, or find the slow sample."
                )
            due = [PULSE if until is None else until - now, *([] if self._timer is None else [self._timer - now])]
            wait = 0.0 if self._inbox else max(0.0, min(PULSE, *due))
        if self._inbox:
            return self._inbox.popleft()
        assert self._fatal is not None
        raise self._fatal

    def open(self, answer: Answer) -> object:
        slot, value = cast("_Arrived", answer.value)
        answer.value = None
        return self._life.reader.read(slot, Written.unpacked(value))

    def discard(self, answer: Answer) -> None:
        if answer.kind == "batch" and (slot := cast("_Arrived", answer.value)[0]) is not None:
            self._life.reader.discard(slot)

    def drop(self, before: int) -> None:
        self._dropped_below = before
        for answer in self._inbox:
            if answer.unit < before:
                self.discard(answer)
        self._inbox = deque(answer for answer in self._inbox if answer.unit >= before)
        self._handle([Drop(before)])

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        self._finalizer()
        if self._fatal is None:
            self._fatal = errors.IteratorClosedError("the iterator is closed: make a new one with iter(loader)")

    def _feed_the_next(self) -> None:
        """Serves the unit that the trainer waits for, if that unit waits for memory: it gets memory now, or an error,
        since no other unit will bring any.
        """
        unit = self._starved_for
        if unit is None or any(self._dropped_below <= other < unit for other in self._supervisor.outstanding):
            return
        gc.collect()  # batches in cycles hold slots
        self._handle([NeedsMemory(self._life.reader.returned(), unit)])

    # The supervisor: what it is told, what it has done

    def _handle(self, events: Iterable[Event]) -> None:
        for command in self._supervisor.handle(events, time.monotonic()):
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        """Carries out a command. Commands for this process itself are left out: trimming memory, and the end, which
        follows from the error.
        """
        children = self._life.children
        match command:
            case Send():
                children[command.worker].send(command.message)
            case Tell():
                self._hear(command.message)
            case Notify():
                self._events.append(self._teller.event(command.incident))
                self._fatal = self._fatal or self._teller.error(command.incident)
            case SetTimer():
                self._timer = command.at
            case Spawn():
                self._spawn(command.worker)
            case Dismiss():
                children[command.worker].send(Leave())
            case Kill():
                if (child := children.get(command.worker)) is not None:
                    child.process.kill()
            case Inspect(number, unit, seconds):
                events = [Heard(number, message) for message in children[number].received()[0]]
                position, in_hand = self._life.marks.read(number), self._life.marks.in_hand(number)
                self._handle([Inspected(number, unit, seconds, position, NO_STACK, in_hand), *events])

    def _hear(self, message: ToTrainer) -> None:
        match message:
            case Delivery():
                if (answer := answer_of(message, UnitReport(*message.report))) is not None:
                    self._inbox.append(answer)
            case Starved():
                self._was_starved = True
                self._starved_for = message.unit
            case Fed():
                self._starved_for = None
            case Shares():
                self._shares = message.shares
            case Costs():
                self._event_sink.learned(*message)
            case Unpickled():
                self._event_sink.unpickled(message.seconds, message.size)
            case LastDeath() if self._fatal is None:
                self._fatal, event = self._teller.last_death(message)
                self._events.append(event)
            case Broken() if self._fatal is None:
                self._fatal = broken(pickle.loads(message.failure))

    def _spawn(self, number: int) -> None:
        try:
            self._life.start(number)
        except OSError as error:
            self._handle([StartFailed(number, error)])
        else:
            self._handle([Started(number, self._life.children[number].pid)])

    def _listen(self, seconds: float) -> None:
        """Takes the messages that arrive within this time, and notices workers that have ended."""
        children = self._life.children
        pipes = [child.pipe for child in children.values()]
        ready = _ready([*pipes, *(child.process.sentinel for child in children.values())], seconds)
        for number, child in list(children.items()):
            ended = child.process.sentinel in ready
            if not ended and child.pipe not in ready:
                continue
            messages, is_over = child.received()
            if messages:
                self._handle([Heard(number, message) for message in messages])
            if (ended or is_over) and children.get(number) is child:
                self._bury(number)

    def _bury(self, number: int) -> None:
        """Reports the end of a worker."""
        code = self._life.children.pop(number).bury()
        marks = self._life.marks
        self._handle([Exited(number, code, marks.read(number), in_hand=marks.in_hand(number))])


@harmless
def _ready(things: list[Waitable], seconds: float) -> Collection[object]:
    """Returns the objects that are ready, waiting for one at most this time; may return early if there are more than
    `AT_ONCE`.
    """
    if not things:
        time.sleep(seconds)
        return []
    parts = [things[first : first + AT_ONCE] for first in range(0, len(things), AT_ONCE)]
    if len(parts) == 1:
        return connection.wait(things, seconds)
    ready = [thing for part in parts for thing in connection.wait(part, 0)]
    return ready or connection.wait(parts[0], min(seconds, TURN))
