"""What a process of ours puts in order after its birth, before it does anything else."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing.process
import multiprocessing.util  # here: a worker would have to look for it, perhaps without a descriptor left
import os
import signal
import sys
from typing import Any, NoReturn

from stoker._engine.process import kernel


def zygote() -> None:
    """After the zygote's birth. Nothing of the trainer's may run here: no handler, no finaliser, no collection."""
    gc.disable()
    gc.freeze()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the trainer, which then ends us
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(STACKS_SIGNAL, signal.SIG_IGN)  # inherited by workers, until they can answer it


def born_of(trainer: str, sentinel: int) -> None:
    """Libraries ask multiprocessing whose child they are: the trainer's, also in the workers that are forked from here.

    Args:
        trainer: its name.
        sentinel: a descriptor that is readable when it has ended; open as long as this process and its workers.
    """
    parent = multiprocessing.process._ParentProcess(trainer, os.getppid(), sentinel)  # type: ignore[attr-defined]
    multiprocessing.process._parent_process = parent  # type: ignore[attr-defined]


def worker(number: int, zygote_pid: int, stacks: int, collecting: bool) -> None:
    """After a worker's birth."""
    kernel.die_with_parent(zygote_pid)
    kernel.name_process(f"stoker-{number}")
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks, all_threads=True)  # what it did when it crashes
    gc.freeze()
    if collecting:
        gc.enable()
    _as_a_child_of_multiprocessing(number)
    one_thread()


STACKS_SIGNAL = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", 3)) - 3
"""Makes a worker write the Python stacks of its threads."""


def one_thread() -> None:
    """Torch's operators run in the worker's own thread, as in torch's workers: the cores are taken by the others."""
    torch: Any = sys.modules.get("torch")
    # Another thread may be importing it: then it has nothing yet, or the one function before the other
    if hasattr(torch, "set_num_threads") and hasattr(torch, "get_num_threads") and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def _as_a_child_of_multiprocessing(number: int) -> None:
    """Libraries ask multiprocessing who they are: a daemonic child with a name, a number and no children, no standard
    input."""
    process = multiprocessing.process.current_process()
    process._config = {**process._config, "daemon": True}  # type: ignore[attr-defined]
    process._name = f"stoker-worker-{number}"  # type: ignore[attr-defined]
    process._identity = (*process._identity, number + 1)
    multiprocessing.process._children = set()  # type: ignore[attr-defined]
    multiprocessing.util._finalizer_registry.clear()  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):
        if sys.stdin is None or not os.get_inheritable(0):  # the program has none: its descriptor may be any file's
            return
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process


def leave(code: int) -> NoReturn:
    """Ends a worker: what was printed is written out, nothing else of Python's or the user's runs."""
    try:
        write_out()
    finally:
        os._exit(code)


def write_out() -> None:
    """What was printed leaves this process's memory."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
