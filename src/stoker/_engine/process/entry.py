"""Where a zygote's process begins: after a fork of the trainer, or in a clean interpreter."""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stoker._engine.base import Recipe
from stoker._engine.process import fates, kernel, settle
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import REAP
from stoker._engine.process.zygote import Ends, Zygote, dumped
from stoker._supervision.rules import Rules

if TYPE_CHECKING:
    from stoker._engine.process.clean import Parcel


def main(
    ends: Ends,
    make: Callable[[], tuple[str, Recipe, int, Rules, bool]],
    signals: set[signal.Signals | int] | None = None,
) -> None:
    """The zygote's whole life, in the process that was born for it; does not return.

    Args:
        ends: what it was born with.
        make: gives the trainer's name, the recipe, the number of workers, what they may do, and whether they run
            Python's garbage collector.
        signals: the mask of blocked signals to go back to, now that no handler of the trainer is left.
    """
    kernel.die_with_writers(ends.lifeline)
    channel = Channel(socket.socket(fileno=ends.channel))
    born = False
    try:
        settle.zygote()
        if signals is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        trainer, recipe, workers, rules, collecting = make()
        settle.born_of(trainer, ends.lifeline if ends.trainer is None else ends.trainer)
        with fates.starting(fates.MINDER):
            zygote = Zygote(channel, ends, workers, rules, recipe, collecting)
        born = True
        zygote.run()
    except BaseException as error:
        if born:
            channel.send("gave_up", traceback.format_exc())  # another takes its place
        else:
            channel.send("broken", dumped(error))
        until = time.monotonic() + REAP
        while channel.unsent and time.monotonic() < until:
            time.sleep(0.001)
            channel.flush()
    os._exit(1)


def run_clean(parcel: Parcel, descriptors: Sequence[int]) -> None:
    """Entry of a clean interpreter: what was sent is opened here, so that what goes wrong can be reported."""

    def make() -> tuple[str, Recipe, int, Rules, bool]:
        parts = parcel.open()
        settle.write_out()  # else every worker would print again what was printed meanwhile
        trainer, assemble, workers, rules = (parts.pop(name) for name in ("trainer", "assemble", "workers", "rules"))
        return trainer, assemble(parts), workers, rules, True

    main(Ends(*descriptors), make)
