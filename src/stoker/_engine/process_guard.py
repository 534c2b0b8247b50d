"""Guards an iterator against another process, an exception half way, and the end of the interpreter.

**Another process.** The workers answer one process, and a fork of it shares their sockets, pipes and memory.

**An exception from outside**: Ctrl-C, or an exception from a signal handler. It comes between any two steps of
Python's. While an iterator waits, nothing is half done, and the program may continue. Elsewhere a message may be read
and not yet handled, a unit counted and not yet handed out: to continue then would lose a batch, or wait for one for
ever. The traceback is checked for this afterwards, so the check costs nothing without an interruption.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import ParamSpec, TypeVar, cast

from stoker import errors


def check_owner(owner: int) -> None:
    """Refuses a forked child: its messages would count as its parent's, and messages that it read would be missing
    there.

    Raises:
        IteratorClosedError: this is not the process `owner`.
    """
    if os.getpid() != owner:
        raise errors.IteratorClosedError(
            f"this iterator belongs to process {owner} and was asked for a batch in process {os.getpid()}, which was "
            "forked from it: make a new one with iter(loader) there"
        )


P = ParamSpec("P")
T = TypeVar("T")

_HARMLESS: set[CodeType] = set()


def harmless(function: Callable[P, T]) -> Callable[P, T]:
    """Marks a function in which nothing is half done: it waits, or runs the user's code, which can be run again."""
    _HARMLESS.add(cast("FunctionType", function).__code__)
    return function


def tears(error: BaseException) -> bool:
    """Whether this exception, just caught, came from outside in the middle of a step."""
    codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    return not codes & _HARMLESS and (isinstance(error, KeyboardInterrupt) or not codes.isdisjoint(_handlers()))


def _handlers() -> set[CodeType]:
    """Returns the code of the functions that signals call."""
    codes = set()
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for called in (handler, getattr(handler, "__call__", None)):  # noqa: B004 - a function or method; an object
            if isinstance(code := getattr(called, "__code__", None), CodeType):
                codes.add(code)
    return codes


_since: float | None = None


def is_ending() -> bool:
    """Whether the program is over: only atexit handlers and daemon threads still run.

    The program continues while any non-daemon thread does, even if the main one has ended.
    """
    return not any(thread.is_alive() and not thread.daemon for thread in threading.enumerate())


def leave_if_left_behind() -> None:
    """Ends a daemon thread silently, as the interpreter would soon: nothing would end workers that it starts."""
    if is_ending() and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def allow(seconds: float) -> None:
    """Extends the time of everything that ends with the program, because one part has a reason to take longer."""
    global _since
    if _since is not None:
        _since += seconds


def time_left(seconds: float) -> float:
    """Returns the seconds that a component may take to end; when the program is over, all open ones share them."""
    global _since
    if not is_ending():
        return seconds
    _since = _since or time.monotonic()
    return max(0.0, _since + seconds - time.monotonic())
