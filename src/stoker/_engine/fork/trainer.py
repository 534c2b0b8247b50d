"""The process backend in the trainer: one socket and one pidfd to the zygote. No thread, no lock.

The file is long because units, their answers and the replacement of a zygote share one state: which units are under
way. A part on its own would need all of it. What belongs to one zygote alone is in `zygote_handle.py`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from stoker import errors
from stoker._core.interruption import harmless
from stoker._core.machine import memory
from stoker._engine.activity import START
from stoker._engine.backend import Answer, Backend, EventSink, UnitReport
from stoker._engine.backends import FORKED, Assemble, Parts, StartMethod
from stoker._engine.commands import StreamStates
from stoker._engine.fork import native_pools
from stoker._engine.fork.births import Births
from stoker._engine.fork.zygote_handle import ZygoteHandle, end_all
from stoker._engine.machines.cluster import Ray
from stoker._engine.messages import (
    AskPool,
    AskStacks,
    AskWorkers,
    Broken,
    Costs,
    DeathsCounted,
    Delivery,
    Drop,
    Fed,
    Freed,
    GaveUp,
    Grow,
    Happened,
    HeapMarked,
    LastDeath,
    MarkingHeap,
    NeedsMemory,
    Pulse,
    Shares,
    Starved,
    StoreUse,
    Streams,
    Submit,
    ToTrainer,
    Unpickled,
    WorkerPids,
    WorkersLocked,
)
from stoker._engine.process import linux
from stoker._engine.process.answers import answer_of
from stoker._engine.process.deadlines import (
    FROZEN,
    HELD_BACK,
    HUNG,
    OPENED,
    PATIENCE,
    PULSE,
    SERVED,
    STACKS,
)
from stoker._engine.process.worker_events import Teller, broken
from stoker._engine.process_guard import check_owner, leave_if_left_behind
from stoker._engine.supervision.restarts import Restarts
from stoker._engine.supervision.rules import Rules
from stoker._engine.tracebacks import users_stacks
from stoker._engine.transport import leaves
from stoker._engine.transport.arena import Slot
from stoker._engine.transport.reader import Lease
from stoker._engine.transport.writer import Packed, Written
from stoker.events import Event, ForkDeadlock, HelperDied

_KILLED = "Was it killed because memory ran out (see `dmesg`), or by a user?"
"""Why the helper process may have ended, where it has not said so itself."""

_BIRTH = -1
"""Stands for a unit: the steps of a zygote before its workers are born."""


_Arrived = tuple[ZygoteHandle, "Slot | None", Packed, str | None]
"""The value of an answer with a batch: the zygote that has its slot, the slot, the batch as written, and the
other machine that made it."""


class ProcessBackend(Backend):
    """Runs units in worker processes, through a zygote.

    Args:
        parts: parts of the job, by name: these names begin the paths in `CannotSendError`.
        assemble: makes the job factory from the parts; a function of a module.
        workers: number of processes.
        how: start method.
        rules: limits of the workers, and number of deaths that are survived.
        event_sink: receives the events.
        cluster: where the last of the workers are; None if all are processes of this machine.
        births: of the loader, whose clean zygotes come from one template; None for a backend of its own.
    """

    capabilities = FORKED

    def __init__(
        self,
        parts: Parts,
        assemble: Assemble,
        workers: int,
        how: StartMethod,
        rules: Rules,
        event_sink: EventSink,
        cluster: Ray | None = None,
        births: Births | None = None,
    ) -> None:
        self._births = births
        self._cluster = cluster
        self._known = None
        if cluster is not None:
            from stoker._engine.machines.known_classes import KnownClasses

            self._known = KnownClasses(map(str, cluster.classes))
        self._parts = parts
        self._assemble = assemble
        self._workers = workers
        self._grown_to = 0
        self._how = how
        self._rules = rules
        self._event_sink = event_sink
        self._events: deque[Event] = deque()  # not delivered yet
        self._deaths = Restarts(rules.max_restarts)
        self._teller = Teller(rules, event_sink)
        self._streams = StreamStates()
        self._lives: list[ZygoteHandle] = []  # those that hold resources; the last one works
        self._units: dict[int, tuple[bytes, int | None, int]] = {}  # submitted, not answered: work, worker, rows
        self._inbox: deque[Answer] = deque()
        self._dropped_below = 0
        self._fatal: BaseException | None = None
        self._starved_for: int | None = None  # the earliest unit that waits for memory
        self._was_starved = False  # units are single from then on, so that memory comes back one by one
        self._gave_back = 0.0  # time at which slots were last given back to a unit that waits for memory
        self._hungry_for: int | None = None  # the unit for which the zygote got the last `NeedsMemory`
        self._shares: bool | None = None  # whether workers share units
        self._lease: Lease | None = None  # of the batch that was opened last
        self._fork_deadlocks = 0
        self._machines: dict[int, str] = {}  # of the workers that are elsewhere
        self._ever_worked = False
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, end_all, self._lives)
        self._bear()

    def _bear(self) -> None:
        leave_if_left_behind()
        rules = self._rules._replace(deaths=self._deaths.times)
        self._life = ZygoteHandle(
            self._how, self._workers, rules, self._parts, self._assemble, self._cluster, self._births
        )
        self._lives.append(self._life)
        if self.is_closed:  # meanwhile, by the end of the interpreter
            end_all(self._lives)
            leave_if_left_behind()
        self._marks = False  # whether it marks the heap before it forks workers
        self._gone = False  # whether the last poll found the zygote ended
        self._why = _KILLED
        self._poll = select.poll()
        self._poll.register(self._life.channel.fileno(), select.POLLIN)
        self._polls_for_room = False
        if self._life.alarm.descriptor is not None:
            self._poll.register(self._life.alarm.descriptor, select.POLLIN)
        if self._life.descriptor is not None:
            self._poll.register(self._life.descriptor, select.POLLIN)

    def _bear_again(self) -> None:
        """Starts another zygote for the unanswered units; sets `_fatal` if none can be started."""
        self._starved_for = self._hungry_for = None
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._bear()
                break
            except (errors.WorkerStartError, errors.MemoryLimitError) as error:  # both may pass
                if time.monotonic() > until:
                    self._fatal = error
                    return
                time.sleep(HELD_BACK)
        if states := self._streams.all():
            self._life.channel.send(Streams(states))
        if self._grown_to > self._workers:
            self._life.channel.send(Grow(self._grown_to))
        for unit, (blob, worker, rows) in sorted(self._units.items()):
            self._life.channel.send(Submit(unit, worker, blob, [], rows))

    @contextlib.contextmanager
    def _between_lives(self) -> Iterator[None]:
        """Replaces the zygote. If that fails, by Ctrl-C too, no zygote is left to listen to."""
        try:
            yield
        except BaseException as error:
            fatal: BaseException = error
            if not isinstance(error, errors.StokerError):
                fatal = errors.WorkerStartError(
                    f"the helper process has ended, and no other was started: {error!r}. Make a new "
                    "iterator with iter(loader)."
                )
                fatal.__cause__ = error
            self._fatal = self._fatal or fatal
            raise

    @property
    def pids(self) -> list[int]:
        """Process numbers: the zygote's, then the workers' as far as they are known."""
        return [self._life.pid, *self._life.workers]

    def grow(self, workers: int) -> None:
        self._grown_to = workers
        self._life.channel.send(Grow(workers))

    @property
    def grown(self) -> int:
        rules = self._rules
        return max(1, self._workers - rules.remote + len(self._machines)) if rules.on_demand else 0

    @property
    def workers_there(self) -> int:
        return len(self._life.workers)

    def cpu_seconds(self) -> dict[int, float]:
        return {pid: linux.cpu_seconds_wanted(pid) for pid in self._life.workers}

    def submit(self, unit: int, work: object, worker: int | None, rows: int = 0) -> None:
        check_owner(self._owner)
        blob = leaves.dumps_unit(work)
        self._units[unit] = (blob, worker, rows)
        self._life.channel.queue(Submit(unit, worker, blob, self._returned(), rows))

    def submit_run(self, unit: int, works: Sequence[object]) -> None:
        check_owner(self._owner)
        blobs = list(map(leaves.dumps_unit, works))
        self._units.update((number, (blob, None, 0)) for number, blob in enumerate(blobs, unit))
        self._life.channel.queue(Submit(unit, None, blobs, self._returned(), 0))

    @property
    def makes_runs(self) -> bool:
        return not self._was_starved

    def _returned(self) -> list[int]:
        reader = self._life.reader
        if self._starved_for is not None and reader.has_returned():
            self._gave_back = time.monotonic()
        return reader.returned()

    def flush(self) -> None:
        self._life.channel.flush()

    @property
    def ready(self) -> int:
        check_owner(self._owner)
        if self._units and self._fatal is None:
            self._listen()
        return len(self._inbox)

    @property
    def lease(self) -> Lease | None:
        return self._lease

    @property
    def shares(self) -> bool | None:
        return self._shares

    def within_run(self) -> Answer | None:
        check_owner(self._owner)
        if not self._inbox and self._units and self._fatal is None:
            self._listen()
        return self._inbox.popleft() if self._inbox and not self._events else None

    def receive(self, timeout: float | None) -> Answer:
        check_owner(self._owner)
        if self._inbox and not self._events:
            return self._inbox.popleft()
        self.flush()
        start = latest = time.monotonic()
        until = None if timeout is None else start + timeout
        asked = start
        while True:
            self._listen()
            while self._events:  # no event is lost if the user's listener raises
                self._event_sink.tell(self._events.popleft())
            if self._inbox:
                return self._inbox.popleft()
            if self._fatal is not None:
                raise self._fatal
            now = time.monotonic()
            if until is not None and now >= until:
                raise self._timed_out(timeout)
            wait = self._feed(now)
            if until is not None:
                wait = min(wait, until - now)
            ready = self._poll_for(wait)
            if (frozen := time.monotonic() - now) > wait + FROZEN:
                latest, asked, until = latest + frozen, asked + frozen, until and until + frozen
            if ready:
                latest = time.monotonic()
            elif now - latest > (limit := self._longest_silence()):
                with self._between_lives():
                    is_silent = not linux.is_stopped(self._life.pid)
                    self._life.end_processes(kill=True)
                    self._lost_zygote(
                        f"DataLoader worker (pid(s) {self._life.pid}) exited unexpectedly: the helper process gave no "
                        f"sign of life for {limit:g} s and was ended. It needs hardly any CPU time: did a signal or a "
                        "debugger stop it?",
                        is_silent,
                    )
                latest = time.monotonic()
            elif time.monotonic() - asked > PULSE:
                asked = time.monotonic()
                self._life.channel.send(Pulse())

    def _feed(self, now: float) -> float:
        """Gives back memory if the next unit waits for some; returns the seconds until the next step."""
        if self._starved_for is None:
            return PULSE
        due = min(self._units, default=-1)
        if due < self._starved_for or due == self._hungry_for:
            return PULSE
        reader = self._life.reader
        if reader.has_returned():
            self._gave_back = now
            self._life.channel.send(Freed(reader.returned()))
        if now - self._gave_back < SERVED:
            return SERVED
        gc.collect()  # batches in cycles hold slots
        self._hungry_for = due
        self._life.channel.send(NeedsMemory(reader.returned(), due, reader.unregister_idle()))
        return PULSE

    def _longest_silence(self) -> float:
        life = self._life
        begins = not life.workers and (self._marks or not self._how.forked)
        return OPENED if begins and not linux.is_stopped(life.pid) else HUNG

    def _poll_for(self, seconds: float) -> bool:
        """Waits for a message of the zygote, or its end; returns whether there is one."""
        life = self._life
        if life.channel.unsent != self._polls_for_room:
            self._polls_for_room = life.channel.unsent
            events = select.POLLIN | (select.POLLOUT if self._polls_for_room else 0)
            self._poll.modify(life.channel.fileno(), events)
        if seconds == PULSE:  # nearly every wait
            if not life.alarm.is_set:
                life.alarm.set(PULSE)
            patience = life.alarm.patience()
        else:
            patience = seconds
        ready = [descriptor for descriptor, _ in _wait(self._poll, patience)]
        if not ready or life.alarm.descriptor in ready:
            life.alarm.quiet()
            ready = [descriptor for descriptor in ready if descriptor != life.alarm.descriptor]
        self._gone = life.descriptor in ready
        life.channel.flush()
        return bool(ready)

    def _listen(self) -> None:
        """Takes the messages that have arrived; notices the zygote's end."""
        if self._life.ended:
            return
        life = self._life
        gone = self._gone  # read before the messages: the last ones of a zygote that ended are still there
        for message in life.channel.receive():
            if life.ended:  # it was born with a lock held: its other messages must not count for the next one
                break
            self._hear(message)
        if life.ended:
            return
        if (gone or life.channel.ended) and self._fatal is None:
            with self._between_lives():
                why, self._why = self._why, _KILLED
                life.end_processes()
                self._lost_zygote(
                    f"DataLoader worker (pid(s) {', '.join(map(str, self.pids))}) exited unexpectedly: the "
                    f"helper process (pid {self._life.pid}) of the workers {linux.exit_text(self._life.status)}. "
                    f"{why}"
                )

    def _lost_zygote(self, story: str, is_silent: bool = False) -> None:
        """Replaces a zygote that has ended with its workers, unless they died too often.

        A zygote that was silent for too long at its birth is not replaced, unless it was stopped: the user has waited
        long enough.
        """
        if self._life.has_answered:
            self._deaths.answered(_BIRTH)  # what kills may have passed: no pause before the next
        unit, place = (None, None) if self._ever_worked else (_BIRTH, START.mark)  # what it is sent may be to blame
        pause, blamed = self._deaths.died(unit, place, self._life.status, time.monotonic())
        if pause is None or blamed or (is_silent and not self._ever_worked):
            self._fatal = errors.WorkerDiedError(story)
            self._events.append(HelperDied(message=story, ends=True))
            return
        self._tell(HelperDied, f"{story}\nAnother helper process is started, and unfinished batches are made again.")
        before = self._life
        time.sleep(pause)
        self._bear_again()
        self._release(before)

    def _tell(self, kind: type[HelperDied] | type[ForkDeadlock], message: str) -> None:
        self._events.append(kind(message=message))

    def _release(self, life: ZygoteHandle) -> None:
        """Releases an ended life's resources once all its batches are delivered."""
        if life.ended and life is not self._life and not life.unopened:
            life.end()
            self._lives.remove(life)

    def _hear(self, message: ToTrainer) -> None:
        match message:
            case Delivery():
                self._take(message)
            case WorkerPids():
                self._life.workers, self._machines = message
                self._ever_worked = True
            case Starved():
                self._was_starved = True
                self._starved_for, self._hungry_for = message.unit, None  # answered when nothing is left to deliver
            case Fed():
                self._starved_for = None
            case Shares():
                self._shares = message.shares
            case Costs():
                self._event_sink.learned(*message)
            case Happened():
                self._events.append(replace(self._teller.event(message.incident), time=message.time))
                self._fatal = self._teller.error(message.incident) or self._fatal
            case LastDeath():
                self._fatal, event = self._teller.last_death(message)
                self._events.append(event)
            case DeathsCounted():
                self._deaths.recounted(message.times)
            case MarkingHeap():
                self._marks = True
            case HeapMarked():
                self._event_sink.marked(*message)
            case Unpickled():
                self._event_sink.unpickled(message.seconds, message.size)
            case StoreUse():
                self._event_sink.stored(message)
            case WorkersLocked():
                with self._between_lives():
                    self._deadlocked(message.stacks)
            case GaveUp():
                self._why = message.why
            case Broken():
                self._fatal = broken((pickle.loads if self._known is None else self._known.failure)(message.failure))

    def _is_remote(self, worker: int) -> bool:
        return worker >= self._workers - self._rules.remote

    def _take(self, message: Delivery) -> None:
        """Handles the answer of a unit."""
        self._life.has_answered = True
        report = UnitReport(*message.report)
        known = self._known if self._is_remote(message.worker) else None
        try:
            report = report if known is None else known.checked(report)
            self._streams.take(message.worker, report)
            self._units.pop(message.unit, None)
            answer = answer_of(message, report, known)
        except errors.CannotSendError as error:
            self._fatal = error
            return
        if answer is None:
            return
        if answer.kind == "batch":
            self._life.unopened += 1
            machine = self._machines.get(message.worker)
            answer.value = (self._life, *cast("tuple[object, ...]", answer.value), machine)
        if answer.unit < self._dropped_below:
            self.discard(answer)
        else:
            self._inbox.append(answer)

    def _deadlocked(self, stacks: str) -> None:
        """Handles workers that all wait for locks since birth: another birth may find the lock free; after that, an
        error.
        """
        self._life.end(kill=True)
        self._lives.remove(self._life)
        self._fork_deadlocks += 1
        pools = native_pools.find() if self._how.forked else None
        cause = "" if pools is None else f"; {pools} does not survive a fork"
        if self._fork_deadlocks > 1 or not self._how.forked:
            self._fatal = errors.ForkDeadlockError(
                f"all {self._workers} workers wait for locks in their first samples, also after a second start. A lock "
                "that another thread of this process holds while it forks stays locked in the workers for ever"
                f"{cause}. Use multiprocessing_context='forkserver', or let no other thread hold it while "
                f"iter(loader) runs.\n{users_stacks(stacks)}"
            )
            return
        self._tell(
            ForkDeadlock,
            f"all {self._workers} workers waited for locks in their first samples: another thread held one while they "
            f"were forked{cause}. They are started again. multiprocessing_context='forkserver' avoids "
            f"this.\n{users_stacks(stacks)}",
        )
        self._bear_again()

    def _timed_out(self, timeout: float | None) -> errors.LoaderTimeoutError:
        stacks = self.stacks()
        return errors.LoaderTimeoutError(
            f"DataLoader timed out after {timeout:g} seconds: no batch arrived from {self._workers} worker(s)."
            f"{self._teller.held_lock(stacks, 'A worker')} Raise `timeout`, or see below where the workers are.\n"
            f"{users_stacks(stacks)}"
        )

    def stacks(self) -> str:
        """Returns the Python stacks of the workers now, or a text about their absence."""
        if os.getpid() != self._owner:
            return "(only the process that made the iterator can read the workers' stacks)"
        text = self._life.inquiry.ask(AskStacks, STACKS * (self._workers + 1))
        return cast("str | None", text) or "(the workers' stacks could not be read)"

    def pool_use(self) -> tuple[int, float, float] | None:
        if self._cluster is None or self._cluster.pool is None or os.getpid() != self._owner:
            return None
        return cast("tuple[int, float, float] | None", self._life.inquiry.ask(AskPool, STACKS))

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def memory(self) -> dict[str, int]:
        """Returns the bytes of the arenas, the zygote (to the user: the helper process) and the workers."""
        zygote, *workers = self.pids
        if os.getpid() == self._owner:  # a forked child would read the messages of its parent
            workers = cast("list[int] | None", self._life.inquiry.ask(AskWorkers, STACKS)) or workers
        return {
            "batches": sum(life.bytes_of_batches for life in list(self._lives)),
            "helper process": memory.proportional(zygote),
            f"{len(workers)} workers": sum(memory.proportional(pid) for pid in workers),
        }

    def open(self, answer: Answer) -> object:
        check_owner(self._owner)
        life, slot, value, machine = cast("_Arrived", answer.value)
        answer.value = None
        try:
            read = pickle.loads if self._known is None else self._known.reader(self._is_remote(answer.worker))
            batch = life.reader.read(slot, Written.unpacked(value, read), read)
            self._lease = life.reader.latest
            if machine is not None:
                self._event_sink.came_from(machine, Written.size_of(value))
            return batch
        except Exception as error:
            if self._is_remote(answer.worker):
                error.add_note(f"The batch came from {machine or 'another machine'}.")
            raise
        finally:
            life.unopened -= 1
            self._release(life)

    def discard(self, answer: Answer) -> None:
        if answer.kind == "batch":
            life, slot, _, _ = cast("_Arrived", answer.value)
            if slot is not None:
                life.reader.discard(slot)
            life.unopened -= 1
            self._release(life)

    def drop(self, before: int) -> None:
        check_owner(self._owner)
        self._dropped_below = before
        for answer in self._inbox:
            if answer.unit < before:
                self.discard(answer)
        self._inbox = deque(answer for answer in self._inbox if answer.unit >= before)
        self._units = {unit: item for unit, item in self._units.items() if unit >= before}
        self._life.channel.send(Drop(before))

    def close(self) -> None:
        self._finalizer()
        if self._fatal is None:
            self._fatal = errors.IteratorClosedError("the iterator is closed: make a new one with iter(loader)")


@harmless
def _wait(poll: select.poll, seconds: float | None) -> list[tuple[int, int]]:
    return poll.poll(None if seconds is None else seconds * 1000)
