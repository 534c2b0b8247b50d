"""What does it cost that somebody watches?

The workloads of transport.py and images.py, and batches of 64 samples of some 2 us, in two workers: once as the engine
is, once without what supervises it. That other engine exists only here: `WITHOUT` names the words that are taken out of
the product's methods, in this process, before it forks. Gone are the marks that a worker leaves for each sample, the
error policy's questions, the zygote's clocks and counts of stalls, deaths and memory, and what the trainer accounts for
when it delivers a batch.

The two run in turns in one process, in pairs, each pair in the opposite order of the last. A ratio is that of the two
of a pair. Shown is by how much more the engine as it is takes: the median of the pairs' ratios, and the ends of its
interval (95 %, by bootstrap: 2,000 times as many ratios are drawn from those that were measured). The goal is for the
upper end. A machine on which something else runs makes the interval wide; the processor time then says more.
"""

from __future__ import annotations
import __future__

import argparse
import contextlib
import inspect
import random
import statistics
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import images
import method
import transport
from method import Case, Figures, Goal

method.LONGEST = 900.0
DRAWN = 2000
MOST = 2  # per cent
TIME, CPU = "% more time", "% more processor time"

WITHOUT: dict[str, dict[str, str]] = {
    # Worker: its marks go into a list of its own
    "_engine.process.worker:Worker.run": {"job.mark = self._mark": ""},
    "_engine.process.worker:Worker._answer": {"self._mark[0] = WRITE": "", "self._mark[0] = IDLE": ""},
    "loader.job:LoaderJob.run": {"self._faults.begin(work.epoch, work.batch, known)": ""},
    "loader.job:LoaderJob._begin": {"self.mark[0] = START": "", "self._faults.raise_known(START)": ""},
    "loader.job:LoaderJob._collated": {
        "self.mark[0] = COLLATE": "",
        "self._faults.raise_known(COLLATE)": "",
        "self.mark[0] = WRITE": "",
        "self._faults.raise_known(WRITE)": "",
    },
    "loader.job:LoaderJob.said": {"self._faults.met": "[]"},
    "loader.map_source:MapSource.samples": {"if self._faults.has_met_any:": "if False:"},
    "loader.map_source:MapSource._all": {
        "if not (self._skips or self._faults.is_lenient or self._faults.knows_any):": "if True:",
    },
    # Zygote
    "_engine.process.zygote:Zygote.run": {
        "if self._leaving:": "if False:",
        "if self._due:": "if False:",
        "self._look_for_stalls()": "",
    },
    "_engine.process.zygote:Zygote._next_look": {
        "now = time.monotonic()": "",
        "[max(0.0, due - now) for due in (*self._due.values(), *(until for _, until in self._leaving.values()))]": "[]",
        "if self._stalls.tick is not None and any(self._dispatch.held(number) for number in self._children):": (
            "if False:"
        ),
    },
    "_engine.process.zygote:Zygote._take_answer": {
        "self._restarts.answered(unit)": "",
        "self._stalls.answered(unit)": "",
        "self._known.pop(unit, None)": "",
        "self._care_for(number, made)": "",
    },
    "_engine.process.zygote:Zygote._hand_out": {"self._known.get(unit, ())": "()"},
    # Trainer
    "loader.iterator:LoaderIterator.__next__": {
        "asked = time.perf_counter()": "asked = 0.0",
        "self._accounts.waited_since(asked)": "pass",
    },
    "loader.iterator:LoaderIterator._delivered": {"self._witness.flush()": ""},
    "loader.iterator:LoaderIterator._account": {"self._accounts.deliver(answer, step)": "pass"},
}
"""Module, class and method; what is taken out of it, and what stands there instead."""


