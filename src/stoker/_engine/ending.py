"""Whether the interpreter is about to end."""

from __future__ import annotations

import threading
import time

_since: float | None = None


def is_near() -> bool:
    """Whether the program is over, and only what it left behind still runs: atexit handlers and daemon threads.

    It goes on for as long as a thread that is no daemon does, though the main one has ended.
    """
    return not any(thread.is_alive() and not thread.daemon for thread in threading.enumerate())


def leave_if_left_behind() -> None:
    """Ends a daemon thread without a word, as the interpreter would a moment later: nobody would end what it begins."""
    if is_near() and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def time_left(seconds: float) -> float:
    """How long something may take to end: so long; when the program is over, all that was left open together."""
    global _since
    if not is_near():
        return seconds
    _since = _since or time.monotonic()
    return max(0.0, _since + seconds - time.monotonic())
