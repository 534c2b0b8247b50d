"""Hooks in a measured program that record faults: the events of Stoker's loaders, and errors that a loader raises.

A record is `{"fault": kind, "mark": ..., "at": ..., "count": 1, "text": ...}`, with what is known of worker, batch and
sample. Of many events of one kind the later ones are only counted, in records without a text.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from stoker.diagnostics.workers.worker_hooks import STARTED_BY

if TYPE_CHECKING:
    from stoker.diagnostics.recorder import Recorder
    from stoker.events import Event

NAMED = 20
"""Events of each kind, in an epoch that starts workers, that are recorded by themselves."""

MOST = 1000
"""Events of the program that are recorded by themselves."""

LONGEST = 400
"""Letters of a text."""

NO_FAULTS = ("auto", "hint")
"""Kinds of events that tell of no fault."""

_STACKS = ("Its last Python stack:", "Its Python stack:")


class FaultHooks:
    """Records the faults of this process.

    Args:
        recorder: is given the records.
    """

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
        if number <= NAMED and self._named < MOST:
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
    """Returns an error as "class: text (cause)". Of one with a worker's traceback in it, the last line of that."""
    text = str(error).strip()
    if "Original Traceback" in text:
        return text.splitlines()[-1]
    cause = "" if error.__cause__ is None else f" ({str(error.__cause__).strip()})"
    return f"{type(error).__name__}: {text}{cause}" if text else type(error).__name__
