"""Signals that end a command with its measurements so far."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli.lasting_output import interruptible


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_ends_the_block(kind: signal.Signals) -> None:
    kinds = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever this process has inherited
    before = {one: signal.getsignal(one) for one in kinds}
    with interruptible() as interrupted:
        os.kill(os.getpid(), kind)
        signal.pause()
    assert interrupted == [kind]
    after = before | {kind: signal.SIG_IGN} if kind == signal.SIGHUP else before
    assert {one: signal.getsignal(one) for one in kinds} == after


def test_second_hangup_does_not_disturb_the_end() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with interruptible() as interrupted:
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    assert interrupted == [signal.SIGHUP]


@pytest.mark.parametrize("line", [0, 1, 2, 3])
def test_hangup_in_the_handler_of_another_ends_the_block(line: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with interruptible() as interrupted:
        handler = signal.getsignal(signal.SIGHUP)
        assert isinstance(handler, FunctionType)
        lines: list[int] = []

        def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
            if frame.f_code is not handler.__code__:
                return None
            if event == "line":
                lines.append(frame.f_lineno)
                if len(lines) == line + 1:
                    os.kill(os.getpid(), signal.SIGHUP)
            return trace

        sys.settrace(trace)
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        finally:
            sys.settrace(None)
        raise AssertionError("the block went on")
    assert interrupted == [signal.SIGHUP]
    assert len(lines) > line


def test_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as interrupted:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupted
    finally:
        signal.signal(signal.SIGHUP, before)
