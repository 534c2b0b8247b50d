"""Signals that end a command with its measurements so far."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.cli.interruptible import interruptible


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_ends_the_block(kind: signal.Signals) -> None:
    kinds = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.getsignal(one) for one in kinds]
    with interruptible() as interrupted:
        os.kill(os.getpid(), kind)
        signal.pause()
    assert interrupted == [True]
    assert [signal.getsignal(one) for one in kinds] == before


def test_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as interrupted:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupted
    finally:
        signal.signal(signal.SIGHUP, before)
