"""Hooks that measure how long a batch takes to make, in workers and in the training process, and that record faults.

A worker finds in its environment which loader it belongs to: the variable is set while `iter(loader)` runs, so that
processes that are started in it inherit it.

A fault's record is `{"fault": kind, "mark": ..., "at": ..., "count": 1, "text": ...}`, with what is known of worker,
batch and sample. Of many events of one kind the later ones are only counted, in records without a text.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stoker.diagnostics.recorder import TOGETHER, WORKS, Recorder

if TYPE_CHECKING:
    from stoker.events import Event


MADE = {"torch.utils.data._utils.fetch": (("_MapDatasetFetcher", "fetch"), ("_IterableDatasetFetcher", "fetch"))}
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
    """The hooks of this process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._depth = 0  # a dataset may have a loader of its own
        self._here = Thinning()
        self._collated: float | None = None  # seconds of all collation, once torch has made a batch

    def measure(self, module: str) -> None:
        """Measures the batches that an imported module of `MADE` makes."""
        for kind, name in MADE[module]:
            found = getattr(sys.modules[module], kind)
            setattr(found, name, self._measured(vars(found)[name]))

    def _measured(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def measured(fetcher: Any, *args: Any) -> Any:
            collate = getattr(fetcher, "collate_fn", None)
            if collate is not None and getattr(collate, "func", None) != self._collate:
                fetcher.collate_fn = functools.partial(self._collate, collate)
            return self.make(1.0, original, fetcher, *args)

        return measured

    def _collate(self, collate: Callable[[Any], Any], samples: Any) -> Any:
        begun = time.perf_counter()
        try:
            return collate(samples)
        finally:
            self._collated = (self._collated or 0.0) + time.perf_counter() - begun

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
        in_thread = threading.current_thread() is not threading.main_thread()  # beside others that make batches
        clock = time.thread_time if in_thread else time.process_time
        collated, begun, cpu = self._collated or 0.0, time.perf_counter(), clock()
        try:
            made = make(*args)
        finally:
            self._depth -= 1
        seconds, used = time.perf_counter() - begun, clock() - cpu
        now = None if self._collated is None else self._collated - collated
        recorder.work(mark, begun, seconds / share, used / share, now)
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


NAMED = 20
"""Events of each kind, in an epoch that starts workers, that are recorded by themselves."""

MOST_NAMED = 1000
"""Events of the program that are recorded by themselves."""

LONGEST = 400
"""Letters of a text."""

NO_FAULTS = ("auto", "hint")
"""Kinds of events that tell of no fault."""

_STACKS = ("Its last Python stack:", "Its Python stack:")


def note_workers(recorder: Recorder, loader: Any, mark: str | None) -> None:
    """Records the number of workers of a torch loader on Stoker's engine, or why it is the program's, where
    `stoker.install(num_workers="auto")` is in force; an epoch has begun."""
    if mark is not None and "stoker.integrations.install" in sys.modules:
        with contextlib.suppress(TypeError):  # no loader of torch's
            hidden = sys.modules["stoker"].loader_of(loader)
            if (text := getattr(hidden, "workers_text", None)) is not None:
                recorder.note({"chosen": text, "mark": mark})


class FaultHooks:
    """Records the faults of this process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._named = 0
        self._seen: dict[tuple[Any, ...], int] = {}
        self._sums: dict[tuple[Any, ...], tuple[int, dict[str, Any]]] = {}
        self._latest = ""

    def heed(self, event: Event) -> None:
        """Records an event of a loader of Stoker's."""
        with contextlib.suppress(Exception):  # of an attribute of the user's: the program must not see it
            self._heed(event)

    def _heed(self, event: Event) -> None:
        if event.kind == "auto":
            self._recorder.note({"chosen": event.message, "mark": self._recorder.mark})
        if event.kind in NO_FAULTS:
            return
        details = event.details
        outcome, why = details.get("outcome"), why_ended(details)
        sample = details.get("description") or details.get("index")
        sample = None if sample is None else str(sample)[:LONGEST]
        about = {"worker": event.worker, "batch": event.batch, "sample": sample}
        at = time.perf_counter() - max(0.0, time.time() - event.time)
        ends = bool(details.get("ends"))
        self._note(event.kind, at, event.message, about, {"outcome": outcome, "why": why, "ends": ends})

    def raised(self, error: BaseException, at: float) -> None:
        """Records an error that a loader raised in place of a batch."""
        with contextlib.suppress(Exception):  # of the error's own text
            self._latest = in_words(error)
            self._note("raised", at, self._latest, {}, {})

    def ended(self) -> None:
        """Records the error that ends the program, at its exit, unless a loader has just raised it."""
        error = getattr(sys, "last_value", None)
        with contextlib.suppress(Exception):
            if isinstance(error, Exception) and in_words(error) != self._latest:
                self._note("ended", time.perf_counter(), in_words(error), {}, {})

    def _note(self, kind: str, at: float, text: str, about: dict[str, Any], same: dict[str, Any]) -> None:
        mark = self._recorder.mark or os.environ.get(STARTED_BY)
        same = {"fault": kind, "mark": mark, **{name: value for name, value in same.items() if value}}
        key = tuple(same.items())
        number = self._seen[key] = self._seen.get(key, 0) + 1
        if number <= NAMED and self._named < MOST_NAMED:
            self._named += 1
            about = {name: value for name, value in about.items() if value is not None}
            self._recorder.note({**same, "at": at, "count": 1, "text": sentence(text), **about})
            return
        flushes, line = self._sums.get(key, (-1, {}))
        if flushes != self._recorder.flushes:  # the line was written
            line = {**same, "at": at, "count": 0}
            self._sums[key] = self._recorder.flushes, line
            self._recorder.note(line)
        line["count"] += 1


def why_ended(details: dict[str, Any]) -> str | None:
    """Returns why a worker ended: "hung", its signal, or its exit code; None if that is not known."""
    if details.get("stalled"):
        return "hung"
    code = details.get("code")
    if not isinstance(code, int):
        return None
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"signal {-code}"


def sentence(text: str) -> str:
    """Returns a message on one line: without stacks, and not longer than `LONGEST`."""
    for stack in _STACKS:
        text = text.partition(stack)[0]
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def in_words(error: BaseException) -> str:
    """Returns an error as "class: text (cause)". Of one raised in a worker, what it said there."""
    text = str(error).strip()
    if text.startswith("Caught ") and len(lines := text.splitlines()) > 1:
        is_bare = lines[1].startswith("Original Traceback")
        return lines[-1] if is_bare else f"{type(error).__name__}: {lines[1]}"
    cause = "" if error.__cause__ is None else f" ({str(error.__cause__).strip()})"
    return f"{type(error).__name__}: {text}{cause}" if text else type(error).__name__
