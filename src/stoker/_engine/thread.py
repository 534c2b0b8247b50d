"""The thread backend: workers are threads of the trainer's process. One copy of the dataset, nothing is transported."""

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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stoker import errors
from stoker._engine import interruption, owner
from stoker._engine.base import IDLE, Answer, Backend, Failure, Job, NothingLeft, Recipe, StreamEnd, Witness, located
from stoker._events import Event
from stoker._stories import summary_of
from stoker._supervision.dispatch import Dispatch, Run
from stoker._supervision.rules import Rules
from stoker._supervision.stalls import Stalls

JOIN = 0.5
"""Seconds that `close` waits for threads. One that is in a slow sample ends by itself behind it: nobody can stop it."""

_Inbox = queue.SimpleQueue[Any]


class _Outbox:
    """Answers of all threads. Whoever waits for one takes nothing, so that Ctrl-C meanwhile loses none.

    Not a queue: before Python 3.13, `SimpleQueue.get` may wait for ever where the time runs out while it looks.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[Answer, float]] = deque()
        self._bell = threading.Lock()  # free: something has come
        self._bell.acquire()

    def put(self, answer: Answer, seconds: float) -> None:
        self._answers.append((answer, seconds))
        with contextlib.suppress(RuntimeError):  # it has rung already
            self._bell.release()

    def wait(self, seconds: float | None) -> bool:
        """Whether there is one, in so many seconds. Perhaps earlier, for one that has been taken since."""
        if not self._answers:
            _hear(self._bell, seconds)
        return bool(self._answers)

    def take(self) -> tuple[Answer, float]:
        self._bell.acquire(blocking=False)
        return self._answers.popleft()


@interruption.harmless
def _hear(bell: threading.Lock, seconds: float | None) -> None:
    bell.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class ThreadBackend(Backend):
    """Runs units on threads.

    The trainer hands out in `submit` and `receive`; a thread only takes from a queue of its own and puts into one that
    all share. Threads are daemons, so a sample that never ends does not keep the interpreter.
    """

    def __init__(self, recipe: Recipe, workers: int, rules: Rules, witness: Witness) -> None:
        self._rules = rules
        self._witness = witness
        self._stalls = Stalls(rules.stall_warning)
        self._marks = [[IDLE] for _ in range(workers)]
        self._answers = _Outbox()
        self._queues: list[_Inbox] = [queue.SimpleQueue() for _ in range(workers)]
        self._work: dict[int, Any] = {}
        self._dispatch = Dispatch(workers)
        self._dropped_below = 0
        self._owner = os.getpid()
        self._events: deque[Event] = deque()  # not told yet
        closed = threading.Event()
        threads = []
        for number, inbox in enumerate(self._queues):
            arguments = (recipe, number, inbox, self._answers, closed, self._marks[number])
            threads.append(threading.Thread(target=_work, args=arguments, name=f"stoker-{number}", daemon=True))
            self._dispatch.joined(number)
        for thread in threads:
            thread.start()
        self._threads = threads
        self.close = weakref.finalize(self, _stop, closed, self._queues, threads)  # type: ignore[method-assign]

    def submit(self, unit: int, work: Any, worker: int | None, rows: int = 0) -> None:
        self._work[unit] = work
        self._dispatch.submitted(unit, worker)
        self._hand_out()

    def _hand_out(self) -> None:
        for worker, (unit, *_) in self._dispatch.hand_out():
            self._queues[worker].put((unit, self._work.pop(unit)))
            self._note_work(worker)

    def _note_work(self, worker: int) -> None:
        held = self._dispatch.held(worker)
        self._stalls.works_on(worker, held[0].unit if held else None, time.monotonic())

    def receive(self, timeout: float | None) -> Answer:
        owner.check(self._owner)  # a forked child has none of its parent's threads
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            while self._events:  # what is left when the user's listener raises is told with the next batch
                self._witness.tell(self._events.popleft())
                if not self.close.alive:  # type: ignore[attr-defined]  # by the listener: no thread will answer
                    raise errors.IteratorClosedError("the iterator is closed: make a new one with iter(loader)")
            now = time.monotonic()
            left = None if until is None else max(0.0, until - now)
            look = self._stalls.next_look(now)
            wait = min((seconds for seconds in (left, look) if seconds is not None), default=None)
            if not self._answers.wait(wait):
                if until is not None and time.monotonic() >= until:
                    raise errors.LoaderTimeoutError(
                        f"DataLoader timed out after {timeout:g} seconds: no worker thread finished a batch. Raise "
                        f"`timeout`, or see below where they are.\n{self.stacks()}"
                    )
                self._look_for_stalls()
                continue
            answer, seconds = self._answers.take()
            self._dispatch.answered(answer.worker, Run(answer.unit), seconds)
            self._stalls.answered(answer.unit)
            self._note_work(answer.worker)
            self._hand_out()
            if answer.unit >= self._dropped_below:
                return answer

    def _look_for_stalls(self) -> None:
        """Only while somebody waits for a batch: else there is nobody here to look."""
        for worker, unit, seconds in self._stalls.due(time.monotonic()):
            where = self._witness.locate(unit, self._marks[worker][0])
            story = f"worker {worker} has been at {where.told} for {seconds:.3g} s."
            stack = _stack_of(self._threads[worker])
            if self._rules.stall_action == "raise":
                raise errors.StalledError(f"{story} Raise stall_warning, or see where it is:\n{stack}")
            told = f"{story} It goes on (stall_action='warn'). This is where it is:\n{stack}"
            details = {"unit": unit, "mark": self._marks[worker][0], "seconds": seconds, "index": where.index}
            self._events.append(Event("stall", told, worker=worker, batch=where.batch, details=details))

    def stacks(self) -> str:
        return "\n".join(f"Worker {number}:\n{_stack_of(thread)}" for number, thread in enumerate(self._threads))

    def open(self, answer: Answer) -> Any:
        return answer.value

    def discard(self, answer: Answer) -> None:
        pass

    def drop(self, before: int) -> None:
        self._dropped_below = before
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
    return "(it has ended)" if frame is None else "".join(traceback.format_stack(frame))


def _work(
    recipe: Recipe, number: int, inbox: _Inbox, outbox: _Outbox, closed: threading.Event, mark: list[int]
) -> None:
    """A worker thread's whole life."""
    where = f"in DataLoader worker thread {number}"
    job: Job | None = None
    sick: Failure | errors.WorkerDiedError | None = None
    try:
        job = recipe(number)
        job.mark = mark
    except BaseException as error:
        sick = _told(error, where)
    while (item := inbox.get()) is not None and not closed.is_set():
        start = time.perf_counter()
        unit, work = item
        try:
            answer = Answer(unit, "error", sick, number) if job is None else _run(job, unit, work, number, where)
        except BaseException as error:  # nobody else would answer
            answer = Answer(unit, "error", _told(error, where), number)
        outbox.put(answer, time.perf_counter() - start)
        del item, work, answer  # the batch is the trainer's now


def _run(job: Job, unit: int, work: Any, number: int, where: str) -> Answer:
    try:
        answer = Answer(unit, "batch", job.run(work), number)
    except StreamEnd:
        answer = Answer(unit, "end", None, number)
    except NothingLeft:
        answer = Answer(unit, "empty", None, number)
    except BaseException as error:
        answer = Answer(unit, "error", _told(error, located(where, job.failed_index())), number)
    answer.said = job.said()
    return answer


def _told(error: BaseException, where: str) -> Failure | errors.WorkerDiedError:
    """What the user gets. The class need not travel: also a local one stays itself."""
    if issubclass(type(error), Exception):
        return replace(Failure.of(error, where), kind=type(error))
    left = errors.WorkerDiedError(f"{where.removeprefix('in ')} exited unexpectedly: {summary_of(error)}")
    left.__cause__ = error  # sys.exit() in the user's code, which would end a process
    return left
