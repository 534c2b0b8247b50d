"""Guards an iterator against another process, and the end of the interpreter.

The workers answer one process, and a fork of it shares their sockets, pipes and memory.
"""

from __future__ import annotations

import os
import threading
import time

from stoker import errors


def check_owner(owner: int) -> None:
    """Refuses a forked child: its messages would count as its parent's, and messages that it read would be missing
    there.

    Raises:
        IteratorClosedError: this is not the process `owner`.
    """
    if os.getpid() != owner:
        raise errors.IteratorClosedError(
            f"this iterator belongs to process {owner} and was asked for a batch in process {os.getpid()}, which was "
            "forked from it: make a new one with iter(loader) there"
        )


_since: float | None = None


def is_ending() -> bool:
    """Whether the program is over: only atexit handlers and daemon threads still run.

    The program continues while any non-daemon thread does, even if the main one has ended.
    """
    return not any(thread.is_alive() and not thread.daemon for thread in threading.enumerate())


def leave_if_left_behind() -> None:
    """Ends a daemon thread silently, as the interpreter would soon: nothing would end workers that it starts."""
    if is_ending() and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def allow(seconds: float) -> None:
    """Extends the time of everything that ends with the program, because one part has a reason to take longer."""
    global _since
    if _since is not None:
        _since += seconds


def time_left(seconds: float) -> float:
    """Returns the seconds that a component may take to end; when the program is over, all open ones share them."""
    global _since
    if not is_ending():
        return seconds
    _since = _since or time.monotonic()
    return max(0.0, _since + seconds - time.monotonic())
