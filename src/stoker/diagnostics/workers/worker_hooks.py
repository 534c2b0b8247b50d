"""Hooks that measure how long a batch takes to make: in torch's workers, in Stoker's, and in the training process.

A worker finds in its environment which loader it belongs to: the variable is set while `iter(loader)` runs, so that
processes that are started in it inherit it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from stoker.diagnostics.recorder import TOGETHER, WORKS, Recorder

MADE = {
    "torch.utils.data._utils.fetch": (("_MapDatasetFetcher", "fetch"), ("_IterableDatasetFetcher", "fetch")),
}
"""By the module: its classes, with the method that makes a batch. Stoker's workers call the observer."""

STARTED_BY = "STOKER_RUN_STARTED_BY"
"""The variable with the mark of the epoch that started a process."""


MOST = 64
"""Of so many quick batches at least one is recorded."""


class Thinning:
    """Which of the batches that the loop's own process makes are recorded: of quick ones about one in a millisecond.

    Every one at first. The choice does not depend on how long a batch takes, so that means are true.
    """

    __slots__ = ("_last", "_least", "_recorded", "every", "passed")

    def __init__(self) -> None:
        self.passed, self.every = 0, 1
        self._least, self._recorded, self._last = 1, 0, 0.0

    def recorded(self, now: float) -> None:
        """Counts a batch that was recorded at a time."""
        self.passed = 0
        self._recorded += 1
        if self._recorded > 2 * WORKS:
            self._recorded, self._least = 0, 2 * self._least
        if now - self._last < TOGETHER:
            self.every = min(MOST, 2 * self.every)
        elif now - self._last > MOST * TOGETHER:  # they have become slow
            self.every = 1
        self.every = max(self._least, self.every)
        self._last = now


class WorkerHooks:
    """The hooks of this process.

    Args:
        recorder: is given the times.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._depth = 0  # a dataset may have a loader of its own
        self._here = Thinning()

    def measure(self, module: str) -> None:
        """Measures the batches that an imported module of `MADE` makes."""
        for kind, name in MADE[module]:
            found = getattr(sys.modules[module], kind)
            setattr(found, name, self._measured(vars(found)[name]))

    def _measured(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def measured(*args: Any) -> Any:
            return self.make(1.0, original, *args)

        return measured

    def make(self, share: float, make: Callable[..., Any], *args: Any) -> Any:
        """Returns `make(*args)`, a share of a batch's rows, and records its time as that of the whole batch."""
        recorder, here = self._recorder, self._here
        if (mark := recorder.mark) is not None:
            here.passed += 1
            if here.passed < here.every or self._depth:
                return make(*args)
            here.recorded(time.perf_counter())
        elif (mark := os.environ.get(STARTED_BY)) is None or self._depth or not recorder.is_due(mark):
            return make(*args)
        self._depth += 1
        begun, cpu = time.perf_counter(), time.process_time()
        try:
            made = make(*args)
        finally:
            self._depth -= 1
        seconds, used = time.perf_counter() - begun, time.process_time() - cpu
        recorder.work(mark, begun, seconds / share, used / share)
        return made


@contextlib.contextmanager
def starting(mark: str) -> Iterator[None]:
    """Names the epoch for the processes that are started meanwhile."""
    before = os.environ.get(STARTED_BY)
    os.environ[STARTED_BY] = mark
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(STARTED_BY, None)
        else:
            os.environ[STARTED_BY] = before
