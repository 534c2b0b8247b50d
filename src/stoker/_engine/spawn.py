"""Worker processes where there is no fork: each is an interpreter of its own, which multiprocessing spawns.

The trainer does what elsewhere the zygote does: it hands out units, owns the arena, notices deaths and stalls. So all
of that happens only while it asks for a batch or submits a unit: a worker that is done during a long training step
waits. There is a pipe to each worker, no thread and no lock.

A pipe makes its writer wait while it is full. So a unit that might fill one is sent only to a worker that waits for it,
and the two ends never wait for each other.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Mapping
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from typing import Any

from stoker import errors
from stoker._engine import blame, ending, interruption, owner, spawned
from stoker._engine.base import Answer, Backend, Said, Witness
from stoker._engine.process import fates, marks, telling
from stoker._engine.process.birth import Assemble, Parts
from stoker._engine.process.deadlines import FROZEN, HELD_BACK, LEAVE, PATIENCE, PULSE, REAP
from stoker._engine.process.lending import Lending
from stoker._engine.process.life import held_bytes
from stoker._engine.process.shipment import Shipment
from stoker._engine.process.telling import Death
from stoker._events import Event
from stoker._machine import standard
from stoker._supervision.dispatch import Dispatch, Run
from stoker._supervision.restarts import TOLD
from stoker._supervision.retirement import Retirement
from stoker._supervision.rules import Rules
from stoker._supervision.stalls import Stall, Stalls
from stoker._transport import leaves, segments
from stoker._transport.arena import Arena
from stoker._transport.reader import Reader
from stoker._transport.writer import Written

FITS = 4096
"""Bytes that a pipe takes though nobody reads: that of Windows holds 8 KiB."""

AT_ONCE = 60
"""Windows waits for 63 things at once, before Python 3.13."""

TURN = 0.05
"""Seconds between looks at those beyond."""

NO_STACK = "(without fork, the stack of a worker that is busy cannot be had)"


class _Child:
    """One worker, as the trainer sees it."""

    def __init__(self, process: SpawnProcess, pipe: Any) -> None:
        self.process = process
        self.pid = process.pid or 0
        self.pipe = pipe
        self.asked = 0  # number of its latest question for a slot
        self.retires = False
        self.stays = False  # though it should retire: nobody could go on with its stream
        self.stall: Stall | None = None  # for which it was ended

    def stalled_at(self, unit: int | None) -> Stall | None:
        """The stall for which it was ended, if this is the unit: else it had just begun another."""
        return self.stall if self.stall is not None and self.stall.unit == unit else None

    def bury(self) -> int | None:
        """Makes sure of its end, and returns its exit code. One that is idle leaves when its pipe is closed."""
        self.pipe.close()
        self.process.join(REAP)
        if self.process.is_alive():  # it is stopped, or its pipe alone was closed
            self.process.kill()
            self.process.join(REAP)
        code = self.process.exitcode
        with contextlib.suppress(ValueError):  # it has not ended yet
            self.process.close()
        return code


class _Life:
    """The workers and all that belongs to them, ended without the backend too: by garbage, or at exit."""

    def __init__(self, parts: Mapping[str, Any], workers: int, rules: Rules) -> None:
        standard.occupy()
        budget = rules.memory_budget
        self.arena = Arena(segments.create(), None if budget is None else budget // 2)
        self.reader = Reader(self.arena.descriptor, held_bytes(rules))
        self.children: dict[int, _Child] = {}
        self._workers = workers
        self._marked = segments.create()
        self._shipment: Shipment | None = None
        try:
            os.ftruncate(self._marked, workers * marks.SIZE)
            self.marks = spawned.SharedMarks(self._marked, workers)
            self._shipment = Shipment(parts)  # kept: who takes a worker's place gets what that one got
            for number in range(workers):
                try:
                    self.start(number)
                except OSError as error:
                    raise fates.not_started(f"worker {number}", error) from error
        except BaseException:
            self.end()
            raise

    def start(self, number: int) -> None:
        """Starts a worker. Raises OSError where there can be no other process."""
        self.marks.forget(number)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        files = segments.Sent(self.arena.descriptor), segments.Sent(self._marked)
        arguments = (number, theirs, *files, self._workers, self._shipment)
        process = context.Process(target=spawned.main, args=arguments, name=f"stoker-worker-{number}", daemon=True)
        try:
            with theirs:
                process.start()
        except BaseException:
            ours.close()
            raise
        self.children[number] = _Child(process, ours)

    def end(self) -> None:
        """Ends the workers, idle ones at once, busy ones after a moment, and gives back all that they held."""
        children, self.children = self.children, {}
        try:
            for child in children.values():
                child.pipe.close()
            until = time.monotonic() + ending.time_left(LEAVE)
            for child in children.values():
                child.process.join(max(0.0, until - time.monotonic()))
        finally:  # Ctrl-C as well: then at once
            for child in children.values():
                if child.process.is_alive():
                    child.process.kill()
            for child in children.values():
                child.bury()
            if self._shipment is not None:
                self._shipment.close()
            self.reader.close()
            os.close(self.arena.descriptor)
            os.close(self._marked)


class SpawnBackend(Backend):
    """Runs units in spawned worker processes.

    Args:
        parts: what the job is made of, by name: these names begin the paths in `CannotSendError`.
        assemble: makes the recipe from the parts; a function of a module.
        workers: how many processes.
        rules: what they may do.
        witness: who is told of what happens.
    """

    def __init__(self, parts: Parts, assemble: Assemble, workers: int, rules: Rules, witness: Witness) -> None:
        self._rules = rules
        self._witness = witness
        self._life = _Life({**parts, "assemble": assemble}, workers, rules)
        self._finalizer = weakref.finalize(self, self._life.end)
        self._dispatch = Dispatch(workers, at_once=rules.units_at_once)
        self._lending = Lending(self._life.arena, self._dispatch)
        self._stalls = Stalls(rules.stall_warning)
        self._blame = blame.Blame(rules, self._stalls)
        self._retirement = Retirement(rules.max_samples_per_worker, None)
        self._work: dict[int, bytes] = {}  # of units that are not answered
        self._unsent: list[deque[int]] = [deque() for _ in range(workers)]  # handed out, not sent
        self._streams: dict[int, bytes] = {}  # worker → where its stream stood behind its last answer
        self._due: dict[int, float] = {}  # number of a worker that has ended → when it is replaced
        self._died: deque[str] = deque(maxlen=TOLD)  # the latest deaths, in short
        self._held_back: set[int] = set()  # numbers of those of which it was told that they cannot be
        self._alone_since: float | None = None  # since when no worker can go on, and none can be started
        self._looks_at = 0.0  # when the workers are looked at next
        self._left = time.monotonic()  # when nobody was left to look at them, or to give them memory
        self._was_ready = False  # whether any worker ever was
        self._inbox: deque[Answer] = deque()
        self._events: deque[Event] = deque()  # not told yet
        self._dropped_below = 0
        self._fatal: BaseException | None = None
        self._owner = os.getpid()

    def submit(self, unit: int, work: Any, worker: int | None, rows: int = 0) -> None:
        owner.check(self._owner)
        self._work[unit] = leaves.dumps_unit(work)
        self._dispatch.submitted(unit, worker)
        self._hand_out()

    def receive(self, timeout: float | None) -> Answer:
        owner.check(self._owner)
        self._stalls.forgive(time.monotonic() - self._left)  # who asked for memory meanwhile had to wait for us
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
                self._stalls.forgive(frozen)
                until = until and until + frozen
            self._replace()
            self._hand_out()
            self._look_for_stalls()
            while self._events:  # here nothing is lost if the user's listener raises
                self._witness.tell(self._events.popleft())
            if self._inbox:
                break
            self._feed_the_next()
            now = time.monotonic()
            if until is not None and now >= until:
                raise errors.LoaderTimeoutError(
                    f"DataLoader timed out after {timeout:g} seconds: no batch arrived from {len(self._unsent)} "
                    "worker(s). Raise `timeout`, or find the slow sample."
                )
            wait = max(0.0, min(self._next_look(now), PULSE if until is None else until - now))
        if self._inbox:
            return self._inbox.popleft()
        assert self._fatal is not None
        raise self._fatal

    def open(self, answer: Answer) -> Any:
        slot, value = answer.value
        answer.value = None
        return self._life.reader.read(slot, Written.unpacked(value))

    def discard(self, answer: Answer) -> None:
        if answer.kind == "batch" and answer.value[0] is not None:
            self._life.reader.discard(answer.value[0])

    def drop(self, before: int) -> None:
        self._dropped_below = before
        for answer in self._inbox:
            if answer.unit < before:
                self.discard(answer)
        self._inbox = deque(answer for answer in self._inbox if answer.unit >= before)
        self._forget_dropped()

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        self._finalizer()
        if self._fatal is None:
            self._fatal = errors.IteratorClosedError("the iterator is closed: make a new one with iter(loader)")

    # Units

    def _hand_out(self) -> None:
        """Slots that came back go to workers that wait for them, units to those that are free."""
        self._lending.put_back(self._life.reader.returned())
        self._grant()
        for worker, (unit, *_) in self._dispatch.hand_out():
            self._unsent[worker].append(unit)
        for worker, units in enumerate(self._unsent):
            held = self._dispatch.held(worker)
            while units and (len(units) == len(held) or self._fits(units[0])):
                unit = units.popleft()
                known = self._blame.known(unit)
                self._send(worker, "unit", unit, self._work[unit], self._lending.offer(unit), known, None)

    def _fits(self, unit: int) -> bool:
        return len(self._work[unit]) <= FITS and not self._blame.known(unit)

    def _forget_dropped(self) -> None:
        for unit in self._dispatch.dropped(self._dropped_below):
            del self._work[unit]

    def _grant(self, hungry_for: int | None = None) -> None:
        for worker, reply in self._lending.grant(hungry_for):
            self._send(worker, "slot", self._life.children[worker].asked, reply)

    def _feed_the_next(self) -> None:
        """If the unit that we wait for waits for memory, nobody else will bring any: it gets it now, or an error."""
        unit = self._lending.starved_for
        if unit is None or any(self._dropped_below <= other < unit for other in self._dispatch.outstanding):
            return
        gc.collect()  # batches in cycles hold slots
        self._lending.put_back(self._life.reader.returned())
        self._grant(hungry_for=unit)

    def _send(self, worker: int, *message: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended, as its pipe will tell
            self._life.children[worker].pipe.send(message)

    # Messages

    def _listen(self, seconds: float) -> None:
        """Waits for workers to say something or to end, and takes what has arrived."""
        children = self._life.children
        pipes = [child.pipe for child in children.values()]
        ready = _ready([*pipes, *(child.process.sentinel for child in children.values())], seconds)
        for number, child in list(children.items()):
            ended = child.process.sentinel in ready
            messages = []
            try:
                while (child.pipe in ready or ended) and child.pipe.poll():
                    messages.append(child.pipe.recv())
            except (EOFError, OSError):
                ended = True
            for message in messages:
                self._hear(number, *message)
            if ended and number in children:
                self._bury(number)

    def _hear(self, number: int, name: str, *message: Any) -> None:
        if name == "answer":
            self._take_answer(number, *message)
        elif name == "ask":
            unit, size, self._life.children[number].asked, _ = message
            self._lending.asked(number, unit, size)
        elif name == "ready":
            self._was_ready = True
            self._alone_since = None
            if number in self._streams:  # it goes on where another one stood
                self._send(number, "resume", self._streams[number])
            self._retirement.born(number)
            self._dispatch.joined(number)
        elif name == "broken":
            self._fatal = self._fatal or fates.broken(pickle.loads(message[0]))

    def _take_answer(
        self, number: int, unit: int, kind: Any, value: Any, seconds: float, said: tuple[Any, ...]
    ) -> None:
        made = Said(*said)
        self._alone_since = None
        self._dispatch.answered(number, Run(unit), seconds)
        self._blame.answered(unit)
        del self._work[unit]
        if made.stream_state is not None:
            self._streams[number] = made.stream_state
        slot = self._lending.answered(unit, kind, value)
        answer = Answer(unit, kind, (slot, value), number, made)
        if unit < self._dropped_below:
            self.discard(answer)
        else:
            if kind == "error":
                answer.value = pickle.loads(value)
            self._inbox.append(answer)
        self._care_for(number, made)

    def _care_for(self, number: int, made: Said) -> None:
        """A worker has answered: whether it is to go on. Its place is taken when it has left."""
        child = self._life.children[number]
        self._retirement.made(number, made.samples)
        if not child.retires and made.movable and (reason := self._retirement.reason(number)):
            child.retires = True
            self._dispatch.retires(number)
            self._events.append(telling.retired(number, child.pid, reason))
        if not made.movable and not child.stays and (reason := self._retirement.reason(number)):
            child.stays = True
            self._events.append(telling.stays(number, child.pid, reason))
        if child.retires and not self._dispatch.held(number):
            self._bury(number)  # it leaves, in a moment

    # Deaths and stalls

    def _bury(self, number: int) -> None:
        """A worker has ended: what it had in hand is to be done again, unless it is the end of all."""
        child = self._life.children.pop(number)
        code = child.bury()
        self._unsent[number].clear()
        lost = [run.unit for run in self._dispatch.died(number)]
        self._lending.lost(number, lost)
        now = time.monotonic()
        self._stalls.works_on(number, None, now)
        if child.retires and not lost:
            self._due[number] = now
            return
        unit, mark = (lost[0] if lost else None), self._life.marks.read(number)
        where = None if unit is None else self._witness.locate(unit, mark)
        stall = None if child.stall is None else (child.stall, "")
        verdict = self._blame.died(blame.Death(lost, mark, child.pid, code, stall=stall), now)
        if verdict.pause is None or not self._was_ready:
            if self._fatal is None:
                told = where and where.told
                error = fates.died(number, child.pid, code, told, len(self._blame.deaths), before=self._died)
                self._events.append(telling.last_death(Death(number, child.pid, code, unit, mark), where, error))
                self._fatal = error
            return
        self._dispatch.requeued(lost)
        self._forget_dropped()
        self._due[number] = now + verdict.pause
        stalled = child.stalled_at(unit) is not None
        end = Death(number, child.pid, code, unit, mark, stalled=stalled, blamed=verdict.blamed)
        self._died.append(fates.in_short(number, code, where and where.told))
        self._events.append(telling.death(self._rules, end, where))

    def _replace(self) -> None:
        """Starts those who are to take a worker's place, when it is time. Where none can be, a little later."""
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            try:
                self._life.start(number)
                del self._due[number]
                self._held_back.discard(number)
            except OSError as error:
                self._hold_back(number, error, now)

    def _hold_back(self, number: int, error: OSError, now: float) -> None:
        """The others go on meanwhile; where none can (as in the zygote), there is an end to waiting."""
        self._due[number] = now + HELD_BACK
        others = bool(self._life.children)
        if number not in self._held_back:
            self._held_back.add(number)
            self._events.append(telling.held_back(number, error, others))
        if not all(map(self._lending.waits_for_others, self._life.children)):
            self._alone_since = None
            return
        self._alone_since = self._alone_since or now
        if now - self._alone_since > PATIENCE:
            self._fatal = self._fatal or fates.not_started(f"worker {number}", error)

    def _next_look(self, now: float) -> float:
        """Seconds until a worker is to be started or looked at."""
        waits = [PULSE, *(due - now for due in self._due.values())]
        if self._stalls.tick is not None and any(self._dispatch.held(number) for number in self._life.children):
            waits.append(self._looks_at - now)
        return min(waits)

    def _look_for_stalls(self) -> None:
        """Reports units that take too long, and ends their workers where that is wished."""
        now, tick = time.monotonic(), self._stalls.tick
        if tick is None or now < self._looks_at:
            return
        self._looks_at = now + tick
        for number in self._life.children:
            held = self._dispatch.held(number)
            waits_for_memory = self._lending.waits(number)
            self._stalls.works_on(number, held[0].unit if held and not waits_for_memory else None, now)
        for stall in self._stalls.due(now):
            number, unit, seconds = stall
            child, mark = self._life.children[number], self._life.marks.read(number)
            where = self._witness.locate(unit, mark)
            self._events.append(telling.stall(self._rules, number, unit, mark, where, seconds, NO_STACK))
            if self._rules.stall_action == "raise":
                self._fatal = self._fatal or telling.stall_error(number, where, seconds, NO_STACK)
            elif self._rules.stall_action == "restart":
                child.stall = stall
                child.process.kill()


@interruption.harmless
def _ready(things: list[Any], seconds: float) -> list[Any]:
    """Those that are ready, waiting so long for one. Where they are too many to wait for, it may return early."""
    if not things:
        time.sleep(seconds)
        return []
    parts = [things[first : first + AT_ONCE] for first in range(0, len(things), AT_ONCE)]
    if len(parts) == 1:
        return connection.wait(things, seconds)
    found = [thing for part in parts for thing in connection.wait(part, 0)]
    return found or connection.wait(parts[0], min(seconds, TURN))
