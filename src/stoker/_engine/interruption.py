"""Whether an exception from outside found an iterator half way: Ctrl-C, or what a handler of signals raises.

Such an exception comes between any two steps of Python's. Where somebody waits it finds nothing half done, and whoever
catches it may go on. Elsewhere a message may be read and not yet heard, a unit counted and not yet handed out: to go on
then would lose a batch, or wait for one for ever. That is looked up afterwards, in the traceback, so that it costs
nothing where nobody interrupts.
"""

from __future__ import annotations

import functools
import signal
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_HARMLESS: set[CodeType] = set()


def harmless(function: F) -> F:
    """Marks a function in which nothing is half done: it waits, or runs the user's code, which can be run again."""
    _HARMLESS.add(function.__code__)
    return function


def tears(error: BaseException) -> bool:
    """Whether this exception, just caught, came from outside in the middle of something."""
    codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    return not codes & _HARMLESS and (isinstance(error, KeyboardInterrupt) or not codes.isdisjoint(_handlers()))


def _handlers() -> set[CodeType]:
    """The code of the functions that signals call."""
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for called in (handler, getattr(handler, "__call__", None)):  # noqa: B004 - a function or method; an object
            if isinstance(code := getattr(called, "__code__", None), CodeType):
                codes.add(code)
    return codes
