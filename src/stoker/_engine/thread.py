"""The thread backend: workers are threads of the trainer's process. One copy of the dataset, no transport."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from stoker import errors
from stoker._core.exceptions import summary_of
from stoker._core.interruption import harmless
from stoker._engine.activity import NEW_MARK, Position
from stoker._engine.backend import (
    EARLY,
    Answer,
    Backend,
    Cost,
    EventSink,
    Failure,
    Job,
    JobFactory,
    NothingLeft,
    StreamEnd,
    located,
)
from stoker._engine.backends import THREADS
from stoker._engine.process_guard import check_owner
from stoker._engine.supervision.dispatch import Assignment, Dispatch
from stoker._engine.supervision.rules import Rules, Stalls
from stoker._engine.tracebacks import users_stacks
from stoker.events import Event, WorkerStalled

LOOK = EARLY
"""Seconds between two looks of a waiting trainer at the answers of a run that has not ended."""

JOIN = 0.5
"""Seconds that `close` waits for threads. A thread cannot be stopped: one in a slow sample ends by itself after it."""

_Given = tuple[int, "Sequence[object]"]
"""Number of the first unit of a run, and the work of each."""


class _Closed(BaseException):
    """Raised in a worker thread while its job waits for samples that nobody wants any more."""


class _Inbox:
    """The runs that a thread has been given, and None at its end."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[_Given | None] = queue.SimpleQueue()
        self._seen: deque[_Given | None] = deque()  # by the job, which may have begun them
        self.put = self._given.put

    def get(self) -> _Given | None:
        """Returns the next run, waiting for it."""
        return self._seen.popleft() if self._seen else self._given.get()

    def upcoming(self) -> Iterator[object]:
        """Yields the units that have come since the last call, for the job: they are next. Raises _Closed at the end:
        nobody wants the unit in hand.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._given.get_nowait()
                self._seen.append(item)
                if item is None:
                    raise _Closed
                yield from item[1]


class _RunEnd(NamedTuple):
    """The end of a run, or of the first part of one: its thread makes the rest next, as a run of its own.

    Attributes:
        first: number of the run's first unit.
        made: number of units that are answered.
        seconds: of work on them.
    """

    first: int
    made: int
    seconds: float


class _Outbox:
    """Answers of all threads. Waiting takes no answer, so Ctrl-C during a wait loses none.

    Not a queue: before Python 3.13, `SimpleQueue.get` may wait for ever if the time runs out during its check.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[Answer, _RunEnd | None]] = deque()
        self._bell = threading.Lock()  # free: something has come
        self._bell.acquire()

    def put(self, answer: Answer, end: _RunEnd | None) -> None:
        """Adds an answer. Only the last one of a run wakes the trainer at once: `LOOK` bounds its wait for others."""
        self._answers.append((answer, end))
        if end is not None:
            with contextlib.suppress(RuntimeError):  # it has rung already
                self._bell.release()

    def __len__(self) -> int:
        return len(self._answers)

    def within_run(self) -> Answer | None:
        """Takes and returns the next answer, unless it is the last one of its run, or there is none."""
        if not self._answers or self._answers[0][1] is not None:
            return None
        return self._answers.popleft()[0]

    def wait(self, seconds: float | None) -> bool:
        """Returns whether there is an answer, waiting at most this time; may return early after an answer that was
        taken since.
        """
        if not self._answers:
            _hear(self._bell, seconds)
        return bool(self._answers)

    def has_from(self, unit: int) -> bool:
        """Returns whether there is an answer of this unit or a later one."""
        return any(answer.unit >= unit for answer, _ in self._answers.copy())

    def take(self) -> tuple[Answer, _RunEnd | None]:
        self._bell.acquire(blocking=False)
        return self._answers.popleft()


