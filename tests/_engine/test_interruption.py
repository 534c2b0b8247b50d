"""Which exceptions tear; what that means for an iterator is in tests/loader/test_interruptions.py."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from stoker._engine import interruption


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
def test_what_a_handler_raises_comes_from_outside(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        error = caught(nothing_done_by_half)
        assert isinstance(error, Watchdog) and interruption.tears(error)
        assert not interruption.tears(caught(interruption.harmless(lambda: nothing_done_by_half())))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_same_raised_by_others_does_not() -> None:
    assert not interruption.tears(caught(barks))


def test_ctrl_c_does_wherever_it_comes_from() -> None:
    assert interruption.tears(caught(functools.partial(signal.default_int_handler, signal.SIGINT, None)))
