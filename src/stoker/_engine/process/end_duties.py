"""Whether a worker has something to do at its end, told in memory that its parent reads.

The parent gives such a worker more time, also while it is busy with a sample and can tell nothing. So the mark is set
at the moment when a finalizer or a thread is registered, by what multiprocessing and threading call there, and looked
over at the end of each unit.
"""

from __future__ import annotations

import atexit
import multiprocessing.process
import threading
from collections.abc import Iterator
from multiprocessing import util
from multiprocessing.process import BaseProcess

from stoker._engine.activity import DUTIES, Mark

_mark: Mark | None = None
_always = True
_handlers = 0  # of atexit, that are no duties


def watch(mark: Mark, process: BaseProcess) -> None:
    """Keeps `mark[DUTIES]` up to date from now on, in this process.

    Args:
        mark: of this worker.
        process: its Process object. If its class does more than multiprocessing's, that is a duty too: a coverage tool
            saves its counts.
    """
    global _mark, _always, _handlers
    _mark, _handlers = mark, atexit._ncallbacks()
    _always = _differs(type(process))
    mark[DUTIES] = int(_always)
    util._finalizer_counter = _FinalizerNumber(util._finalizer_counter)  # type: ignore[attr-defined]
    threading._limbo = _Limbo()  # type: ignore[attr-defined]


def begin() -> None:
    """Excludes the `atexit` handlers registered so far, by modules of the job: they are no duties."""
    global _handlers
    _handlers = atexit._ncallbacks()


def look() -> None:
    """Records whether registered duties are still to be done."""
    if _mark is None or _always or not (_mark[DUTIES] or _new_handlers()):
        return
    _mark[DUTIES] = 0  # first: a duty that another thread registers meanwhile counts
    if _has_some():
        _mark[DUTIES] = 1


def _has_some() -> bool:
    finalizers = util._finalizer_registry  # type: ignore[attr-defined]
    return (
        any(priority is not None for priority, _ in list(finalizers))
        or any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate())
        or _new_handlers()
    )


def _new_handlers() -> bool:
    return atexit._ncallbacks() > _handlers


def _differs(kind: type) -> bool:
    own = vars(multiprocessing.process)
    return any(getattr(getattr(kind, name), "__globals__", None) is not own for name in ("_bootstrap", "run"))


class _FinalizerNumber:
    """multiprocessing numbers its finalizers by this: so each is noticed."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers

    def __next__(self) -> int:
        assert _mark is not None
        _mark[DUTIES] = 1
        return next(self._numbers)


class _Limbo(dict[threading.Thread, threading.Thread]):
    """threading's record of the threads that are being started: so each is noticed."""

    def __setitem__(self, thread: threading.Thread, value: threading.Thread) -> None:
        if not thread.daemon and _mark is not None:
            _mark[DUTIES] = 1
        super().__setitem__(thread, value)