@harmless
def _hear(bell: threading.Lock, seconds: float | None) -> None:
    bell.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class ThreadBackend(Backend):
    """Runs units on threads.

    The trainer hands out in `submit` and `receive`; a thread only takes from a queue of its own and puts into one that
    all share. Threads are daemons, so a sample that never ends does not keep the interpreter.
    """

    capabilities = THREADS

    def __init__(self, job_factory: JobFactory, workers: int, rules: Rules, event_sink: EventSink) -> None:
        self._rules = rules
        self._event_sink = event_sink
        self._stalls = Stalls(rules.stall_warning)
        self._marks = [[*NEW_MARK] for _ in range(workers)]
        self._answers = _Outbox()
        self._queues = [_Inbox() for _ in range(workers)]
        self._in_hand = [-1] * workers  # the units that the threads work on
        self._work: dict[int, Sequence[object]] = {}  # of runs that are not handed out, by their first units
        self._runs: dict[int, Sequence[object]] = {}  # of several units, handed out
        self._dispatch = Dispatch(workers, at_once=rules.units_at_once)
        self._dropped_below = 0
        self._dropped = [0]  # the same, for threads
        self._owner = os.getpid()
        self._events: deque[Event] = deque()  # not delivered yet
        closed = threading.Event()
        threads = []
        for number, inbox in enumerate(self._queues):
            shared = (self._answers, closed, self._marks[number], self._in_hand, self._dropped)
            arguments = (job_factory, number, inbox, *shared)
            threads.append(threading.Thread(target=_work, args=arguments, name=f"stoker-{number}", daemon=True))
            self._dispatch.joined(number)
        for thread in threads:
            thread.start()
        self._threads = threads
        self.close = weakref.finalize(self, _stop, closed, self._queues, threads)  # type: ignore[method-assign]

    def submit(self, unit: int, work: object, worker: int | None, rows: int = 0) -> None:
        self._work[unit] = (work,)
        self._dispatch.submitted(unit, worker)
        self._hand_out()

    def submit_run(self, unit: int, works: Sequence[object]) -> None:
        self._work[unit] = works
        self._dispatch.submitted(unit, None)
        self._hand_out()

    @property
    def ready(self) -> int:
        return len(self._answers)

    def _hand_out(self) -> None:
        for worker, (unit, *_) in self._dispatch.hand_out():
            works = self._work.pop(unit)
            if len(works) > 1:
                self._runs[unit] = works
            self._queues[worker].put((unit, works))
            self._note_work(worker)

    def _note_work(self, worker: int) -> None:
        assignments = self._dispatch.assignments(worker)
        self._stalls.works_on(worker, assignments[0].unit if assignments else None, time.monotonic())

    def within_run(self) -> Answer | None:
        check_owner(self._owner)  # a forked child has none of its parent's threads
        while not self._events and (within := self._answers.within_run()) is not None:
            if within.unit >= self._dropped_below:
                return within
        return None

    def receive(self, timeout: float | None) -> Answer:
        if (within := self.within_run()) is not None:
            return within
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            while self._events:  # events left when the user's listener raises are delivered with the next batch
                self._event_sink.tell(self._events.popleft())
                if not self.close.alive:  # type: ignore[attr-defined]  # by the listener: no thread will answer
                    raise errors.IteratorClosedError("the iterator is closed: make a new one with iter(loader)")
            now = time.monotonic()
            left = None if until is None else max(0.0, until - now)
            look = self._stalls.next_look(now)
            soon = LOOK if self._runs else None
            wait = min((seconds for seconds in (left, look, soon) if seconds is not None), default=None)
            if not self._answers.wait(wait):
                if until is not None and time.monotonic() >= until:
                    raise errors.LoaderTimeoutError(
                        f"DataLoader timed out after {timeout:g} seconds: no worker thread finished a batch. Raise "
                        f"`timeout`, or see below where the workers are.\n{users_stacks(self.stacks())}"
                    )
                self._look_for_stalls()
                continue
            answer, end = self._answers.take()
            if end is not None:
                self._end_run(answer, end)
            if answer.unit >= self._dropped_below:
                return answer

    def _end_run(self, answer: Answer, end: _RunEnd) -> None:
        """Hands out what comes behind a run, unless its thread has a rest of it."""
        first, made, seconds = end
        self._stalls.answered(first)
        if left := self._runs.pop(first, ())[made:]:
            self._runs[first + made] = left
        self._dispatch.answered(answer.worker, Assignment(first), seconds / made, made, len(left))
        answer.cost = Cost(made, seconds)
        self._note_work(answer.worker)
        self._hand_out()

    def _look_for_stalls(self) -> None:
        """Reports stalls. Runs only while the trainer waits for a batch."""
        for worker, first, seconds in self._stalls.due(time.monotonic()):
            in_run = range(first, first + len(self._runs.get(first, ())))
            unit = self._in_hand[worker] if self._in_hand[worker] in in_run else first
            position = Position.of(*self._marks[worker])
            where = self._event_sink.locate(unit, position)
            story = f"worker {worker} has been at {where.text} for {seconds:.3g} s."
            stack = users_stacks(_stack_of(self._threads[worker]))
            if self._rules.stall_action == "raise":
                raise errors.StalledError(f"{story} Raise stall_warning, or look at its Python stack:\n{stack}")
            message = f"{story} The worker goes on (stall_action='warn'). Its Python stack:\n{stack}"
            mark, batch, index = position.mark, where.batch, where.index
            self._events.append(
                WorkerStalled(
                    message=message, worker=worker, batch=batch, unit=unit, mark=mark, seconds=seconds, index=index
                )
            )

    @property
    def has_answer(self) -> bool:
        return self._answers.has_from(self._dropped_below)

    def stacks(self) -> str:
        return "\n".join(f"Worker {number}:\n{_stack_of(thread)}" for number, thread in enumerate(self._threads))

    def open(self, answer: Answer) -> object:
        return answer.value

    def discard(self, answer: Answer) -> None:
        pass

    def drop(self, before: int) -> None:
        self._dropped_below = self._dropped[0] = before
        for unit in self._dispatch.dropped(before):
            del self._work[unit]

    def close(self) -> None:  # replaced by the finaliser, which also runs when the backend is garbage
        raise AssertionError


