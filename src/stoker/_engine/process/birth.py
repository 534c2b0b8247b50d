"""How the zygote is born: forked from the trainer, or as a clean interpreter that is sent what it needs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from stoker._engine.base import Recipe
from stoker._engine.process import entry, kernel, zygote
from stoker._supervision.rules import Rules
from stoker._transport.reader import ForkHold, forking

NEVER_FORK = ("jax",)
"""Runtimes that run threads with locks of their own from their import on, and say themselves not to fork."""


class Birth(NamedTuple):
    """Which birth, and why, in words for `describe()`. Without a zygote each worker is spawned by itself."""

    forked: bool
    why: str
    zygote: bool = True


def choose(context: Any) -> Birth:
    """The birth for a `multiprocessing_context` (an object of multiprocessing, or None for its default)."""
    if not hasattr(os, "fork"):
        return Birth(False, f"{sys.platform} has no fork", zygote=False)
    if context is not None:
        method = context.get_start_method()
        return Birth(method == "fork", f"multiprocessing_context={method!r}")
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method != "fork":
        return Birth(False, f"multiprocessing's start method is {method!r}")
    loaded = [name for name in NEVER_FORK if name in sys.modules]
    if loaded:
        return Birth(False, f"{loaded[0]} is loaded, and does not survive a fork")
    return Birth(True, "multiprocessing's start method is 'fork'")


Parts = dict[str, Any]
Assemble = Callable[[Parts], Recipe]


def fork(
    ends: zygote.Ends, ours: Sequence[int | None], workers: int, rules: Rules, recipe: Recipe, hold: ForkHold
) -> int:
    """Forks the zygote; returns its pid.

    Args:
        ends: the zygote's.
        ours: the trainer's ends of the same, and what else it has for itself, which the zygote closes.
        workers: how many it forks.
        rules: what they may do.
        recipe: makes the job in each.
        hold: keeps what is leased at this moment until the zygote has ended.
    """
    import gc

    collecting = gc.isenabled()
    with contextlib.suppress(Exception):  # else what is buffered would be printed twice
        sys.stdout.flush()
        sys.stderr.flush()
    quiet = _quiet_about_threads()
    pid = 0
    try:
        with _signals_blocked() as before, forking(hold), quiet:
            pid = os.fork()
            if pid == 0:
                try:
                    quiet.__exit__(None, None, None)  # workers have the user's filters, and no other
                    for descriptor in ours:
                        if descriptor is not None:
                            os.close(descriptor)
                    trainer = multiprocessing.current_process().name
                    entry.main(ends, lambda: (trainer, recipe, workers, rules, collecting), before)
                finally:
                    os._exit(1)
    except BaseException:  # Ctrl-C while it was born, heard now
        if pid:
            kernel.end(pid)
        raise
    return pid


@contextlib.contextmanager
def _signals_blocked() -> Iterator[set[signal.Signals | int]]:
    """No handler of the user may run in the child before it has put its own in place."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield set(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _quiet_about_threads() -> Iterator[None]:
    """Python 3.12 warns of forks beside threads. We handle what it warns of: sick births are noticed and redone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
        yield


def clean(ends: zygote.Ends, workers: int, rules: Rules, parts: Parts, assemble: Assemble) -> int:
    """Starts a clean interpreter as zygote; returns its pid. Raises CannotSendError before anything starts."""
    from stoker._engine.process.clean import start

    trainer = multiprocessing.current_process().name
    everything = {**parts, "trainer": trainer, "assemble": assemble, "workers": workers, "rules": rules}
    descriptors = [descriptor for descriptor in ends if descriptor is not None]
    return start("stoker._engine.process.entry:run_clean", everything, descriptors)
