"""Faults and growth of a whole run: plain values for JSON and the report, and lines for the terminal."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

from stoker._core.machine.gpu_activity import bus_of
from stoker.diagnostics.fault_log import NONE
from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader, Measurements
from stoker.diagnostics.process_tree import MemoryReading, ProcessHistory
from stoker.diagnostics.verdict import FULL, LONG
from stoker.extend import copies_in_words, machines_in_words

JUDGED = 40
"""Loaders whose workers' memory is judged; those whose workers made most batches."""


def growth_of(known: Measurements, loaders: Sequence[MeasuredLoader]) -> dict[int, WorkerGrowth]:
    """Returns the growth of the workers of loaders, by the loader's number; those that do not grow are left out."""
    histories = known.memory.histories
    made = [sum(map(len, loader.works)) for loader in loaders]
    numbers = sorted(range(len(loaders)), key=lambda number: -made[number])[:JUDGED]
    found = {number: worker_growth(loaders[number], histories) for number in sorted(numbers)}
    return {number: growth for number, growth in found.items() if growth is not None}


def findings_of_loaders(known: Measurements) -> list[dict[str, Any]]:
    """Returns of each loader its `faults`, its `worker_growth` and its `copies` to devices (None if there are none),
    and the other `machines` that made batches of its latest epoch (None if there are none), as plain JSON values.
    Copies have the `bus`, bytes in a second or None, and their line, `text`; machines have lines, `text`, and those of
    no single machine, `notes`.
    """
    growing = growth_of(known, known.loaders)
    return [
        {
            "faults": loader.faults.as_dict(known.begun),
            "worker_growth": growing[number].as_dict() if number in growing else None,
            "copies": copies_of(known, loader),
            "machines": machines_of(loader),
        }
        for number, loader in enumerate(known.loaders)
    ]


def growth_curves(known: Measurements, loaders: Sequence[MeasuredLoader], times: Sequence[float]) -> dict[str, Any]:
    """Returns the workers' own memory over time, by the number of the loader whose workers grow.

    Args:
        times: seconds from the beginning of the run.
    """
    found = growth_of(known, loaders)
    moments = [known.begun + time for time in times]
    return {str(number): curve(growth, moments) for number, growth in found.items()}


def engine_lines(known: Measurements) -> Iterator[str]:
    """Returns lines on the engine of each loader, and the number of workers that it has chosen, of a run with
    Stoker's."""
    on_ours = [loader.about.get("engine") == "stoker" for loader in known.loaders]
    if any(on_ours):
        names = (loader.name for loader, ours in zip(known.loaders, on_ours, strict=True) if ours)
        yield f"Stoker's engine ran {'all loaders' if all(on_ours) else ', '.join(names)}."
    for loader, ours in zip(known.loaders, on_ours, strict=True):
        if not ours:
            yield f"{loader.name}: stayed on torch's engine; a warning of the program says why."
        elif loader.chosen is not None:
            yield f"{loader.name}: {loader.chosen}."


def finding_lines(known: Measurements, loaders: Sequence[MeasuredLoader]) -> list[str]:
    """Returns a line for each loader with faults, for each that copies to devices, for each other machine, and for each
    whose workers grow.

    Of a loader of Stoker's without faults a line says so, if no other one is to be shown.
    """
    lines = [f"{loader.name}: {loader.faults.text}." for loader in loaders if loader.faults.counts]
    lines += [f"{loader.name}: {found['text']}" for loader in loaders if (found := copies_of(known, loader))]
    elsewhere = [(loader.name, machines_of(loader)) for loader in loaders]
    lines += [f"{name}: {text}." for name, machines in elsewhere if machines for text in machines["text"]]
    if known.faults.counts:
        lines += [f"{one['what']}: {one['text']}" for one in known.faults.named]
    for growth in growth_of(known, loaders).values():
        lines.append(f"{growth.text} {growth.remedy}")
    if not lines and any(loader.about.get("engine") == "stoker" for loader in loaders):
        lines.append(f"Faults: none; {NONE}.")
    return lines


def machines_of(loader: MeasuredLoader) -> dict[str, Any] | None:
    """Returns the other machines of a loader, and what they say; None if there are none."""
    if not (found := loader.machines):
        return None
    return {**found, "text": machines_in_words(found), "notes": machines_in_words({**found, "machines": {}})}