def cases(options: argparse.Namespace) -> list[Case]:
    pairs, seconds, batches = (2, 0.2, 6) if options.quick else (24, 1.0, 24)
    goals = [Goal(f"{name}, upper end", at_most=MOST) for name in (TIME, CPU)]
    workloads: dict[str, dict[str, Any]] = {
        f"transport, batches of {name}, read": {"shape": shape, "samples": samples, "seconds": seconds}
        for name, shape, samples, _ in transport.SIZES
    }
    workloads["64 samples of 2 us"] = {"seconds": seconds}
    if options.data.is_dir():
        workloads["photographs, no step"] = {"data": str(options.data), "batches": batches}
    return [
        Case(name, {"supervised / not": {"pairs": pairs if "data" not in how else max(2, pairs // 2), **how}}, goals)
        for name, how in workloads.items()
    ]


def measure(pairs: int, **how: Any) -> Figures:
    workload = photographs if "data" in how else from_memory if "shape" in how else cheap
    times: list[float] = []
    cpu: list[float] = []
    workload(**how)  # once for what only the first run pays
    for pair in range(pairs):
        measured = {}
        for supervised in (True, False) if pair % 2 else (False, True):
            with contextlib.nullcontext() if supervised else unsupervised():
                measured[supervised] = workload(**how)
        for ratios, ours, theirs in zip((times, cpu), measured[True], measured[False], strict=True):
            ratios.append(ours / theirs)
    figures: Figures = {}
    for name, ratios in ((TIME, times), (CPU, cpu)):
        low, high = interval(ratios)
        figures |= {name: per_cent(statistics.median(ratios)), f"{name}, lower end": per_cent(low)}
        figures[f"{name}, upper end"] = per_cent(high)
    return {**figures, "pairs": pairs}


def per_cent(ratio: float) -> float:
    return 100 * (ratio - 1)


def interval(ratios: list[float]) -> tuple[float, float]:
    """The ends of the median's interval."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(DRAWN))
    return medians[DRAWN // 40], medians[-DRAWN // 40]


# Workloads: each gives seconds, and processor seconds, for a batch


def from_memory(shape: list[int], samples: int, seconds: float) -> tuple[float, float]:
    figures = transport.measure("stoker", shape, samples, True, seconds)
    return 1 / figures["batches/s"], figures["CPU-ms per batch"] / 1e3


def photographs(data: str, batches: int) -> tuple[float, float]:
    figures = images.measure("stoker", data, False, batches)
    return images.BATCH / figures[images.RATE], figures[images.CPU] * images.BATCH / 1e3


def cheap(seconds: float) -> tuple[float, float]:
    used = method.cpu_seconds()
    iterator = iter(method.data_loader("stoker")(Cheap(), batch_size=64, num_workers=2))
    for _ in range(transport.WARM_UP):
        next(iterator)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(iterator)
        count += 1
    passed = time.perf_counter() - began
    del iterator
    return passed / count, (method.cpu_seconds() - used) / (count + transport.WARM_UP)


class Cheap:
    """A long dataset of samples that take some 2 us."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> int:
        return sum(range(280))


# The other engine


@contextlib.contextmanager
def unsupervised() -> Iterator[None]:
    """Within it, this process and those that it forks have an engine without supervision."""
    kept: list[tuple[Any, str, Callable[..., Any]]] = []
    try:
        for place, edits in WITHOUT.items():
            module, _, names = place.partition(":")
            owner_name, _, name = names.partition(".")
            owner = getattr(__import__(f"stoker.{module}", fromlist=["*"]), owner_name)
            kept.append((owner, name, getattr(owner, name)))
            setattr(owner, name, edited(place, kept[-1][2], edits))
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def edited(place: str, function: Callable[..., Any], edits: dict[str, str]) -> Callable[..., Any]:
    """The function with some of its words replaced. Ends the program where they are not there any more."""
    source = textwrap.dedent(inspect.getsource(function))
    for what, instead in edits.items():
        if what not in source:
            raise SystemExit(f"{place} has changed, and WITHOUT must follow: there is no {what!r} in it")
        source = source.replace(what, instead)
    code = compile(source, place, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    found: dict[str, Any] = {}
    exec(code, function.__globals__, found)
    (made,) = found.values()
    return made  # type: ignore[no-any-return]


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=1)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs")
    method.main(arguments, cases, measure)
