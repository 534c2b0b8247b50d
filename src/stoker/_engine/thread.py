"""The thread backend: workers are threads of the trainer's process. One copy of the dataset, nothing is transported."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stoker import errors
from stoker._engine.base import Answer, Backend, Failure, Job, Recipe, StreamEnd, located
from stoker._supervision.dispatch import Dispatch

JOIN = 0.5
"""Seconds that `close` waits for threads. One that is in a slow sample ends by itself behind it: nobody can stop it."""

_Inbox = queue.SimpleQueue[Any]
_Outbox = queue.SimpleQueue[tuple[Answer, float]]


class ThreadBackend(Backend):
    """Runs units on threads.

    The trainer hands out in `submit` and `receive`; a thread only takes from a queue of its own and puts into one that
    all share. Threads are daemons, so a sample that never ends does not keep the interpreter.
    """

    def __init__(self, recipe: Recipe, workers: int) -> None:
        self._answers: _Outbox = queue.SimpleQueue()
        self._queues: list[_Inbox] = [queue.SimpleQueue() for _ in range(workers)]
        self._work: dict[int, Any] = {}
        self._dispatch = Dispatch(workers)
        self._dropped_below = 0
        closed = threading.Event()
        threads = []
        for number, inbox in enumerate(self._queues):
            arguments = (recipe, number, inbox, self._answers, closed)
            threads.append(threading.Thread(target=_work, args=arguments, name=f"stoker-{number}", daemon=True))
            self._dispatch.joined(number)
        for thread in threads:
            thread.start()
        self.close = weakref.finalize(self, _stop, closed, self._queues, threads)  # type: ignore[method-assign]

    def submit(self, unit: int, work: Any, worker: int | None) -> None:
        self._work[unit] = work
        self._dispatch.submitted(unit, worker)
        self._hand_out()

    def _hand_out(self) -> None:
        for worker, unit in self._dispatch.hand_out():
            self._queues[worker].put((unit, self._work.pop(unit)))

    def receive(self, timeout: float | None) -> Answer:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                left = None if until is None else max(0.0, until - time.monotonic())
                answer, seconds = self._answers.get(timeout=left)
            except queue.Empty:
                raise errors.LoaderTimeoutError(
                    f"DataLoader timed out after {timeout:g} seconds: no worker thread finished a batch. Raise "
                    "`timeout`, or find the slow sample."
                ) from None
            self._dispatch.answered(answer.worker, answer.unit, seconds)
            self._hand_out()
            if answer.unit >= self._dropped_below:
                return answer

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


def _work(recipe: Recipe, number: int, inbox: _Inbox, outbox: _Outbox, closed: threading.Event) -> None:
    """A worker thread's whole life."""
    where = f"in DataLoader worker thread {number}"
    job: Job | None = None
    sick: Failure | None = None
    try:
        job = recipe(number)
    except Exception as error:
        sick = _failure(error, where)
    while (item := inbox.get()) is not None and not closed.is_set():
        start = time.perf_counter()
        unit, work = item
        answer = Answer(unit, "error", sick, number) if job is None else _run(job, unit, work, number, where)
        outbox.put((answer, time.perf_counter() - start))
        del item, work, answer  # the batch is the trainer's now


def _run(job: Job, unit: int, work: Any, number: int, where: str) -> Answer:
    try:
        answer = Answer(unit, "batch", job.run(work), number)
    except StreamEnd:
        answer = Answer(unit, "end", None, number)
    except Exception as error:
        at = located(where, job.failed_index())
        answer = Answer(unit, "error", _failure(error, at), number)
    except BaseException as error:  # sys.exit() in the user's code, which would end a process
        left = errors.WorkerDiedError(f"DataLoader worker thread {number} exited unexpectedly: {error!r}")
        left.__cause__ = error
        answer = Answer(unit, "error", left, number)
    answer.notes, answer.stream_state = job.take_notes(), job.stream_state()
    return answer


def _failure(error: Exception, where: str) -> Failure:
    """The class need not travel: also a local one stays itself."""
    return replace(Failure.of(error, where), kind=type(error))