def copies_of(known: Measurements, loader: MeasuredLoader) -> dict[str, Any] | None:
    """Returns a loader's copies to devices, the rate of the bus, and what they say; None if there are none."""
    if not loader.copies:
        return None
    bus = bus_of(known.gpus)
    text = f"{copies_in_words(loader.copies, bus)}."
    figures = loader.summary(gpus=known.gpus)
    if figures.gpu is not None and figures.gpu >= FULL and figures.spent >= LONG:
        text += (
            f" The GPU is the limit, busy for {figures.gpu:.0%} of the time: augmentation or decoding on it "
            "(batch_transform= with device=, decode_device=) makes the loop slower; leave them to the workers."
        )
    return {**loader.copies, "bus": bus, "text": text}


COPIED = 0.5
"""Share of the growth up to which a process has new memory. The rest was there, and shared, and is now its own copy."""

MANY = 0.5
"""Share of the workers, of those that lived long enough, that must grow."""

LATE = 7 * 86400.0
"""Seconds of use from which on it does not matter when memory will be full."""

NEAR = 0.5
"""Seconds around a process's readings in which it was there, too."""

Cause = Literal["kept", "copied"]

REMEDIES: dict[Cause, str] = {
    "kept": (
        "They keep memory that they allocate: look for a cache, a list or a dict that grows with each sample, in the "
        "dataset or a module. A cache of samples levels off once each was read. stoker.DataLoader can replace workers "
        "that grow: memory_budget=, max_samples_per_worker=."
    ),
    "copied": (
        "They copy memory that they shared with the process that started them: reading a Python object writes its "
        "reference count. Keep what the dataset holds in arrays: stoker.columns(rows), or NumPy."
    ),
}
"""By the cause: an explanation and a remedy."""


@dataclass(frozen=True)
class WorkerGrowth:
    """Workers whose memory grows steadily.

    Attributes:
        rate: bytes per second of use, of all workers together.
        seconds: of use in which it was seen.
        cause: "kept", if workers allocate memory; "copied", if pages that they share become their own.
        full: seconds of use after which memory is full at this rate, from the end of the run; None if that is more than
            a week, if the workers' epoch, which frees it, ends before, or if they have not so much to copy.
        more: bytes that the workers can still copy; None if they allocate.
        is_freed: whether the workers end with each epoch.
    """

    loader: str
    workers: int
    rate: float
    seconds: float
    cause: Cause
    full: float | None
    more: int | None
    is_freed: bool
    histories: Sequence[ProcessHistory]

    @property
    def text(self) -> str:
        """Returns the finding as sentences."""
        is_one = self.workers == 1
        said = f"The worker of {self.loader} grows" if is_one else f"The {self.workers} workers of {self.loader} grow"
        said += (
            f" steadily: {rate_in_words(self.rate)}{'' if is_one else ' together'}, "
            f"{_mib(self.rate * self.seconds)} in {_time(self.seconds)}."
        )
        if self.full is not None:
            said += f" At this rate memory is full in {_time(self.full)}."
        elif self.more is not None:
            said += f" At most {_mib(self.more)} more can follow{', in each epoch' if self.is_freed else ''}."
        elif self.is_freed:
            said += f" {'It ends' if is_one else 'They end'} with each epoch, which frees it."
        return said

    @property
    def remedy(self) -> str:
        """Returns an explanation and a remedy."""
        if self.workers == 1:
            return REMEDIES[self.cause].replace("They keep", "It keeps").replace("They copy", "It copies")
        return REMEDIES[self.cause]

    def as_dict(self) -> dict[str, Any]:
        """Returns the finding as plain JSON values: bytes and seconds."""
        names = ("workers", "rate", "seconds", "cause", "full", "more")
        return {**{name: getattr(self, name) for name in names}, "text": self.text, "remedy": self.remedy}


