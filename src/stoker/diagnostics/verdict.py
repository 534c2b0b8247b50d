"""The verdict about a loader: whether the training loop waits for data, what there is to gain, and the change to make:
that of the first of `CAUSES` that the figures show. A change names one cause only where they leave no other. It is
long because the causes are one list, which is read from its first one on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

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
        change: the one change to make; None if there is none to make.
        cause: of the waiting, one of `CAUSES`; None if there is no change to make.
        gain: how many times as fast the loop would be, at most, if it never waited. Of a loop that waits while a GPU
            still works on the steps before, no more than would keep the GPU busy all the time.
    """

    kind: Kind
    text: str
    change: str | None
    gain: float
    cause: str | None = None

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
    cause, change = cause_and_change(loader, cpus, quota)
    return LoaderVerdict(kind, f"{text} {begins}".rstrip(), change, gain, cause)


BUSY = 0.85
"""Share of the CPUs in use from which on more workers cannot help."""

SPARE = 0.6
"""Share of the CPUs in use up to which a process that wants a CPU gets one."""

OTHERS = 0.25
"""Share of the CPUs in use by other programs from which on they are named."""

ON_CPU, OFF_CPU = 0.7, 0.5
"""Share of the time of a batch on a CPU from which on samples compute, and up to which they wait."""

ASLEEP = 0.25
"""Of the CPU time that samples could have had, the share up to which they wait, however busy the machine is."""

MAKING = 0.6
"""Share of the workers' time in which they make batches, below which more workers cannot help much."""

UNEVEN = 3.0
"""How many times the median the slowest batch takes, so that it holds up those behind it."""

MOSTLY, NEARLY = 0.5, 0.9
"""Share of a whole from which on a part of it is the cause, and from which on it is whatever the rest does."""

OTHERS_CPUS = " (of other machines too: stoker.DataLoader(remote=stoker.Ray(...)))"
"""What is added to the advice to add CPUs."""

LARGE = 1 << 20
"""Bytes of a batch from which on handing it over takes time."""


def cause_and_change(loader: LoaderSummary, cpus: int, quota: float = math.inf) -> tuple[str, str]:
    """Returns why a loop waits for its batches, one of `CAUSES`, and the change that it needs.

    Args:
        quota: CPUs of time that the control groups grant.
    """
    known = _Figures(loader, cpus, quota)
    cause, change = next((cause, change) for cause, find in CAUSES.items() if (change := find(known)) is not None)
    if known.is_crowded and cause in _WITH_CPUS:
        change += f" Other programs use {loader.others:.0%} of the CPUs: measure again while nothing else runs."
    return cause, change


def are_computing(loader: LoaderSummary, cpus: int) -> bool:
    """Returns whether making batches takes most of the CPU time that it could have."""
    return _Figures(loader, cpus, math.inf).computing > OFF_CPU


