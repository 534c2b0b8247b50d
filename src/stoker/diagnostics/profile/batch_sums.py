"""Sums up the times of batches: their stages, their samples, the steps of transforms, and each worker."""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stoker.extend import BatchTimings, StackCount, StepSums, UnitTimings

SLOWEST = 10
"""Samples that are named."""

MOST_STACKS = 5_000
"""Different stacks that are counted."""

STAGES = ("fetch", "collate", "write", "memory", "transport")
"""The stages of a batch: the first four in its worker, the last until the training loop has it."""


class TimedSample(NamedTuple):
    """A sample and its times.

    Attributes:
        index: of the sample; None for a stream.
        batch: number of its batch in the epoch.
    """

    seconds: float
    cpu: float
    index: Any
    batch: int
    place: int
    worker: int


class WorkerUse(NamedTuple):
    """The work of a worker, from the first unit of any worker to its own last one, in each epoch.

    Attributes:
        units: batches, or parts of them, that it made.
        busy: share of its time in which it made batches.
        memory: share in which it waited for memory.
        idle: share in which it had nothing to do.
    """

    worker: int
    units: int
    busy: float
    memory: float
    idle: float


class BatchSums:
    """Sums up `BatchTimings`.

    Attributes:
        errors: number of batches whose error was raised.
        fetch_cpu: CPU seconds, and all seconds, of those fetches whose CPU time is known.
    """

    def __init__(self) -> None:
        self._stages = {name: Durations() for name in STAGES}
        self._each = Durations()  # of the samples
        self._slowest: list[tuple[float, int, TimedSample]] = []
        self._order = itertools.count()
        self._steps: dict[str, list[float]] = {}
        self._stacks: dict[str, int] = {}
        self._busy: dict[int, list[float]] = {}  # units, busy, waited, end, time of the epochs before
        self._begun: float | None = None
        self.samples = self.errors = 0
        self.fetch_cpu = (0.0, 0.0)

    def add(self, times: BatchTimings) -> None:
        """Counts a batch."""
        if times.kind == "error":
            self.errors += 1
        else:
            self.samples += times.samples
        if not times.made:
            return
        for name, seconds in zip(STAGES, _of_stages(times), strict=True):
            self._stages[name].add(seconds)
        for made in times.made:
            self._worker(made)
            self._samples(times, made)
            self.count_steps(made.steps)
            for stack, count in made.stacks:
                if stack in self._stacks or len(self._stacks) < MOST_STACKS:
                    self._stacks[stack] = self._stacks.get(stack, 0) + count
            if made.cpu is not None:
                cpu, seconds = self.fetch_cpu
                self.fetch_cpu = cpu + made.cpu, seconds + made.fetch

    def count_steps(self, steps: tuple[StepSums, ...]) -> None:
        """Counts the steps of transforms."""
        for name, calls, seconds, longest in steps:
            sums = self._steps.setdefault(name, [0, 0.0, 0.0])
            self._steps[name] = [sums[0] + calls, sums[1] + seconds, max(sums[2], longest)]

    def end_epoch(self) -> None:
        """Ends an epoch: until the next one begins, no worker idles."""
        for use in self._busy.values():
            use[4] += max(0.0, use[3] - (self._begun or use[3]))
            use[3] = 0.0
        self._begun = None

    def stages(self) -> dict[str, StageTimes]:
        """Returns the times of the stages, for each batch in all workers together."""
        return {name: durations.times() for name, durations in self._stages.items()}

    def each(self) -> StageTimes:
        """Returns the times of single samples; of none where a whole batch is fetched at once, or by threads."""
        return self._each.times()

    def slowest(self) -> list[TimedSample]:
        """Returns the samples that took longest, the slowest first."""
        return [sample for _, _, sample in sorted(self._slowest, reverse=True)]

    def steps(self) -> tuple[StepSums, ...]:
        """Returns the steps of transforms, in their order."""
        names = sorted(self._steps, key=_numbered)
        return tuple(StepSums(name, int(self._steps[name][0]), *self._steps[name][1:]) for name in names)

    def stacks(self) -> tuple[StackCount, ...]:
        """Returns the stacks that were seen, the most frequent first."""
        return tuple(StackCount(*one) for one in sorted(self._stacks.items(), key=lambda one: -one[1]))

    def workers(self) -> tuple[WorkerUse, ...]:
        """Returns the use of each worker."""
        found = []
        for worker, (units, busy, waited, end, before) in sorted(self._busy.items()):
            whole = max(before + max(0.0, end - (self._begun or end)), busy + waited, 1e-9)
            idle = max(0.0, whole - busy - waited)
            found.append(WorkerUse(worker, int(units), busy / whole, waited / whole, idle / whole))
        return tuple(found)

    def _worker(self, made: UnitTimings) -> None:
        units, busy, waited, end, before = self._busy.get(made.worker, (0, 0.0, 0.0, 0.0, 0.0))
        spent = made.fetch + made.collate + made.write
        self._busy[made.worker] = [units + 1, busy + spent, waited + made.wait, max(end, made.ended), before]
        self._begun = made.begun if self._begun is None else min(self._begun, made.begun)

    def _samples(self, times: BatchTimings, made: UnitTimings) -> None:
        if not made.samples:
            return
        self._each.extend(made.samples)
        if len(self._slowest) == SLOWEST and max(made.samples) <= self._slowest[0][0]:
            return
        for place, seconds in enumerate(made.samples, made.first):
            if len(self._slowest) == SLOWEST and seconds <= self._slowest[0][0]:
                continue
            cpu = made.sample_cpu[place - made.first]
            sample = TimedSample(seconds, cpu, _index(times.indices, place), times.batch, place, made.worker)
            change = heapq.heappushpop if len(self._slowest) == SLOWEST else heapq.heappush
            change(self._slowest, (seconds, next(self._order), sample))


