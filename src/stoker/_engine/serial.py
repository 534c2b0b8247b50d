"""The serial backend: units run where their answers are asked for. The model that every other backend must match."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Literal

from stoker._core.interruption import harmless, tears
from stoker._core.worker_info import current
from stoker._engine.backend import (
    Answer,
    Backend,
    Job,
    JobFactory,
    NothingLeft,
    PlainMaker,
    PlainPlace,
    StreamEnd,
    located,
)
from stoker._engine.backends import IN_STEP


class SerialBackend(Backend):
    """Runs each unit in the caller's thread, when its answer is asked for. Exceptions are raised as they are."""

    capabilities = IN_STEP

    def __init__(self, job_factory: JobFactory) -> None:
        self._owner = os.getpid()
        self._job = job_factory(0)
        self._outside = current.rng  # another loader's, where this one is within its dataset
        self._waiting: deque[tuple[int, object]] = deque()
        self._on_close: weakref.WeakMethod[Callable[[], None]] | None = None
        self._left: int | None = None  # the unit in which sys.exit() was called, or a similar exception raised

    def submit(self, unit: int, work: object, worker: int | None, rows: int = 0) -> None:
        self._waiting.append((unit, work))

    def receive(self, timeout: float | None) -> Answer:
        unit, work = self._waiting[0]
        kind: Literal["batch", "error", "end", "empty"] = "batch"
        try:
            value = _run_job(self._job, work) if self._job.repeats else self._job.run(work)
        except StreamEnd:
            kind, value = "end", None
        except NothingLeft:
            kind, value = "empty", None
        except Exception as error:
            current.rng = self._outside  # a signal's handler may have raised before the job set it back
            if tears(error):
                raise
            kind, value = "error", error
            _name_sample(error, self._job.failed_index())
        except KeyboardInterrupt:
            current.rng = self._outside
            raise
        except BaseException as left:  # sys.exit(), or what a signal's handler raises
            current.rng = self._outside
            if self._left != unit:  # it may have come from outside: no batch is lost if the program continues
                self._left = unit
                raise
            kind, value = "error", left  # a sample does, each time
        answer = Answer(unit, kind, value, 0, self._job.report())
        self._waiting.popleft()  # only now: after Ctrl-C a program that continues gets this batch
        try:
            return answer
        finally:
            del value  # an error's traceback has this frame: it would keep itself

    def plain(self, seed: int, place: PlainPlace) -> PlainMaker | None:
        return self._job.plain(seed, place)

    def open(self, answer: Answer) -> object:
        return answer.value

    def discard(self, answer: Answer) -> None:
        pass

    def drop(self, before: int) -> None:
        self._waiting = deque(item for item in self._waiting if item[0] >= before)

    def stream_state(self, since: bytes) -> bytes | None:
        """Returns the state of the stream now, if it stands where it said `since`; else None."""
        return self._job.stream_state(since)

    def before_close(self, call: weakref.WeakMethod[Callable[[], None]]) -> None:
        """Makes a call, if its object is still there, once before the job is gone."""
        self._on_close = call

    def close(self) -> None:
        self._waiting.clear()
        self._job.close()
        on_close, self._on_close = self._on_close, None
        call = None if on_close is None else on_close()
        if call is not None:
            call()

    def __del__(self) -> None:
        if getattr(self, "_on_close", None) is not None and os.getpid() == self._owner:
            self.close()


@harmless
def _run_job(job: Job, work: object) -> object:
    return job.run(work)


def _name_sample(error: Exception, index: object) -> None:
    """Says at which sample it was raised, below the user's own message. A class may raise one instance many times."""
    note = located("Raised in this process", index)
    if index is not None and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
