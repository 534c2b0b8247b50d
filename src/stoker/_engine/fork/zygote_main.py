"""Entry of a zygote's process: after a fork of the trainer, or in a clean interpreter."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stoker._engine.backend import JobFactory, JobSource
from stoker._engine.fork.forked_process import Lineage
from stoker._engine.fork.zygote import Ends, Zygote, dumped
from stoker._engine.messages import Broken, FromTrainer, GaveUp
from stoker._engine.process import linux, process_setup
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import REAP
from stoker._engine.process.worker_events import MINDER, starting
from stoker._engine.supervision.rules import Rules

if TYPE_CHECKING:
    from stoker._engine.serialize.payload import Payload


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
) -> None:
    """The zygote's whole life, in the process that was born for it; does not return.

    Args:
        ends: what it was born with.
        make: gives the lineage of the workers, where they have the recipe from, their number, what they may do, and
            whether they run Python's garbage collector.
        signals: the mask of blocked signals to go back to, now that no handler of the trainer is left.
    """
    linux.die_with_writers(ends.lifeline)
    channel: Channel[FromTrainer] = Channel(socket.socket(fileno=ends.channel))
    born = False
    try:
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
            channel.send(GaveUp(traceback.format_exc()))  # another takes its place
        else:
            channel.send(Broken(dumped(error)))
        until = time.monotonic() + REAP
        while channel.unsent and time.monotonic() < until:
            time.sleep(0.001)
            channel.flush()
    os._exit(1)


def run_clean(parcel: Payload, descriptors: Sequence[int | None]) -> None:
    """Entry of a clean interpreter. What was sent is opened in each worker, unless the settings have it opened here."""

    def make() -> tuple[Lineage, JobSource, int, Rules, bool]:
        settings: ZygoteSettings = parcel.prepare()
        lineage = settings.lineage
        if settings.process is not None:
            parcel.import_main()
            lineage = lineage._replace(process=pickle.loads(settings.process))

        def recipe() -> JobFactory:
            return settings.assemble(parcel.open())

        source = JobSource(lambda: _without_collections(recipe), unpickles=True)
        if settings.once:
            shared = recipe()
            source = JobSource(lambda: shared, unpickles=False)
        process_setup.write_out()  # otherwise every worker would print again the text buffered meanwhile
        return lineage, source, settings.workers, settings.rules, True

    main(Ends.of(descriptors), make)


def _without_collections(recipe: Callable[[], JobFactory]) -> JobFactory:
    """The recipe, whose objects the worker's collector never looks through: they stay as long as the worker."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return recipe()
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
