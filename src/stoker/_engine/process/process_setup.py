"""Sets up a process after its birth, before its first work."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from stoker._engine.process import linux


def zygote() -> None:
    """After the zygote's birth. Nothing of the trainer's may run here: no handler, no finaliser, no collection."""
    gc.disable()
    gc.freeze()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and number in _OF_FAULTS:
            signal.signal(number, signal.SIG_DFL)
        elif callable(handler):
            _handlers[number] = handler
            signal.signal(number, _ignored)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the trainer, which then ends us
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(STACKS_SIGNAL, signal.SIG_IGN)  # inherited by workers, until they can answer it


def worker(number: int, zygote_pid: int, stacks: int, collecting: bool) -> None:
    """After a worker's birth."""
    linux.die_with_parent(zygote_pid)
    linux.name_process(f"stoker-{number}")
    take_handlers()
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks, all_threads=True)  # writes the stacks after a crash
    gc.freeze()
    if collecting:
        gc.enable()
    one_thread()


def take_handlers() -> None:
    """Installs the program's signal handlers again, as a child of multiprocessing has them, for code of the user's.

    Not those of signals that end programs: the trainer decides about its end, and then ends its workers.
    """
    for number, handler in _handlers.items():
        if number not in _OF_THE_TRAINER:
            signal.signal(number, handler)


def _ignored(number: int, frame: FrameType | None) -> None:
    """A handler that does nothing. Unlike SIG_IGN, it is not inherited by the programs that a sample starts."""


_handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
"""The program's handlers, which the zygote has set aside."""

_OF_THE_TRAINER = {getattr(signal, name, 0) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")}

_OF_FAULTS = {getattr(signal, name, 0) for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")}
"""After a handler in Python, the process would run into the same fault again, for ever."""

STACKS_SIGNAL = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", 3)) - 3
"""Makes a worker write the Python stacks of its threads."""


def one_thread() -> None:
    """Torch's operators run in the worker's own thread, as in torch's workers: the cores are taken by the others."""
    torch: object = sys.modules.get("torch")
    # Another thread may be importing it: then it has nothing yet, or the one function before the other
    if hasattr(torch, "set_num_threads") and hasattr(torch, "get_num_threads") and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def take_standard_input() -> object:
    """Puts the empty file in the place of standard input; returns what is to be `sys.stdin`, which is None until then.

    multiprocessing would close the object, and so wait for ever for a thread of the trainer that was reading from it.
    """
    standard_input, sys.stdin = sys.stdin, None
    with contextlib.suppress(OSError):
        if standard_input is None or not os.get_inheritable(0):  # the program has none: it may be any file's descriptor
            return standard_input
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        return open(0, closefd=False)
    return standard_input


class Leaving(SystemExit):
    """Raised in a worker whose peer has ended, also in the middle of the user's code."""


def leave(code: int) -> NoReturn:
    """Ends a worker when all is done: writes out printed text; runs nothing else of Python's or the user's."""
    try:
        write_out()
    finally:
        os._exit(code)


def write_out() -> None:
    """Writes out the printed text that this process buffers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
