"""Ends a command at Ctrl-C, SIGTERM or SIGHUP, with its measurements so far."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


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
