"""Ends a command at Ctrl-C, SIGTERM or SIGHUP, with its measurements so far."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a command that was interrupted."""


@contextlib.contextmanager
def interruptible() -> Iterator[list[bool]]:
    """Turns SIGTERM and SIGHUP into a Ctrl-C, and a Ctrl-C into the end of the block.

    SIGHUP comes from a terminal that is closed. Where this process ignores it, as under `nohup`, it still does.

    Returns:
        A list that is empty unless the block was interrupted.
    """
    interrupted: list[bool] = []

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    kinds = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]  # Windows has no SIGHUP
    heeded = [kind for kind in kinds if kind is not None and signal.getsignal(kind) is not signal.SIG_IGN]
    before = {kind: signal.signal(kind, end) for kind in heeded}
    try:
        yield interrupted
    except KeyboardInterrupt:
        interrupted.append(True)
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
