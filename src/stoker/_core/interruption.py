"""Exceptions that come from outside, between any two steps of Python's: Ctrl-C, or an exception from a signal handler.

While an iterator waits, nothing is half done, and the program may continue. Elsewhere a message may be read and not yet
handled, a unit counted and not yet handed out: to continue then would lose a batch, or wait for one for ever. The
traceback is checked for this afterwards, so the check costs nothing without an interruption.
"""

from __future__ import annotations

import functools
import signal
import traceback
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import ParamSpec, TypeVar, cast

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
