"""A clock that rings on a descriptor, so that waits need no end of their own.

A process that gives each of its waits an end has the kernel set a timer and take it back each time: 4 us, as much as
reading the message that it waited for. One timer that is set now and then costs nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time

from stoker._core.machine.reserve import DENIED

_MONOTONIC = 1


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


class Timer:
    """Rings once, when it is set. In a forked child it is only to be closed.

    Attributes:
        descriptor: readable from when it rings until it is set anew or quieted. None where the platform has no such
            timers, or a filter of system calls denies them: there a wait ends by `patience()`.
        is_set: whether it is to ring, or has rung and was not quieted.

    Raises:
        OSError: no descriptor is left.
    """

    def __init__(self) -> None:
        self._kernel = _kernel()
        self.descriptor: int | None = None
        if self._kernel is not None:
            try:
                self.descriptor = _checked(self._kernel.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                if error.errno not in DENIED:
                    raise
                self._kernel = None
        self.is_set = False
        self._due = 0.0

    def set(self, seconds: float) -> None:
        """Sets the timer to ring after this number of seconds, instead of its earlier time."""
        self.is_set = True
        if self._kernel is None:
            self._due = time.monotonic() + seconds
            return
        nanoseconds = max(1, int(seconds * 1e9))  # 0 would be never
        setting = _Setting(_Time(0, 0), _Time(*divmod(nanoseconds, 10**9)))
        _checked(self._kernel.timerfd_settime(self.descriptor, 0, ctypes.byref(setting), None))

    def patience(self) -> float | None:
        """Seconds that a wait may take; None where the descriptor ends it."""
        if self._kernel is not None or not self.is_set:
            return None
        return max(0.0, self._due - time.monotonic())

    def quiet(self) -> bool:
        """Whether it has rung; it has not any more, and is not set."""
        rung = False
        if self.descriptor is None:
            rung = self.is_set and time.monotonic() >= self._due
        else:
            with contextlib.suppress(BlockingIOError):
                rung = bool(os.read(self.descriptor, 8))
        self.is_set = self.is_set and not rung
        return rung

    def close(self) -> None:
        """Gives the descriptor back."""
        if self.descriptor is not None:
            os.close(self.descriptor)


def works() -> bool:
    """Whether waits need no end of their own here, or the platform never has such timers."""
    timer = Timer()
    timer.close()
    return timer.descriptor is not None or _kernel() is None


def _kernel() -> ctypes.CDLL | None:
    """Returns the C library if it has such timers (Linux), else None. Python itself has them from 3.13 on."""
    library = ctypes.CDLL(None, use_errno=True) if sys.platform != "win32" else None
    return library if hasattr(library, "timerfd_create") else None


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