def worker_growth(loader: MeasuredLoader, histories: Iterable[ProcessHistory]) -> WorkerGrowth | None:
    """Returns the growth of a loader's workers; None if they do not grow, or if that cannot be judged.

    Args:
        loader: whose batches say which processes are its workers.
        histories: the readings of all processes of the program.
    """
    timeline = _InUse(loader.epochs)
    judged = [
        (history, points)
        for history in workers_of(loader, histories)
        if is_long_enough(points := timeline.points(history.readings))
    ]
    growing = [(history, points, growth) for history, points in judged if (growth := steady_growth(points)) is not None]
    if not growing or len(growing) < MANY * len(judged):
        return None
    grown = [history for history, _, _ in growing]
    workers = max(_at_once(grown, history.readings[len(history.readings) // 2].time) for history in grown)
    rate = workers * median(growth.rate for _, _, growth in growing)
    new = sum(_by_batch(timeline.points(history.readings, "anonymous")) for history in grown)
    own = sum(_by_batch(points) for _, points, _ in growing)
    lasts = sorted((history.readings[-1] for history in grown), key=lambda one: one.time)[-workers:]
    cause: Cause = "copied" if new < COPIED * own else "kept"
    more = sum(max(0, one.anonymous - one.own) for one in lasts) if cause == "copied" else None
    left = lasts[-1].left
    full = left / rate if more is None or more > left else math.inf
    is_freed = len(loader.epochs) > 1 and not loader.about.get("persistent_workers")
    ends_before = is_freed and full > max(epoch.until - epoch.begun for epoch in loader.epochs)
    return WorkerGrowth(
        loader.name,
        workers,
        rate,
        median(growth.seconds for _, _, growth in growing),
        cause,
        None if full > LATE or ends_before else full,
        more,
        is_freed,
        grown,
    )


def workers_of(loader: MeasuredLoader, histories: Iterable[ProcessHistory]) -> list[ProcessHistory]:
    """Returns the readings of a loader's workers, each from its first batch on."""
    begun: dict[int, list[float]] = {}
    for work in itertools.chain.from_iterable(loader.works):
        if work.pid != loader.about.get("pid"):
            begun.setdefault(work.pid, []).append(work.begun)
    found = []
    for history in histories:
        if (times := begun.get(history.pid)) is None:
            continue
        low, high = history.readings[0].time - NEAR, history.readings[-1].time + NEAR
        firsts = [when for when in times if low <= when <= high]
        readings = [one for one in history.readings if firsts and one.time >= min(firsts)]
        if readings:
            found.append(ProcessHistory(history.pid, readings))
    return found


class _InUse:
    """The time in which a loader is used, and its batches: between epochs, and during other loaders', workers idle."""

    def __init__(self, epochs: Iterable[EpochSpans]) -> None:
        self._epochs = sorted(epochs, key=lambda epoch: epoch.begun)
        self._begins = [epoch.begun for epoch in self._epochs]
        lengths = (epoch.until - epoch.begun for epoch in self._epochs)
        self._before = [0.0, *itertools.accumulate(lengths)]
        spans = sorted(
            ((span.got, span.batches) for epoch in self._epochs for span in epoch.spans), key=lambda span: span[0]
        )
        self._got = [when for when, _ in spans]
        self._batches = [0, *itertools.accumulate(batches for _, batches in spans)]

    def points(self, readings: Iterable[MemoryReading], name: Literal["own", "anonymous"] = "own") -> list[Point]:
        """Returns the readings that were taken in use."""
        found = []
        for reading in readings:
            place = bisect.bisect_right(self._begins, reading.time) - 1
            if place >= 0 and reading.time <= self._epochs[place].until:
                used = self._before[place] + reading.time - self._begins[place]
                batches = self._batches[bisect.bisect_right(self._got, reading.time)]
                found.append(Point(used, batches, getattr(reading, name)))
        return found


def _by_batch(points: Iterable[Point]) -> float:
    return slope([(one.batches, one.size) for one in points])


def _at_once(histories: Iterable[ProcessHistory], when: float) -> int:
    return sum(one.readings[0].time <= when <= one.readings[-1].time for one in histories)


def rate_in_words(rate: float) -> str:
    """Returns a rate in the unit in which it is at least 1 MiB."""
    for seconds, unit in ((1, "second"), (60, "minute")):
        if rate * seconds >= 1 << 20:
            return f"{_mib(rate * seconds)} per {unit}"
    return f"{_mib(rate * 3600)} per hour"


def _mib(number: float) -> str:
    unit, name = (1 << 30, "GiB") if number >= 1 << 30 else (1 << 20, "MiB")
    value = number / unit
    return f"{value:,.0f} {name}" if value >= 100 else f"{value:.3g} {name}"


def _time(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"


def curve(growth: WorkerGrowth, times: Sequence[float]) -> list[int | None]:
    """Returns the workers' own memory, in bytes, at some times; None while there is none of them.

    Args:
        growth: of the workers.
        times: seconds of `time.perf_counter()`, in order.
    """
    whole: list[int | None] = [None] * len(times)
    for history in growth.histories:
        taken = [one.time for one in history.readings]
        for place in range(bisect.bisect_left(times, taken[0]), bisect.bisect_right(times, taken[-1] + NEAR)):
            last = history.readings[max(0, bisect.bisect_right(taken, times[place]) - 1)]
            whole[place] = (whole[place] or 0) + last.own
    return whole


LIFE = 10.0
"""Seconds of use from which on the growth of a process is judged."""

READINGS = 10
"""Readings of its memory from which on it is judged: those of large processes are more than a second apart."""

WARM_UP = 1 / 3
"""Share of the batches at the beginning that do not count: imports, files, the allocator's pools, small caches."""

PARTS = 3
"""Parts of the rest, by batches; from each to the next the process must have grown."""

EVEN = 0.7
"""How much as fast as from the first part to the second it must grow from the second to the third, and the other way
round. A cache that fills slows down: one that has two thirds of its final size or more is taken to level off."""

LEAST = 16 << 20
"""Bytes that the process must have grown by in the rest. glibc's arenas and Python's pools move by a few MiB."""

SCATTER = 3.0
"""How many times the scatter of the readings around the line that must be: batches of many sizes scatter."""

PAIRED = 60
"""Readings, evenly chosen, of which the slopes of all pairs are compared."""


class Point(NamedTuple):
    """A process's memory, in bytes, after some batches of its loader and some seconds of use."""

    seconds: float
    batches: float
    size: float


@dataclass(frozen=True)
class SteadyGrowth:
    """The growth of a process after its warm-up.

    Attributes:
        rate: bytes per second.
        seconds: over which it was seen.
    """

    rate: float
    seconds: float


def is_long_enough(points: Sequence[Point]) -> bool:
    """Returns whether a process lived long enough to judge its growth."""
    return len(points) >= READINGS and points[-1].seconds - points[0].seconds >= LIFE


def steady_growth(points: Sequence[Point]) -> SteadyGrowth | None:
    """Returns the growth of a process; None if it does not grow, levels off, or did not live long enough.

    Judged is the growth by the batch, which does not depend on how fast these come. It is the median of the slopes of
    all pairs of readings (Theil, 1950; Sen, 1968), which up to 29 % of wild readings do not move.
    """
    if not is_long_enough(points) or points[-1].batches <= points[0].batches:
        return None
    begin, end = points[0].batches, points[-1].batches
    counted = [one for one in points if one.batches >= begin + WARM_UP * (end - begin)]
    first, batches, seconds = counted[0].batches, end - counted[0].batches, points[-1].seconds - counted[0].seconds
    if batches <= 0 or seconds <= 0:
        return None
    parts: list[list[Point]] = [[] for _ in range(PARTS)]
    for one in counted:
        parts[min(PARTS - 1, int(PARTS * (one.batches - first) / batches))].append(one)
    if not all(parts):
        return None
    middles = [(median(one.batches for one in part), median(one.size for one in part)) for part in parts]
    rates = [(size - before) / (at - earlier) for (earlier, before), (at, size) in itertools.pairwise(middles)]
    if min(rates) <= 0 or min(rates) < EVEN * max(rates):
        return None
    by_batch = slope([(one.batches, one.size) for one in counted])
    rest = [one.size - by_batch * one.batches for one in counted]
    middle = median(rest)
    scatter = 1.4826 * median(abs(size - middle) for size in rest)
    grown = by_batch * batches
    return SteadyGrowth(grown / seconds, seconds) if grown >= max(LEAST, SCATTER * scatter) else None


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns the median slope of all pairs of points, or of some points, evenly chosen; 0 for fewer than two."""
    some = points[:: -(-len(points) // PAIRED)] if points else points
    pairs = itertools.combinations(some, 2)
    return median([(y - b) / (x - a) for (a, b), (x, y) in pairs if x > a] or [0.0])
