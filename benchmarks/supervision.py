"""What does supervision cost?

The workloads of transport.py and images.py, and batches of 64 samples of some 2 us, in two workers: once by the engine
as it is, once by one without what supervises it. That other engine exists only here: `WITHOUT` names the words that are
taken out of the product's methods, before its processes are forked; both engines have these methods compiled anew, so
that they lie alike in memory. Gone are the marks that a worker leaves for each sample, the error policy's questions,
the zygote's looks at stalls and memory, and what the trainer accounts for when it delivers a batch.

Both engines are alive at once, and give the same batches. They take turns, some 40 ms each: a *block* begins and ends
when all batches ahead are made, so that who has no turn rests, and what a block takes is that of its batches. Two
blocks beside each other are a pair, each in the opposite order of the last. So both see the same machine, also where
its speed changes all the time. After some pairs both engines end, and others are born: how their memory lies is luck
that lasts as long as a process.

A ratio is that of the two blocks of a pair; the statistics are those of pairs.py. Shown is by how much more the engine
as it is takes, and the ends of the interval. The goal is for the upper end. The processor time is that of all
processes, by the scheduler's account. In the last case both engines are the same, as they are: so much is chance. What
happens once a second (a look at who stalls, some 20 us) is in few blocks, and does not show.
"""

from __future__ import annotations
import __future__

import argparse
import contextlib
import functools
import inspect
import math
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import images
import method
import transport
from method import Case, Figures, Goal
from pairs import interval, middle

method.LONGEST = 1800.0
WORKERS = 2
BLOCK = 0.04  # seconds
MOST = 2  # per cent
TIME, CPU = "% more time", "% more processor time"

WITHOUT: dict[str, dict[str, str]] = {
    # Worker: its marks go into a list of its own
    "_engine.process.worker:Worker.run": {"job.mark = self._mark": ""},
    "_engine.process.worker:Worker._answer": {
        "self._mark[ACTIVITY] = Activity.WRITE": "",
        "self._mark[ACTIVITY] = Activity.IDLE": "",
    },
    "_job.job:LoaderJob._run_unit": {
        "self._error_policy.unit = work": "",
        "if known or self._error_policy.is_touched:": "if False:",
    },
    "_job.job:LoaderJob._begin": {"self.mark[ACTIVITY] = Activity.START": "", "if self._knows:": "if False:"},
    "_job.job:LoaderJob._collated": {
        "self.mark[ACTIVITY] = Activity.COLLATE": "",
        "if self._knows:": "if False:",
        "self.mark[ACTIVITY] = Activity.WRITE": "",
    },
    "_job.job:LoaderJob.report": {"self._error_policy.met if self._error_policy.has_met_any else []": "[]"},
    "_job.map_fetcher:MapFetcher.samples": {"if self._error_policy.has_met_any:": "if False:"},
    "_job.map_fetcher:MapFetcher._in_turn": {
        "if not self._skips and self._is_strict:": "if True:",
    },
    # Supervisor
    "_engine.supervisor:Supervisor.handle": {
        "if self._is_due:": "if not self._answered:",
    },
    "_engine.supervisor:Supervisor._take_answer": {
        "worker.unseen += seconds": "",
        "if self._recycling_policy.counts or worker.retires or worker.drains or worker.unseen >= LOOK:": "if False:",
    },
    "_engine.supervisor:Supervisor._deliver": {"if self._troubled:": "if False:"},
    "_engine.supervisor:Supervisor._hand_out": {"self._blame.known(unit) if self._troubled else ()": "()"},
    # Trainer
    "loader.iterator:LoaderIterator._next": {
        "asked = time.perf_counter()": "asked = 0.0",
        "counts, now = self._ledger.epoch, time.perf_counter()": "pass",
        "counts.waited += now - asked": "pass",
        "counts.until = now": "pass",
    },
    "loader.iterator:LoaderIterator._accounted_for": {"if self._dispatcher.later:": "if False:"},
    "loader.iterator:LoaderIterator._account": {
        'if answer.kind == "batch" and not report.faults:': "if True:",
        "counts = accounts.counts": "pass",
        "counts.delivered += report.samples": "pass",
        "counts.batches += 1": "pass",
        "accounts.clean += report.samples": "pass",
    },
}
"""Module, class and method; what is taken out of it, and what stands there instead."""


def cases(options: argparse.Namespace) -> list[Case]:
    lives, pairs = (2, 4) if options.quick else (720, 12)
    goals = [Goal(f"{name}, upper end", at_most=MOST) for name in (TIME, CPU)]
    workloads: dict[str, dict[str, Any]] = {
        f"transport, batches of {name}, read": {"workload": "transport", "shape": shape, "samples": samples}
        for name, shape, samples, _ in transport.SIZES
    }
    # Of fewer pairs, its interval is wider than its middle is far from the goal
    workloads["transport, batches of 128 kB, read"]["lives"] = 2 * lives
    workloads["64 samples of 2 us"] = {"workload": "cheap"}
    if options.data.is_dir():
        workloads["photographs, no step"] = {"workload": "photographs", "data": str(options.data)}
    found = [
        Case(name, {"supervised / not": {"lives": lives, "pairs": pairs, **how}}, goals)
        for name, how in workloads.items()
    ]
    alike = {"workload": "cheap", "lives": lives, "pairs": pairs, "alike": True}
    return [*found, Case("the same engine twice", {"supervised / supervised": alike})]


