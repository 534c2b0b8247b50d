"""The verdict about a loader: whether the training loop waits for data, what there is to gain, and the change to make.

Pure: figures in, words out. A change names a cause only where the figures leave no other; else it names both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stoker.diagnostics.batch_making import BatchMaking
from stoker.diagnostics.measurements import LoaderSummary, are_single
from stoker.diagnostics.profile.jpeg_decoding import decoded_by_pillow
from stoker.extend import HAND_OVER_SECONDS, NEGLIGIBLE_SHARE, WAITING_SHARE, workers_for

Kind = Literal["data-bound", "balanced", "compute-bound", "too short"]

ENOUGH = 5, 0.2
"""Batches, and seconds, after the first batch of each epoch, from which on there is a verdict.

Many epochs of a single batch are judged by these batches.
"""


LONG = 2.0
"""Seconds from which on the share of a GPU counts: its driver tells it for times of up to a second."""

FULL = 0.95
"""Share of the time from which on a GPU that is busy cannot be made busier."""


@dataclass(frozen=True)
class LoaderVerdict:
    """A loader's verdict.

    Attributes:
        kind: "data-bound", "balanced", "compute-bound", or "too short" to say.
        text: a sentence with its number.
        change: the one change to make; None if there is none to make.
        gain: how many times as fast the loop would be, at most, if it never waited. Of a loop that waits while a GPU
            still works on the steps before, no more than would keep the GPU busy all the time.
    """

    kind: Kind
    text: str
    change: str | None
    gain: float

    def __str__(self) -> str:
        return self.text if self.change is None else f"{self.text} {self.change}"


def verdict(loader: LoaderSummary, cpus: int, quota: float = math.inf) -> LoaderVerdict:
    """Returns the verdict about a loader.

    Args:
        loader: its figures.
        cpus: that the program may use.
        quota: CPUs of time that the control groups grant, which may be fewer by a fraction.
    """
    batches, seconds = ENOUGH
    is_single = are_single(loader.batches, loader.epochs)
    if (loader.batches - loader.epochs < batches and not is_single) or loader.spent < seconds:
        text = f"Too short to judge: {loader.batches} batches in {loader.spent:.2g} s."
        return LoaderVerdict("too short", text, "Let it run for a few seconds more.", 1.0)
    share = loader.share
    gain = loader.spent / max(loader.spent - loader.waited, 1e-9)
    gpu = loader.gpu if loader.spent >= LONG else None
    if gpu is not None:
        gain = min(gain, 1 / max(gpu, 1e-9))
    faster = f"{gain:.2g} times as fast" if gain < 100 else "over 100 times as fast"
    begins = "An epoch begins for each batch, as with next(iter(loader)). " if loader.restarts else ""
    if share <= NEGLIGIBLE_SHARE:
        text = f"Compute-bound: the loop waits {share:.1%} of its time for batches, so a faster loader gains no more."
        return LoaderVerdict("compute-bound", f"{text} {begins}".rstrip(), None, gain)
    if gpu is not None and gpu >= FULL:
        text = (
            f"Compute-bound: the GPU is busy for {gpu:.0%} of the time. The loop waits {share:.0%} of it for batches, "
            "while the GPU still works on earlier ones, so a faster loader gains no more."
        )
        return LoaderVerdict("compute-bound", f"{text} {begins}".rstrip(), None, gain)
    on_gpu = "" if gpu is None else f", and the GPU is busy for {gpu:.0%} of it"
    kind: Kind = "data-bound" if share >= WAITING_SHARE else "balanced"
    text = f"{kind.capitalize()}: the loop waits {share:.0%} of its time for batches{on_gpu}; "
    text += f"without that, {faster} at most."
    return LoaderVerdict(kind, f"{text} {begins}".rstrip(), change_to_make(loader, cpus, quota), gain)


BUSY = 0.85
"""Share of the CPUs in use from which on more workers cannot help."""

SPARE = 0.6
"""Share of the CPUs in use up to which a process that wants a CPU gets one."""

OTHERS = 0.25
"""Share of the CPUs in use by other programs from which on they are named."""

ON_CPU, OFF_CPU = 0.7, 0.5
"""Share of the time of a batch on a CPU from which on samples compute, and up to which they wait."""

MAKING = 0.6
"""Share of the workers' time in which they make batches, below which more workers cannot help much."""

UNEVEN = 3.0
"""How many times the median the slowest batch takes, so that it holds up those behind it."""

_CHEAPER = "Make samples cheaper (a faster decoder, smaller files, a cache)"