def _stop(closed: threading.Event, queues: Sequence[_Inbox], threads: Sequence[threading.Thread]) -> None:
    closed.set()
    for inbox in queues:
        inbox.put(None)
    until = time.monotonic() + JOIN
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return "(it has ended)"
    frames = reversed(traceback.extract_stack(frame))
    lines = [f'  File "{each.filename}", line {each.lineno} in {each.name}\n' for each in frames]
    return f"Thread 0x{thread.ident:016x} (most recent call first):\n{''.join(lines)}"  # as faulthandler writes it


def _work(
    job_factory: JobFactory,
    number: int,
    inbox: _Inbox,
    outbox: _Outbox,
    closed: threading.Event,
    mark: list[int],
    in_hand: list[int],
    dropped: list[int],
) -> None:
    """Runs a worker thread."""
    where = f"in DataLoader worker thread {number}"
    job: Job | None = None
    failed: Failure | errors.WorkerDiedError | None = None
    try:
        job = job_factory(number)
        job.mark = mark
        job.upcoming = inbox.upcoming
    except BaseException as error:
        failed = _failure_of(error, where)
    while (item := inbox.get()) is not None and not closed.is_set():
        first, works = item
        start = time.perf_counter()
        for unit, work in enumerate(works, first):
            in_hand[number] = unit
            try:
                if job is None:
                    answer = Answer(unit, "error", failed, number)
                elif unit < dropped[0]:
                    answer = Answer(unit, "empty", None, number)
                else:
                    answer = _run(job, unit, work, number, where)
            except BaseException as error:  # otherwise the unit would have no answer
                answer = Answer(unit, "error", _failure_of(error, where), number)
            made, end, now = unit + 1 - first, None, time.perf_counter()
            if made == len(works) or now - start > EARLY:
                end, works, first, start = _RunEnd(first, made, now - start), works[made:], unit + 1, now
            outbox.put(answer, end)
            del answer  # the batch is the trainer's now
            if closed.is_set():
                break
        del item, works, work
    if job is not None:
        job.close()


def _run(job: Job, unit: int, work: object, number: int, where: str) -> Answer:
    try:
        answer = Answer(unit, "batch", job.run(work), number)
    except StreamEnd:
        answer = Answer(unit, "end", None, number)
    except NothingLeft:
        answer = Answer(unit, "empty", None, number)
    except BaseException as error:
        answer = Answer(unit, "error", _failure_of(error, located(where, job.failed_index())), number)
    answer.report = job.report()
    return answer


def _failure_of(error: BaseException, where: str) -> Failure | errors.WorkerDiedError:
    """Returns the error for the user. The class need not be picklable: also a local one stays itself."""
    if issubclass(type(error), Exception):
        return replace(Failure.of(error, where), kind=type(error))
    left = errors.WorkerDiedError(f"{where.removeprefix('in ')} exited unexpectedly: {summary_of(error)}")
    left.__cause__ = error  # sys.exit() in the user's code, which would end a process
    return left