class _Figures:
    """The figures of a loader, and what follows from them."""

    def __init__(self, loader: LoaderSummary, cpus: int, quota: float) -> None:
        self.loader, self.cpus, self.making = loader, cpus, loader.making
        self.workers: int = loader.about.get("num_workers") or 0
        self.threads: int = loader.about.get("threads_per_worker") or 1
        self.remote: int = loader.about.get("remote_workers") or 0
        self.far: int = sum(counts["batches"] for counts in loader.machines.get("machines", {}).values())
        self.near: float = 1 - min(
            1.0, self.far / max(1, loader.machines.get("batches", 1))
        )  # share of this machine's batches
        self.is_persistent = bool(loader.about.get("persistent_workers"))
        self.own = (loader.spent - loader.waited) / max(1, loader.batches)  # the loop's step, for each batch
        self.busy = loader.cpu / loader.spent / min(cpus, quota)
        self.used = max(self.busy, loader.machine or 0.0)
        self.firsts = loader.waited - loader.steady_waited + loader.ends
        self.late = self.firsts / max(1, loader.epochs)
        self.is_single = are_single(loader.batches, loader.epochs)
        self.is_crowded = loader.machine is not None and loader.machine >= BUSY and loader.others >= OTHERS

    @property
    def is_made_anew(self) -> bool:
        """Returns whether a loader is made for each epoch, at one line."""
        return self.loader.made > 1 and self.loader.epochs < 2 * self.loader.made

    @property
    def is_late(self) -> bool:
        """Returns whether the loop waits for first batches, and not for the others."""
        firsts, waited = self.firsts, self.loader.waited
        if firsts >= NEARLY * waited:
            return True
        steady = (self.loader.steady_waited - self.loader.ends) / max(self.loader.steady, 1e-9)
        return firsts > MOSTLY * waited and (self.is_made_anew or steady < WAITING_SHARE)

    @cached_property
    def part(self) -> float:
        """Returns how much of the program's CPU time goes into batches; 1 if it is not known."""
        if self.making is None or not self.loader.cpu:
            return 1.0
        return min(1.0, self.making.cpu * self.near * self.loader.batches / self.loader.cpu)

    @cached_property
    def at_once(self) -> float:
        """Returns the batches that workers make at once, the mean, from the first one of an epoch on."""
        if self.making is None or not self.workers:
            return float(self.workers)
        starts = 1 if self.is_persistent else self.loader.epochs
        in_use = max(self.loader.spent - starts * self.making.start, 0.1 * self.loader.spent)
        return self.making.seconds * self.near * self.loader.batches / in_use

    @cached_property
    def making_share(self) -> float:
        """Returns the share of their time in which workers make batches."""
        return self.at_once / max(1, self.workers * self.threads)

    @cached_property
    def computing(self) -> float:
        """Returns how much of the CPU time that batches could have had they used.

        Where more processes want a CPU than there are, of this program or of others, each computes a part of its time
        only: two workers that share one CPU are on it for half of their time, and compute.
        """
        if self.making is None:
            return 0.0
        left = max(self.cpus * (1 - self.loader.others), self.loader.cpu / self.loader.spent, 1e-9)
        return min(1.0, self.making.on_cpu / min(1.0, left / max(self.at_once, 1.0)))

    @property
    def median(self) -> float:
        """Returns the median seconds to make a batch; 0 if it is not known."""
        return self.making.slowest / self.making.longest if self.making is not None and self.making.longest else 0.0

    @property
    def waiting_workers(self) -> int:
        """Returns the workers that keep up with the loop if their samples only wait; twice as many as now at most."""
        assert self.making is not None
        wanted = math.ceil(self.making.seconds / max(self.own, 1e-9))
        return min(max(wanted, self.workers + 1), max(self.cpus, 2 * self.workers))

    @property
    def cheaper(self) -> str:
        """Returns what is to be made cheaper: the collation if it takes most of the time of a batch, else samples."""
        collated = None if self.making is None else self.making.collated
        if collated is None:
            return "Make samples cheaper (stoker profile names the slow stage)"
        share = collated / max(self.making.seconds, 1e-9) if self.making else 0.0
        if share >= MOSTLY:
            return (
                f"Make collation cheaper ({share:.0%} of the time to make a batch is in collate_fn; stoker.PadCollator "
                "pads in one pass)"
            )
        return "Make samples cheaper (a faster decoder, smaller files, a cache)"


def _kept_iterator(known: _Figures) -> str | None:
    loader, workers = known.loader, known.workers + known.remote
    if not loader.restarts:
        return None
    kept = "Keep one iterator: batches = iter(loader) before the loop, and next(batches) in it"
    if not workers:
        return f"{kept}. Workers can then make the next batches meanwhile; they cannot now."
    if known.is_persistent:
        return f"{kept}. The batches that {workers} workers make ahead are thrown away now, {loader.epochs:,} times."
    return (
        f"{kept}. Or pass persistent_workers=True: {workers} workers are started {loader.epochs:,} times now, and a "
        f"batch comes after up to {loader.first:.2g} s."
    )


