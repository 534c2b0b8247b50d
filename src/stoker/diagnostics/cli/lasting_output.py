"""Commands outlive the terminal that they print to; Ctrl-C, SIGTERM and SIGHUP end them with their measurements."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any


class ClosableTerminal(io.FileIO):
    """A terminal. Output after it was closed is lost without an error."""

    def write(self, data: Any) -> int:
        """Writes bytes; returns their number, or how many of them were written."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return memoryview(data).nbytes


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Keeps errors of a closed terminal from `sys.stdout` and `sys.stderr` in the block."""
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    terminals = {name: _closable(stream) for name, stream in streams.items() if os.name == "posix" and _is_tty(stream)}
    for name, terminal in terminals.items():
        setattr(sys, name, terminal)
    try:
        yield
    finally:
        for name, terminal in terminals.items():
            if not terminal.closed:
                terminal.flush()
            if getattr(sys, name) is terminal:
                setattr(sys, name, streams[name])


def _is_tty(stream: Any) -> bool:
    try:
        return bool(stream.isatty()) and stream.fileno() >= 0
    except (OSError, ValueError):
        return False


def _closable(stream: Any) -> io.TextIOWrapper:
    stream.flush()
    raw = io.BufferedWriter(ClosableTerminal(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True)


@contextlib.contextmanager
def interruptible() -> Iterator[list[int]]:
    """Turns SIGTERM and SIGHUP into a Ctrl-C, and a Ctrl-C into the end of the block.

    SIGHUP comes from a terminal that is closed. Where this process ignores it, as under `nohup`, it still does. Once it
    has ended the block it is ignored, also after the block: the kernel and a shell both send it.

    Returns:
        A list that is empty unless the block was interrupted: then it holds the signal's number.
    """
    interrupted: list[int] = []
    received: list[int] = []
    hangup = getattr(signal, "SIGHUP", None)

    def end(number: int, frame: object) -> None:
        again = number == hangup and hangup in received  # asked first: a signal may also arrive in this function
        received.append(number)
        if not again:
            raise KeyboardInterrupt

    kinds = [signal.SIGTERM, hangup]  # Windows has no SIGHUP
    heeded = [kind for kind in kinds if kind is not None and signal.getsignal(kind) is not signal.SIG_IGN]
    before = {kind: signal.signal(kind, end) for kind in heeded}
    try:
        yield interrupted
    except KeyboardInterrupt:
        interrupted.append(received[0] if received else signal.SIGINT)
    finally:
        for kind, handler in before.items():
            signal.signal(kind, signal.SIG_IGN if kind == hangup and hangup in received else handler)