def measure(workload: str, lives: int, pairs: int, alike: bool = False, **how: Any) -> Figures:
    begin, take = WORKLOADS[workload](**how)
    if workload == "photographs":
        lives, pairs = max(1, lives // 3), max(1, pairs // 2)  # a block is a batch of each worker, for 0.2 s
    times: list[list[float]] = []
    cpu: list[list[float]] = []
    for life in range(lives):
        first, second = (True, False) if life % 2 else (False, True)
        with Engine(begin, take, first or alike) as one, Engine(begin, take, second or alike) as other:
            engines = {first: one, second: other}
            ratios = list(_ratios(engines[True], engines[False], pairs))
        times.append([ratio for ratio, _ in ratios])
        cpu.append([ratio for _, ratio in ratios])
    figures: Figures = {}
    for name, found in ((TIME, times), (CPU, cpu)):
        low, high = interval(found)
        figures |= {
            name: per_cent(middle([ratio for life in found for ratio in life])),
            f"{name}, lower end": per_cent(low),
        }
        figures[f"{name}, upper end"] = per_cent(high)
    return {**figures, "pairs": lives * pairs}


def _ratios(ours: Engine, theirs: Engine, pairs: int) -> Iterator[tuple[float, float]]:
    """Of the times, and of the processor times, of each pair."""
    for engine in (ours, theirs):
        engine.block(transport.WARM_UP)
    seconds = [engine.block(WORKERS)[0] / WORKERS for engine in (ours, theirs)]
    batches = max(WORKERS, math.ceil(BLOCK / min(seconds)))
    for pair in range(pairs):
        found = {engine: engine.block(batches) for engine in ((ours, theirs) if pair % 2 else (theirs, ours))}
        yield found[ours][0] / found[theirs][0], found[ours][1] / found[theirs][1]


def per_cent(ratio: float) -> float:
    return 100 * (ratio - 1)


class Engine:
    """Workers that make batches, and rest between two blocks.

    Args:
        begin: makes an iterator of a loader of `WORKERS` workers.
        take: what is done with each batch.
        supervised: whether it is the engine as it is.
    """

    def __init__(self, begin: Callable[[], Any], take: Callable[[Any], None], supervised: bool) -> None:
        with made_anew(supervised):
            self._iterator = begin()
        kind: Any = type(self._iterator)
        self._iterator.__class__ = type(kind.__name__, (kind,), trainers(supervised))
        self._take = take

    def block(self, batches: int) -> tuple[float, float]:
        """Seconds, and processor seconds, for so many batches."""
        iterator, take = self._iterator, self._take
        used, began = self._used(), time.perf_counter()
        for _ in range(batches):
            take(next(iterator))
        self._rest()
        return time.perf_counter() - began, self._used() - used

    def _rest(self) -> None:
        """Until all is made that is under way."""
        backend = self._iterator._backend
        while backend.ready < self._iterator._units._outstanding:
            backend._poll_for(1.0)
            backend._listen()

    def _used(self) -> float:
        used = time.thread_time_ns()
        for pid in self._iterator._backend.pids:
            used += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        return used / 1e9

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self._iterator.close()


# Workloads: each gives what makes an iterator, and what takes its batches


def from_memory(shape: list[int], samples: int) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    import numpy as np
    import torch

    dataset = transport.Tensors(torch.rand(samples, *shape).unbind())

    def read(batch: Any) -> None:
        batch.numpy().reshape(-1).view(np.uint8)[::4096].max()

    return lambda: _iterator(dataset, transport.BATCH), read


def photographs(data: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    sys.path.insert(0, str(images.EXAMPLES))
    import torch
    from train_images import Photos

    torch.set_num_threads(1)
    photos = Photos(Path(data), "train")
    photos.paths, photos.labels = photos.paths * 100, photos.labels * 100  # so that it goes on till the end
    return lambda: _iterator(photos, images.BATCH, shuffle=True), lambda batch: None


def cheap() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: _iterator(Cheap(), 64), lambda batch: None


def _iterator(dataset: Any, batch: int, **settings: Any) -> Any:
    import stoker

    return iter(stoker.DataLoader(dataset, batch, num_workers=WORKERS, seed=0, **settings))


WORKLOADS: dict[str, Callable[..., Any]] = {"transport": from_memory, "photographs": photographs, "cheap": cheap}


class Cheap:
    """A long dataset of samples that take some 2 us."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> int:
        return sum(range(280))


# The other engine


@contextlib.contextmanager
def made_anew(supervised: bool) -> Iterator[None]:
    """Within it, processes that are forked have one engine or the other.

    The methods that differ are compiled anew for both: functions that are made together lie together in memory.
    """
    kept: list[tuple[Any, str, Callable[..., Any]]] = []
    try:
        for place in WITHOUT:
            owner, name = _method(place)
            kept.append((owner, name, getattr(owner, name)))
            setattr(owner, name, edited(place, supervised))
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def trainers(supervised: bool) -> dict[str, Callable[..., Any]]:
    """The methods of an iterator of one engine or the other."""
    return {_method(place)[1]: edited(place, supervised) for place in WITHOUT if place.startswith("loader.iterator:")}


def _method(place: str) -> tuple[Any, str]:
    module, _, names = place.partition(":")
    owner, _, name = names.partition(".")
    return getattr(__import__(f"stoker.{module}", fromlist=["*"]), owner), name


@functools.cache
def edited(place: str, supervised: bool) -> Callable[..., Any]:
    """The function, or without supervision: with some of its words replaced. Ends the program where they are not there
    any more."""
    owner, name = _method(place)
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    for what, instead in WITHOUT[place].items():
        if what not in source:
            raise SystemExit(f"{place} has changed, and WITHOUT must follow: there is no {what!r} in it")
        source = source if supervised else source.replace(what, instead)
    code = compile(source, place, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    found: dict[str, Any] = {}
    exec(code, function.__globals__, found)
    (made,) = found.values()
    return made  # type: ignore[no-any-return]


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=1)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs")
    method.main(arguments, cases, measure)