def _single_batches(known: _Figures) -> str | None:
    if known.is_single and (not known.workers or known.is_persistent):
        return "Each epoch is one batch, so none can be made ahead: pass a smaller batch_size, or a longer sampler."
    return None


def _sampler(known: _Figures) -> str | None:
    loader = known.loader
    share = loader.sampled / max(loader.waited, 1e-9)
    if share < MOSTLY:
        return None
    each = _time(loader.sampled / max(1, loader.samples))
    return (
        f"Make the sampler quicker: {loader.about.get('sampler') or 'it'} takes {each} for each index, "
        f"{min(1.0, share):.0%} of the waiting. It runs in the training process, where workers cannot help: compute "
        "the order of an epoch at once, as with NumPy, and yield from that."
    )


def _made_anew(known: _Figures) -> str | None:
    loader = known.loader
    if not (known.is_made_anew and known.is_late):
        return None
    at = f" at {loader.about['made_at']}" if loader.about.get("made_at") else ""
    said = f"it is made {loader.made:,} times{at}, and the first batch of each comes after up to {loader.first:.2g} s"
    if not known.workers:
        return f"Make the loader and its dataset once, before the loop: {said}."
    if known.is_persistent:
        return f"Make the loader once, before the loop: {said}; a new loader starts new workers."
    return f"Make the loader once, before the loop, with persistent_workers=True: {said}, as its workers start anew."


def _first_batches(known: _Figures) -> str | None:
    if not known.is_late:
        return None
    loader, making, workers = known.loader, known.making, known.workers + known.remote
    late = f"the first batch of an epoch comes after {loader.first:.2g} s"
    again = workers and not known.is_persistent and loader.epochs > 1
    if making is not None and workers and making.first >= UNEVEN * known.median > 0 and making.first > making.start:
        opens = f"a worker's first batch takes {_time(making.first)}, and a later one {_time(known.median)}"
        once = "what the dataset reads in its first sample"
        if again:
            return f"Pass persistent_workers=True: {late}, as {opens}. Or read once, in __init__, {once}."
        return f"Read once, in __init__, {once}: {late}, as {opens}."
    if again and (making is None or making.start > MOSTLY * known.late):
        much = "" if making is None else f", and {workers} workers take {making.start:.2g} s of it to start"
        return f"Pass persistent_workers=True: {late}{much}; workers are started in each epoch."
    if workers:
        return f"Most of the waiting is for first batches: {late}. Longer epochs help, or a dataset that opens sooner."
    return f"Most of the waiting is for first batches: {late}. See what the dataset does in its first sample."


def _slow_batches(known: _Figures) -> str | None:
    loader, making, workers = known.loader, known.making, known.workers
    if not workers or making is None or making.longest < UNEVEN or loader.long_waits < MOSTLY * loader.steady_waited:
        return None
    before = loader.about.get("prefetch_factor") or 2
    pace = max(known.own, known.median / workers)  # seconds from one batch to the next, if none is slow
    ahead = math.ceil(making.slowest / max(pace * workers, 1e-9)) + 1
    ahead = min(ahead, math.ceil(loader.batches / max(1, loader.epochs) / workers))
    said = (
        f"the slowest batch takes {_time(making.slowest)}, {making.longest:.2g} times as long as others, and those "
        "behind it wait for it"
    )
    if ahead <= before:
        return f"Make the slowest samples cheaper, which stoker profile lists: {said}."
    more = f" (up to {ahead * workers * loader.size / 2**20:,.0f} MiB of batches)" if loader.size >= LARGE else ""
    return f"Pass prefetch_factor={ahead}{more}: {said}. stoker profile lists the slowest samples."


