"""Ends a command at Ctrl-C or SIGTERM, with its measurements so far."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a command that was interrupted."""


@contextlib.contextmanager
def interruptible() -> Iterator[list[bool]]:
    """Turns SIGTERM into a Ctrl-C, and a Ctrl-C into the end of the block.

    Returns:
        A list that is empty unless the block was interrupted.
    """
    interrupted: list[bool] = []

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield interrupted
    except KeyboardInterrupt:
        interrupted.append(True)
    finally:
        signal.signal(signal.SIGTERM, before)
