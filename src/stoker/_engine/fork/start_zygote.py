"""Starts the zygote, forked from the trainer or as a clean interpreter that receives the job, and holds the entry of
its process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from stoker._engine.backend import JobFactory, JobSource
from stoker._engine.backends import Assemble, Parts, StartMethod
from stoker._engine.fork import native_pools, zygote
from stoker._engine.fork.births import Births, HelperProcess
from stoker._engine.fork.forked_process import Lineage
from stoker._engine.fork.zygote import Ends, Zygote, dumped
from stoker._engine.machines.remote_workers import BridgeEndedError
from stoker._engine.messages import Broken, FromTrainer, GaveUp
from stoker._engine.process import linux, process_setup
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import REAP
from stoker._engine.process.worker_events import MINDER, starting
from stoker._engine.serialize.payload import Payload
from stoker._engine.supervision.rules import Rules
from stoker._engine.transport.reader import ForkHold, forking
from stoker.errors import CannotSendError


def fork(
    ends: zygote.Ends,
    ours: Sequence[int | None],
    workers: int,
    rules: Rules,
    job_factory: JobFactory,
    hold: ForkHold,
    context: BaseContext | None = None,
) -> int:
    """Forks the zygote; returns its pid.

    Args:
        ends: the zygote's.
        ours: the trainer's ends of the same, and what else it has for itself, which the zygote closes.
        workers: how many it forks.
        rules: what they may do.
        job_factory: makes the job in each.
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
                    source = JobSource(lambda: job_factory, unpickles=False)
                    main(ends, lambda: (lineage, source, workers, rules, collecting), before)
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
    births: Births,
) -> HelperProcess:
    """Starts a clean interpreter as zygote, or has a template fork it. `lent` gets what is kept until the zygote has
    ended.

    Raises CannotSendError before anything starts.
    """

    lineage, process = Lineage.of(how.context), None
    if not lineage.process.__module__.startswith("multiprocessing."):  # the user's own: it may be the main module's
        lineage, process = lineage._replace(process=BaseProcess), pickle.dumps(lineage.process)
    settings = ZygoteSettings(lineage, process, assemble, workers, rules, how.once)
    from stoker._engine.fork.fresh_interpreter import packed  # here: only clean births pickle

    try:
        with packed("stoker._engine.fork.start_zygote:run_clean", parts, ends.flat(), settings, lent) as (stream, head):
            return births.bear(stream, head)
    except CannotSendError as error:
        error.add_note(f"Workers are clean interpreters: {how.why}.")
        raise


class ZygoteSettings(NamedTuple):
    """Settings of a clean zygote, read before any object of the user's is unpickled."""

    lineage: Lineage
    process: bytes | None
    """The class of the workers' Process objects, pickled, where it is the user's own: the main module is imported for
    it."""
    assemble: Callable[[dict[str, object]], JobFactory]
    workers: int
    rules: Rules
    once: bool
    """Whether the zygote unpickles the job, once for all workers."""


def main(
    ends: Ends,
    make: Callable[[], tuple[Lineage, JobSource, int, Rules, bool]],
    signals: set[signal.Signals | int] | None = None,
    is_set_up: bool = False,
) -> None:
    """The zygote's whole life, in the process that was born for it; does not return.

    Args:
        ends: what it was born with.
        make: gives the lineage of the workers, the source of the job, their number, what they may do, and
            whether they run Python's garbage collector.
        signals: the mask of blocked signals to go back to, now that no handler of the trainer is left.
        is_set_up: whether `process_setup.zygote` has run, in the template that forked it.
    """
    linux.die_with_writers(ends.lifeline)
    channel: Channel[FromTrainer] = Channel(socket.socket(fileno=ends.channel))
    born = False
    try:
        if not is_set_up:
            process_setup.zygote()
        if signals is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        lineage, source, workers, rules, collecting = make()
        with starting(MINDER):
            zygote = Zygote(channel, ends, workers, rules, source, collecting, lineage)
        born = True
        zygote.run()
    except BaseException as error:
        if born:
            is_told = isinstance(error, BridgeEndedError)
            channel.send(GaveUp(str(error) if is_told else f"It raised:\n{traceback.format_exc()}"))
        else:
            channel.send(Broken(dumped(error)))
        until = time.monotonic() + REAP
        while channel.unsent and time.monotonic() < until:
            time.sleep(0.001)
            channel.flush()
    os._exit(1)


def run_clean(parcel: Payload, descriptors: Sequence[int | None], is_set_up: bool = False) -> None:
    """Entry of a clean interpreter. What was sent is opened in each worker, unless the settings have it opened here."""

    def make() -> tuple[Lineage, JobSource, int, Rules, bool]:
        settings: ZygoteSettings = parcel.prepare()
        lineage = settings.lineage
        if settings.process is not None:
            parcel.import_main()
            lineage = lineage._replace(process=pickle.loads(settings.process))

        def job_factory() -> JobFactory:
            return settings.assemble(parcel.open())

        source = JobSource(lambda: _without_collections(job_factory), unpickles=True)
        if settings.once:
            shared = job_factory()
            source = JobSource(lambda: shared, unpickles=False)
        process_setup.write_out()  # otherwise every worker would print again the text buffered meanwhile
        return lineage, source, settings.workers, settings.rules, True

    main(Ends.of(descriptors), make, is_set_up=is_set_up)


def _without_collections(job_factory: Callable[[], JobFactory]) -> JobFactory:
    """Returns the job factory; the garbage collector never scans its objects, which live as long as the worker."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return job_factory()
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