def _hand_over(known: _Figures) -> str | None:
    making = known.making
    if not known.workers or making is None or known.making_share >= MAKING:
        return None
    said = f"workers make batches {known.making_share:.0%} of their time"
    if making.seconds < HAND_OVER_SECONDS and known.loader.size < LARGE:
        return (
            f"Make larger batches, or pass num_workers=0: a batch takes {1e3 * making.seconds:.2g} ms to make, less "
            "than handing it over from a worker usually does."
        )
    if 0 < known.loader.size < LARGE:
        return f"Run stoker profile, which measures what workers wait for: {said}, so more would not help much."
    size = f"a batch has {known.loader.size / 2**20:,.0f} MiB, " if known.loader.size else ""
    return (
        f"Make batches smaller in bytes (uint8 in place of float32, smaller crops): {size}{said}, so more workers "
        "would not help much. stoker profile measures what they wait for."
    )


def _other_machines(known: _Figures) -> str | None:
    if not known.remote:
        return None
    found, cpus, in_use = known.loader.machines, known.cpus, f"{known.used:.0%} of the CPUs here are in use"
    if not known.workers and known.busy < BUSY:
        return f"Pass num_workers={cpus}, as {in_use}: none of them makes batches, because of num_workers=0."
    samples_wait = known.computing <= OFF_CPU and known.used <= SPARE
    if known.making is not None and (known.making_share < MAKING or samples_wait):
        return None  # workers here idle, or their samples wait: more of them cost little
    if known.used < BUSY and (few := _few_workers(known)) is not None:
        return few
    if not known.far:
        kept = "" if known.is_persistent else "Pass persistent_workers=True: "
        return f"{kept}{'no' if kept else 'No'} batch came from another machine; their workers take seconds to start."
    seconds, size = max(found["seconds"], 1e-9), sum(counts["bytes"] for counts in found["machines"].values())
    number = len(found["machines"])
    return (
        f"Try stoker.Ray(num_workers={2 * known.remote}): {known.far:,} of {found['batches']:,} batches came from "
        f"{number} other machine{'s' * (number > 1)}, {8 * size / seconds / 1e9:,.2g} Gbit/s of the network, and "
        f"{in_use}. If the rate stays, the network or the cluster has no more: make batches smaller in bytes (uint8 in "
        "place of float32, smaller crops)."
    )


def _too_many_workers(known: _Figures) -> str | None:
    cpus, workers = known.cpus, known.workers
    is_computing = known.making is None or (known.computing > OFF_CPU and known.part >= MOSTLY)
    if workers * known.threads < 2 * cpus or known.used < BUSY or not is_computing:
        return None
    number = min(workers, cpus)
    threads = "" if known.threads == 1 else f" with {known.threads} threads each"
    out = " and leave out threads_per_worker" if known.threads > 1 else ""
    return (
        f"Pass num_workers={number}{out}: {workers} worker{'s' if workers > 1 else ''}{threads} share {cpus} CPUs, and "
        f"{known.used:.0%} of these are in use. {known.cheaper} if the loop still waits."
    )


def _all_cpus(known: _Figures) -> str | None:
    workers, busy = known.workers, known.busy
    if busy < BUSY or not (workers or known.cpus > 1):
        return None
    if workers and known.making is not None and known.making.on_cpu <= OFF_CPU and known.part < MOSTLY:
        return _either(known, busy)
    rest = "" if known.part >= MOSTLY else f" ({known.part:.0%} of that is for batches, the rest for the loop's steps)"
    help_ = "more workers cannot help" if workers else "workers cannot help much"
    of_others = "" if known.part < MOSTLY else OTHERS_CPUS
    return f"{known.cheaper}, or add CPUs{of_others}: {busy:.0%} of the {known.cpus} CPUs are in use{rest}, so {help_}."


