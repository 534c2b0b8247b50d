"""The serial backend: units run where their answers are asked for. The model that every other backend must match."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

from stoker._engine import interruption
from stoker._engine.base import Answer, Backend, Job, NothingLeft, Recipe, StreamEnd, located
from stoker._worker_info import current


class SerialBackend(Backend):
    """Runs each unit in the caller's thread, when its answer is asked for. Exceptions are raised as they are."""

    def __init__(self, recipe: Recipe) -> None:
        self._job = recipe(0)
        self._outside = current.info  # a worker's, where this is a loader within a dataset
        self._waiting: deque[tuple[int, Any]] = deque()
        self._left: int | None = None  # the unit in which somebody called sys.exit(), or raised another of its kind

    def submit(self, unit: int, work: Any, worker: int | None, rows: int = 0) -> None:
        self._waiting.append((unit, work))

    def receive(self, timeout: float | None) -> Answer:
        unit, work = self._waiting[0]
        kind: Literal["batch", "error", "end", "empty"] = "batch"
        try:
            value = _made(self._job, work) if self._job.repeats else self._job.run(work)
        except StreamEnd:
            kind, value = "end", None
        except NothingLeft:
            kind, value = "empty", None
        except Exception as error:
            current.info = self._outside  # a signal's handler may have raised before the job set it back
            if interruption.tears(error):
                raise
            kind, value = "error", error
            _name_sample(error, self._job.failed_index())
        except KeyboardInterrupt:
            current.info = self._outside
            raise
        except BaseException as left:  # sys.exit(), or what a signal's handler raises
            current.info = self._outside
            if self._left != unit:  # it may have come from outside: whoever goes on loses nothing
                self._left = unit
                raise
            kind, value = "error", left  # a sample does, each time
        answer = Answer(unit, kind, value, 0, self._job.said())
        self._waiting.popleft()  # only now: after Ctrl-C whoever goes on gets this batch
        return answer

    def open(self, answer: Answer) -> Any:
        return answer.value

    def discard(self, answer: Answer) -> None:
        pass

    def drop(self, before: int) -> None:
        self._waiting = deque(item for item in self._waiting if item[0] >= before)

    def close(self) -> None:
        self._waiting.clear()


@interruption.harmless
def _made(job: Job, work: Any) -> Any:
    return job.run(work)


def _name_sample(error: Exception, index: Any) -> None:
    """Says at which sample it was raised, below the user's own message. A class may raise one instance many times."""
    note = located("Raised in this process", index)
    if index is not None and hasattr(error, "add_note") and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
