"""Ctrl-C ends a program within a second: one line says how far it came, and no process stays.

Import it before everything slow. From then on the first Ctrl-C

- ends the program at once while it is still being loaded (inside an import, an interrupt can come out as any error);
- raises KeyboardInterrupt within `answered`, so that `with` blocks close what is open. Then, or when that takes too
  long, or when something has swallowed the exception, what is left is killed and the program ends. A timer's signal
  does that, not a thread: no process can be forked meanwhile.

Later ones change nothing. A worker process inherits this handler, and leaves the answer to the program that started it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import psutil

EXIT_CODE = 130  # what shells show for a program that Ctrl-C ended
SHOW_CURSOR = "\x1b[?25h"  # a progress line hides it

_program = os.getpid()
_stopped = False
_patience = 0.0
_say: Callable[[], str] | None = None  # None outside of `answered`


@contextmanager
def answered(say: Callable[[], str], patience: float = 0.5) -> Iterator[None]:
    """Runs the body of a program. `say` tells how far it came; `patience` is how many seconds it may take to end."""
    global _say, _patience
    _say, _patience = say, patience
    try:
        yield
    except BaseException as error:
        # What is interrupted while it starts or ends may raise something else: a pool whose thread has not begun
        if _stopped or isinstance(error, KeyboardInterrupt):
            _end(say)
        raise


@contextmanager
def held_back() -> Iterator[None]:
    """Keeps Ctrl-C waiting, also for a program that is started meanwhile: importing this module there lets it in."""
    _let_in(False)
    try:
        yield
    finally:
        _let_in(True)


def _let_in(yes: bool) -> None:
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK if yes else signal.SIG_BLOCK, [signal.SIGINT])


def _on_ctrl_c(number: int, frame: FrameType | None) -> None:
    global _stopped
    if _stopped or os.getpid() != _program:
        return
    _stopped = True
    if _say is None:
        _end(lambda: "before it had begun")
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.signal(signal.SIGALRM, _on_impatience)
        signal.setitimer(signal.ITIMER_REAL, _patience)
    raise KeyboardInterrupt


def _on_impatience(number: int, frame: FrameType | None) -> None:
    if os.getpid() == _program and _say is not None:
        _end(_say)


def _end(say: Callable[[], str]) -> NoReturn:
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises when its workers are killed
    processes = psutil.Process().children(recursive=True)  # parents come before their children
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=0.2)
    to_next_line = SHOW_CURSOR + "\n" if sys.stderr.isatty() else ""
    print(f"{to_next_line}Stopped by Ctrl-C {say()}.", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)  # because an interpreter full of modules takes half a second to leave


def _on_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    if not _stopped:  # else it is KeyboardInterrupt, in a finaliser or in a callback of a fork
        sys.__unraisablehook__(unraisable)


sys.unraisablehook = _on_unraisable
signal.signal(signal.SIGINT, _on_ctrl_c)
_let_in(True)