def change_to_make(loader: LoaderSummary, cpus: int, quota: float = math.inf) -> str:
    """Returns the change that a loop needs which waits for its batches.

    Args:
        loader: its figures.
        cpus: that the program may use.
        quota: CPUs of time that the control groups grant.
    """
    workers = loader.about.get("num_workers") or 0
    if loader.restarts:
        return _kept_iterator(loader, workers)
    if are_single(loader.batches, loader.epochs) and (not workers or loader.about.get("persistent_workers")):
        return "Each epoch is one batch, so none can be made ahead: pass a smaller batch_size, or a longer sampler."
    firsts = loader.waited - loader.steady_waited
    if firsts > 0.5 * loader.waited and loader.steady_share < WAITING_SHARE:
        return _late_first_batch(loader, workers)
    decoded = decoded_by_pillow(loader)
    if decoded is not None and (workers or cpus == 1):
        return decoded
    busy = loader.cpu / loader.spent / min(cpus, quota)
    if busy >= BUSY and workers and _wait_beside_steps(loader):
        return _either(loader, workers, cpus, busy)
    if busy >= BUSY and (workers or cpus > 1):
        part = _part(loader)
        rest = "" if part >= 0.5 else f" ({part:.0%} of that is for batches, the rest for the loop's own steps)"
        help_ = "more workers cannot help" if workers else "workers cannot help much"
        return f"{_CHEAPER}, or add CPUs: {busy:.0%} of the {cpus} CPUs are in use{rest}, so {help_}."
    is_crowded = loader.machine is not None and loader.machine >= BUSY and loader.others >= OTHERS
    if not workers:
        others = f" Other programs use {loader.others:.0%} of the CPUs, which workers would want." if is_crowded else ""
        return _first_workers(loader, cpus) + others + ("" if decoded is None else f" {decoded}")
    if is_crowded:
        return (
            f"Measure again while nothing else runs: {loader.machine:.0%} of the machine's CPUs are in use, "
            f"{loader.others:.0%} by other programs, and more workers would want them too."
        )
    used = max(busy, loader.machine or 0.0)
    if loader.making is None:
        return _of_use(loader, workers, cpus, used)
    return _of_making(loader, loader.making, workers, cpus, used)


def _of_making(loader: LoaderSummary, making: BatchMaking, workers: int, cpus: int, used: float) -> str:
    at_once = workers * (loader.about.get("threads_per_worker") or 1)
    share = making.seconds * loader.batches / (loader.spent * at_once)
    if share < MAKING:
        return _idle_workers(loader, making, workers, share)
    own = (loader.spent - loader.waited) / loader.batches
    if making.on_cpu >= ON_CPU and workers >= cpus:
        return (
            f"{_CHEAPER}, or add CPUs: samples compute {making.on_cpu:.0%} of their time, and there are "
            f"{workers} workers for {cpus} CPUs."
        )
    if making.on_cpu > OFF_CPU and workers < cpus:
        number = max(workers_for(own, making.seconds, cpus), min(cpus, workers + 1))
        return (
            f"Pass num_workers={number}: {workers} of {cpus} CPUs make batches, and {used:.0%} of the CPUs are in use."
        )
    if making.on_cpu > OFF_CPU or used > SPARE:
        return _either(loader, workers, cpus, used)
    number, waits = _waiting_workers(loader, workers, cpus), 1 - making.on_cpu
    return (
        f"Pass num_workers={number}: samples wait {waits:.0%} of their time for a disk, a network or a lock, "
        f"as {used:.0%} of the CPUs are in use.{_threads(loader, workers)} If the rate stays, that is at its limit."
    )


def _either(loader: LoaderSummary, workers: int, cpus: int, used: float) -> str:
    assert loader.making is not None
    number, waits = _waiting_workers(loader, workers, cpus), 1 - loader.making.on_cpu
    return (
        f"Try num_workers={number}: samples wait {waits:.0%} of their time, for a CPU or for a disk or a network. "
        f"Which one cannot be told while {used:.0%} of the CPUs are in use. If the rate stays, make samples cheaper."
    )


def _waiting_workers(loader: LoaderSummary, workers: int, cpus: int) -> int:
    """Returns the workers that keep up with the loop if their samples only wait; twice as many as now at most."""
    assert loader.making is not None
    own = (loader.spent - loader.waited) / max(1, loader.batches)
    wanted = math.ceil(loader.making.seconds / max(own, 1e-9))
    return min(max(wanted, workers + 1), max(cpus, 2 * workers))


