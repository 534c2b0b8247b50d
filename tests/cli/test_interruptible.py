"""Signals that end a command with its measurements so far."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.cli.interruptible import interruptible


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


def test_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as interrupted:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupted
    finally:
        signal.signal(signal.SIGHUP, before)
