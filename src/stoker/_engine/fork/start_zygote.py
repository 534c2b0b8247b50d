"""Starts the zygote: forked from the trainer, or as a clean interpreter that receives the job."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from stoker._engine.backend import JobFactory, JobSource
from stoker._engine.fork import native_pools, zygote, zygote_main
from stoker._engine.fork.forked_process import Lineage
from stoker._engine.process import linux
from stoker._engine.start_method import Assemble, Parts, StartMethod
from stoker._engine.supervision.rules import Rules
from stoker._engine.transport.reader import ForkHold, forking
from stoker.errors import CannotSendError


def fork(
    ends: zygote.Ends,
    ours: Sequence[int | None],
    workers: int,
    rules: Rules,
    recipe: JobFactory,
    hold: ForkHold,
    context: BaseContext | None = None,
) -> int:
    """Forks the zygote; returns its pid.

    Args:
        ends: the zygote's.
        ours: the trainer's ends of the same, and what else it has for itself, which the zygote closes.
        workers: how many it forks.
        rules: what they may do.
        recipe: makes the job in each.
        hold: keeps what is leased at this moment until the zygote has ended.
        context: the `multiprocessing_context`.
    """
    import gc

    collecting = gc.isenabled()
    lineage = Lineage.of(context)
    with contextlib.suppress(Exception):  # otherwise buffered text would be printed twice
        sys.stdout.flush()
        sys.stderr.flush()
    quiet = native_pools.quiet_about_forks()
    pid = 0
    try:
        with signals_blocked() as before, forking(hold), quiet, without_tokenizer_threads():
            pid = os.fork()
            if pid == 0:
                try:
                    quiet.__exit__(None, None, None)  # workers have the user's filters, and no other
                    for descriptor in ours:
                        if descriptor is not None:
                            os.close(descriptor)
                    source = JobSource(lambda: recipe, unpickles=False)
                    zygote_main.main(ends, lambda: (lineage, source, workers, rules, collecting), before)
                finally:
                    os._exit(1)
    except BaseException:  # Ctrl-C while it was born, heard now
        if pid:
            linux.end(pid)
        raise
    return pid


@contextlib.contextmanager
def signals_blocked() -> Iterator[set[signal.Signals | int]]:
    """No handler of the user may run in the child before it has put its own in place."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield set(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


TOKENIZERS = "TOKENIZERS_PARALLELISM"


@contextlib.contextmanager
def without_tokenizer_threads() -> Iterator[None]:
    """Tells Hugging Face's tokenizers that a child has no threads, unless the user has said something.

    Older versions write a warning in each forked child of a program that has used a tokenizer, unless the variable is
    set before the fork. The trainer's own variable is as it was afterwards.
    """
    if "tokenizers" not in sys.modules or TOKENIZERS in os.environ:
        yield
        return
    os.environ[TOKENIZERS] = "false"
    try:
        yield
    finally:
        os.environ.pop(TOKENIZERS, None)


def clean(
    ends: zygote.Ends,
    workers: int,
    rules: Rules,
    parts: Parts,
    assemble: Assemble,
    how: StartMethod,
    lent: list[object],
) -> int:
    """Starts a clean interpreter as zygote; returns its pid. `lent` gets what is kept until the zygote has ended.

    Raises CannotSendError before anything starts.
    """
    from stoker._engine.fork.fresh_interpreter import start

    lineage, process = Lineage.of(how.context), None
    if not lineage.process.__module__.startswith("multiprocessing."):  # the user's own: it may be the main module's
        lineage, process = lineage._replace(process=BaseProcess), pickle.dumps(lineage.process)
    settings = zygote_main.ZygoteSettings(lineage, process, assemble, workers, rules, how.once)
    try:
        return start("stoker._engine.fork.zygote_main:run_clean", parts, ends.flat(), settings, lent)
    except CannotSendError as error:
        error.add_note(f"Workers are clean interpreters: {how.why}.")
        raise