def _of_stages(times: BatchTimings) -> tuple[float, ...]:
    made = times.made
    received = times.asked + times.waited
    there = max(times.asked, *(one.ended for one in made))
    return (
        sum(one.fetch for one in made),
        sum(one.collate for one in made),
        sum(one.write for one in made),
        sum(one.wait for one in made),
        max(0.0, received - there),
    )


def _index(indices: Any, place: int) -> Any:
    """Returns the index of the sample at a place of a batch; None for a stream, whose first step holds a state."""
    if indices is None or isinstance(indices, bytes):
        return None
    if not hasattr(indices, "__getitem__") or isinstance(indices, (str, tuple)):
        return indices if place == 0 else None  # without batching
    found: Any = indices[place] if place < len(indices) else None
    return found.item() if hasattr(found, "item") else found


def _numbered(name: str) -> list[tuple[bool, int, str]]:
    """Returns a key that sorts the numbers in a path as numbers."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.partition(" ")[0].split(".")]


KEPT = 1_000_000
"""Durations of a stage that are kept for median and tails, 8 bytes each; the sum and the longest count all."""


@dataclass(frozen=True)
class StageTimes:
    """The durations of one stage, in seconds.

    Attributes:
        p95: the one that 95 % do not exceed.
    """

    count: int = 0
    seconds: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    longest: float = 0.0

    @property
    def mean(self) -> float:
        """Returns the sum divided by the number."""
        return self.seconds / self.count if self.count else 0.0

    def as_dict(self) -> dict[str, float]:
        """Returns the figures by name, with the mean."""
        return {**vars(self), "mean": self.mean}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> StageTimes:
        """Returns the times that `as_dict` gave."""
        return cls(*(values[name] for name in ("count", "seconds", "median", "p95", "longest")))


class Durations:
    """Collects durations.

    Attributes:
        seconds: their sum, with what belongs to no single duration.
    """

    def __init__(self) -> None:
        self._kept = array("d")
        self.count = 0
        self.seconds = self._longest = 0.0

    def add(self, seconds: float) -> None:
        """Counts a duration."""
        self.count += 1
        self.seconds += seconds
        self._longest = max(self._longest, seconds)
        if len(self._kept) < KEPT:
            self._kept.append(seconds)

    def extend(self, seconds: Sequence[float]) -> None:
        """Counts several durations."""
        self.count += len(seconds)
        self.seconds += sum(seconds)
        self._longest = max(self._longest, *seconds)
        self._kept.extend(seconds[: max(0, KEPT - len(self._kept))])

    def times(self) -> StageTimes:
        """Returns the figures that were counted until now."""
        if not self.count:
            return StageTimes()
        median, p95 = np.quantile(np.array(self._kept), (0.5, 0.95)).tolist()
        return StageTimes(self.count, self.seconds, median, p95, self._longest)
