"""Output to a terminal that is closed while a command runs: later output is lost, and the command goes on."""

from __future__ import annotations

import contextlib
import errno
import io
import os
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
