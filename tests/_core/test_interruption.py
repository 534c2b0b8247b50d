"""Which exceptions tear; what that means for an iterator is in tests/loader/test_interruptions.py."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from stoker._core.interruption import harmless, tears


class Watchdog(Exception):
    pass


def barks(*_: Any) -> None:
    raise Watchdog


class Kennel:
    def barks(self, *_: Any) -> None:
        raise Watchdog

    def __call__(self, *_: Any) -> None:
        raise Watchdog


class Puppy(Kennel):
    """Inherits what is called."""


def nothing_done_by_half() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def caught(call: Callable[[], None]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "handler",
    [
        barks,
        Kennel().barks,
        Puppy(),
        functools.partial(barks, 1),
        functools.partial(functools.partial(Kennel(), 1), 2),
    ],
    ids=["function", "method", "object", "partial", "partial of a partial"],
)
def test_exception_of_a_signal_handler_is_an_interruption(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        error = caught(nothing_done_by_half)
        assert isinstance(error, Watchdog) and tears(error)
        assert not tears(caught(harmless(lambda: nothing_done_by_half())))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_exception_of_other_code_is_no_interruption() -> None:
    assert not tears(caught(barks))


def test_keyboard_interrupt_is_always_an_interruption() -> None:
    assert tears(caught(functools.partial(signal.default_int_handler, signal.SIGINT, None)))