def _threads(loader: LoaderSummary, workers: int) -> str:
    if (loader.about.get("threads_per_worker") or 1) > 1:
        return ""
    return f" With stoker.DataLoader, threads_per_worker=8 does it in {workers} process{'es' if workers > 1 else ''}."


def _of_use(loader: LoaderSummary, workers: int, cpus: int, used: float) -> str:
    if workers < cpus:
        return f"Pass num_workers={cpus}: {workers} of {cpus} CPUs make batches, and {used:.0%} of the CPUs are in use."
    if used <= SPARE:
        return (
            f"Pass num_workers={2 * workers}: {used:.0%} of the CPUs are in use, so batches wait for something else, "
            f"such as a disk or a network.{_threads(loader, workers)}"
        )
    return (
        f"Try num_workers={2 * workers}: {used:.0%} of the CPUs are in use, so samples may wait for a CPU, or for a "
        "disk or a network. stoker profile measures which."
    )


def _idle_workers(loader: LoaderSummary, making: BatchMaking, workers: int, share: float) -> str:
    said = f"workers make batches {share:.0%} of their time"
    if making.seconds < HAND_OVER_SECONDS:
        return (
            f"Make larger batches, or pass num_workers=0: a batch takes {1e3 * making.seconds:.2g} ms to make, less "
            "than handing it over from a worker usually does."
        )
    if workers > 1 and making.longest >= UNEVEN:
        ahead = 2 * (loader.about.get("prefetch_factor") or 2)
        return (
            f"Pass prefetch_factor={ahead}: {said}; the slowest batch takes {making.longest:.2g} times as long as "
            "others, and those behind it wait for it."
        )
    return (
        f"Make batches smaller in bytes (uint8 in place of float32), or pass a larger prefetch_factor: {said}, so more "
        "workers would not help much. stoker profile measures what they wait for."
    )


def _first_workers(loader: LoaderSummary, cpus: int) -> str:
    count = max(1, loader.batches)
    own, cost = (loader.spent - loader.waited) / count, loader.waited / count
    making = loader.making
    number = workers_for(own, cost, cpus)
    if not number and cost > 4 * HAND_OVER_SECONDS and (cpus > 1 or (making is not None and making.on_cpu <= OFF_CPU)):
        number = min(math.ceil(cost / max(own, 1e-9)), 2 * cpus)
    if number:
        return f"Pass num_workers={number}: batches are made in the training loop now, because of num_workers=0."
    if cpus == 1:
        return "There is one CPU, and workers would share it: make samples cheaper (decode less, cache), or add CPUs."
    return (
        "Workers would not help, because batches are cheap: fetch a whole batch at once (__getitems__), or keep the "
        "data in arrays."
    )


def _wait_beside_steps(loader: LoaderSummary) -> bool:
    """Returns whether samples wait while something else of the program uses most of the CPUs."""
    return loader.making is not None and loader.making.on_cpu <= OFF_CPU and _part(loader) < 0.5


def _part(loader: LoaderSummary) -> float:
    """Returns how much of the program's CPU time goes into batches; 1 if it is not known."""
    if loader.making is None or not loader.cpu:
        return 1.0
    return min(1.0, loader.making.cpu * loader.batches / loader.cpu)


def _late_first_batch(loader: LoaderSummary, workers: int) -> str:
    late = f"the first batch of an epoch comes after {loader.first:.2g} s"
    start = None if loader.making is None else loader.making.start
    is_start = start is None or start > 0.5 * (loader.waited - loader.steady_waited) / max(1, loader.epochs)
    if workers and is_start and not loader.about.get("persistent_workers") and loader.epochs > 1:
        much = "" if start is None else f", and {workers} workers take {start:.2g} s of it to start"
        return f"Pass persistent_workers=True: {late}{much}; workers are started in each epoch."
    if workers:
        return f"Most of the waiting is for first batches: {late}. Longer epochs help, or a dataset that opens sooner."
    return f"Most of the waiting is for first batches: {late}. See what the dataset does in its first sample."


def _kept_iterator(loader: LoaderSummary, workers: int) -> str:
    kept = "Keep one iterator: batches = iter(loader) before the loop, and next(batches) in it"
    if not workers:
        return f"{kept}. Workers can then make the next batches meanwhile; they cannot now."
    if loader.about.get("persistent_workers"):
        return f"{kept}. The batches that {workers} workers make ahead are thrown away now, {loader.epochs:,} times."
    return (
        f"{kept}. Or pass persistent_workers=True: {workers} workers are started {loader.epochs:,} times now, and a "
        f"batch comes after up to {loader.first:.2g} s."
    )
