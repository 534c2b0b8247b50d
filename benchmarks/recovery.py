"""How long after a worker's death does its batch come?

Samples of 1 kB are made in batches of 8, one batch ahead. When the worker that makes the next batch has begun it, it
says so, and is killed (SIGKILL); measured is the time from then until `next()` gives that batch. Beside it stands what
the batch takes from the same moment without a death: the work is done again from the start, so the difference is what
noticing the death, starting another worker and handing over cost. Samples take nothing, or 20 ms (160 for a batch);
workers are forked, or born from a clean interpreter (forkserver). Each figure is the median of several loaders, in each
of which one death happens. Later deaths, with no batch between them, wait longer on purpose: 50 ms, 100 ms, up to 2 s.

Of two workers, the one that lives may take the batch over before there is another. The death of the zygote, which minds
the workers, takes its worker along; another zygote then starts another worker.

Torch's loader ends at the first death: shown is how long its error takes to arrive. What follows, the start of
another loader and the way back to this batch, is the user's.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import statistics
import struct
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import method
import numpy as np
from method import Case, Figures

BATCH = 8
NUMBER = 5  # of the batch whose maker dies
TIMES = 7
GIVEN_UP = 20  # seconds after which torch's loader is ended
ALONE = "ms for the batch, undisturbed"
ERROR, ENDS = "ms from the death to the error", "ends with"
DEATHS = {"the worker": ("worker", 1), "one of two workers": ("worker", 2), "the zygote": ("zygote", 1)}
"""Who dies, of how many workers."""
SAID = struct.Struct("ii")


def cases(options: argparse.Namespace) -> list[Case]:
    times = 2 if options.quick else TIMES
    births = {"fork": "forked", "forkserver": "clean birth"}
    return [
        Case(
            f"samples of {1e3 * cost:g} ms, {births[birth]}",
            {rival: {"rival": rival, "cost": cost, "birth": birth, "times": times} for rival in ("stoker", "torch")},
        )
        for cost in (0.0, 0.02)
        for birth in births
    ]


def measure(rival: str, cost: float, birth: str, times: int) -> Figures:
    warnings.simplefilter("ignore")  # each death is told
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "begun"))
        os.mkfifo(path)
        begun = os.open(path, os.O_RDWR)

        def once(victim: str | None, workers: int) -> float:
            settings = {"num_workers": workers, "prefetch_factor": 1, "multiprocessing_context": birth}
            loader = method.data_loader(rival)(Samples(cost, path), BATCH, **settings)
            return milliseconds_to_the_batch(iter(loader), workers, begun, victim)

        return {"stoker": stokers, "torch": torchs}[rival](once, times)


Once = Callable[[str | None, int], float]
"""Milliseconds to the batch, with this death and so many workers."""


def stokers(once: Once, times: int) -> Figures:
    def median(*how: Any) -> float:
        return statistics.median(once(*how) for _ in range(times))

    alone = {workers: median(None, workers) for _, workers in DEATHS.values()}
    figures: Figures = {ALONE: alone[1]}
    for who, (victim, workers) in DEATHS.items():
        figures[f"{who} dies: ms to the batch"] = after = median(victim, workers)
        figures[f"{who} dies: ms more than undisturbed"] = after - alone[workers]
    return figures


def torchs(once: Once, times: int) -> Figures:
    """Its worker dies, and with it the loader."""
    alone, passed, told = statistics.median(once(None, 1) for _ in range(times)), [], []
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError(f"nothing, after {GIVEN_UP} s")))
    for _ in range(min(times, 3)):  # with a clean birth the error takes 5 s
        signal.alarm(GIVEN_UP)
        try:
            once("worker", 1)
        except Ended as ended:
            passed.append(ended.milliseconds)
            told.append(str(ended))
        signal.alarm(0)
    return {ALONE: alone, ERROR: statistics.median(passed), ENDS: statistics.mode(told)}


class Ended(Exception):
    """The loader has ended with an error, after so many milliseconds."""

    def __init__(self, error: Exception, milliseconds: float) -> None:
        told = re.sub(r"DataLoader worker \(pid(\(s\))? [\d, ]*\) ", "worker ", str(error).splitlines()[0])
        super().__init__(f"{type(error).__name__}: {told}")
        self.milliseconds = milliseconds


def milliseconds_to_the_batch(iterator: Any, workers: int, begun: int, victim: str | None) -> float:
    """From the moment at which its maker has begun it, and dies."""
    for _ in range(NUMBER - workers + 1):  # so many are ahead
        next(iterator)
    maker = wait_for(begun)
    if victim is not None:
        os.kill(maker if victim == "worker" else iterator._backend.pids[0], signal.SIGKILL)
    began = time.perf_counter()
    try:
        for _ in range(workers):
            batch = next(iterator)
        passed = time.perf_counter() - began
        assert batch[:, 0].tolist() == list(range(NUMBER * BATCH, (NUMBER + 1) * BATCH))
    except Exception as error:
        raise Ended(error, 1e3 * (time.perf_counter() - began)) from error
    finally:
        del iterator
        while select.select([begun], [], [], 0)[0]:  # what belongs to no later run
            os.read(begun, SAID.size)
    return 1e3 * passed


def wait_for(begun: int) -> int:
    """Waits until a worker begins the batch, and returns its pid."""
    while True:
        number, pid = SAID.unpack(os.read(begun, SAID.size))
        if number == NUMBER:
            return int(pid)


class Samples:
    """Sample k is a row that begins with k. The worker that begins a batch says so."""

    def __init__(self, cost: float, path: str) -> None:
        self.cost = cost
        self.path = path

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        if index % BATCH == 0:
            said = os.open(self.path, os.O_WRONLY)
            os.write(said, SAID.pack(index // BATCH, os.getpid()))
            os.close(said)
        if self.cost:
            time.sleep(self.cost)
        row = np.zeros(128)
        row[0] = index
        return row


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