def _no_workers(known: _Figures) -> str | None:
    if known.workers:
        return None
    cpus, making = known.cpus, known.making
    own, cost = known.own, known.loader.waited / max(1, known.loader.batches)
    number = workers_for(own, cost, cpus)
    if not number and cost > 4 * HAND_OVER_SECONDS and (cpus > 1 or (making is not None and making.on_cpu <= OFF_CPU)):
        number = min(math.ceil(cost / max(own, 1e-9)), 2 * cpus)
    if number:
        said = f"Pass num_workers={number}: batches are made in the training loop now, because of num_workers=0."
        return " ".join(filter(None, [said, decoded_by_pillow(known.loader)]))
    if cpus == 1:
        return "There is one CPU, and workers would share it: make samples cheaper (decode less, cache), or add CPUs."
    return (
        "Workers would not help, because batches are cheap: fetch a whole batch at once (__getitems__), or keep the "
        "data in arrays."
    )


def _few_workers(known: _Figures) -> str | None:
    cpus, making, workers = known.cpus, known.making, known.workers
    if workers >= cpus or (making is not None and known.computing <= OFF_CPU):
        return None
    number = cpus if making is None else max(workers_for(known.own, making.seconds, cpus), min(cpus, workers + 1))
    in_use = f"{known.used:.0%} of the CPUs are in use"
    return f"Pass num_workers={number}: {workers} of {cpus} CPUs make batches, and {in_use}."


def _computing_samples(known: _Figures) -> str | None:
    if known.making is None or known.computing < ON_CPU:
        return None
    share = f" {known.making.on_cpu:.0%} of their time" if known.making.on_cpu >= ON_CPU else ""
    number = f"there are {known.workers} workers for {known.cpus} CPUs"
    return f"{known.cheaper}, or add CPUs{OTHERS_CPUS}: samples compute{share}, and {number}."


def _waiting_samples(known: _Figures) -> str:
    workers, threads, used = known.workers, "", f"{known.used:.0%} of the CPUs are in use"
    if known.threads == 1:
        awaited = known.loader.about.get("awaited", 0)
        way = f"concurrency={2 * awaited}" if awaited else "With stoker.DataLoader, threads_per_worker=8"
        threads = f" {way} does it in {workers} process{'es' if workers > 1 else ''}."
    if known.making is None and known.used <= SPARE:
        return f"Pass num_workers={2 * workers}: {used}, so batches wait, for a disk or a network.{threads}"
    if known.making is None:
        return f"Try num_workers={2 * workers}: {used}, so samples may wait for one. stoker profile measures it."
    if known.computing > (OFF_CPU if known.used <= SPARE else ASLEEP):
        return _either(known, known.used)
    return (
        f"Pass num_workers={known.waiting_workers}: samples wait {1 - known.making.on_cpu:.0%} of their time for a "
        f"disk, a network or a lock, as {used}.{threads} If the rate stays, that is at its limit."
    )


def _either(known: _Figures, used: float) -> str:
    assert known.making is not None
    waits = 1 - known.making.on_cpu
    return (
        f"Try num_workers={known.waiting_workers}: samples wait {waits:.0%} of their time, for a CPU or for a disk or "
        f"a network. Which one cannot be told while {used:.0%} of the CPUs are in use. If the rate stays, make samples "
        "cheaper."
    )


CAUSES: dict[str, Callable[[_Figures], str | None]] = {
    "an iterator for each batch": _kept_iterator,
    "epochs of one batch": _single_batches,
    "sampler": _sampler,
    "loader made anew": _made_anew,
    "first batches": _first_batches,
    "slow batches": _slow_batches,
    "JPEGs decoded whole": lambda known: decoded_by_pillow(known.loader) if known.workers or known.cpus == 1 else None,
    "other machines": _other_machines,
    "too many workers": _too_many_workers,
    "hand-over": _hand_over,
    "CPUs in use": _all_cpus,
    "no workers": _no_workers,
    "few workers": _few_workers,
    "samples compute": _computing_samples,
    "samples wait": _waiting_samples,
}
"""The causes of waiting, in the order in which they are looked for: each gives the change, or None if it is another."""

_WITH_CPUS = list(CAUSES)[list(CAUSES).index("other machines") :]
"""Causes whose change is another one if other programs use the CPUs."""


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.2g} {name}"
    return f"{1e6 * seconds:.2g} µs"
