"""`ProfileSession`: takes the times of a loader's batches, and leaves the loader as it was; and their timeline."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from stoker.diagnostics.profile.batch_sums import BatchSums
from stoker.extend import BatchTimings, StepTimes, TimingSink, UnitTimings
from stoker.loader.record import record_of


class ProfileSession:
    """The arrangements in the loader while it is profiled: from `begin` to `end`, as often as these are called.

    Args:
        sums: of the batches; None for new ones.
        trace: the timeline of the batches, which is written at the end; None for none.

    Attributes:
        is_inside: whether the profile asks for a batch; those of other iterators do not count.
    """

    def __init__(
        self,
        loader: Any,
        end_workers: Callable[[], None],
        sums: BatchSums | None = None,
        stacks: bool = False,
        trace: ProfileTrace | None = None,
    ) -> None:
        self._record = record_of(loader)
        self._end_workers = end_workers
        self._owner = os.getpid()
        self._steps: StepTimes | None = None
        self._pending: list[BatchTimings] = []
        self._is_on = False
        self._sampled = stacks
        self._trace = trace
        self.options = self._record.options(loader)
        self.sums = BatchSums() if sums is None else sums
        self.is_inside = False

    def begin(self) -> None:
        """Measures from the next `iter(loader)` on. Idempotent."""
        if self._is_on:
            return
        self._end_workers()  # those that are there measure nothing
        self._is_on, self._outer = True, self._record.timing_sink
        self._record.timing_sink, self._record.sampled = self._take, self._sampled
        if not self.options.capabilities.own_process:  # in process, the transforms are this process's own
            self._steps = StepTimes(self.options.dataset)
            self._steps.begin()

    def _take(self, times: BatchTimings) -> None:
        if self.is_inside:
            self._pending.append(times._replace(indices=None) if self.options.is_stream else times)
        if self._outer is not None:
            self._outer(times)

    def sum_up(self) -> None:
        """Adds the last batches to the sums."""
        while self._pending:
            times = self._pending.pop()
            self.sums.add(times)
            if self._trace is not None:
                self._trace.add(times)
        if self._steps is not None:
            self.sums.count_steps(self._steps.read())

    def end(self) -> None:
        """Leaves the loader as it was, without persistent workers. Idempotent."""
        if not self._is_on or os.getpid() != self._owner:
            return
        self._is_on = False
        try:
            self.sum_up()
        finally:
            if self._record.timing_sink == self._take:
                self._record.timing_sink, self._record.sampled = self._before(), False
            if self._steps is not None:
                self._steps.end()
            self._end_workers()
        if self._trace is not None:
            self._trace.write()

    def _before(self) -> TimingSink | None:
        """Returns the sink to put back: the one before this session, without those of sessions that ended meanwhile."""
        sink = self._outer
        while isinstance(session := getattr(sink, "__self__", None), ProfileSession) and not session._is_on:
            sink = session._outer
        return sink


MOST_SPANS = 300_000
"""Spans from which on single samples are left out: some 40 MB, which the Perfetto UI still opens."""

_INSIDE = 1e-7
"""Seconds before the end of a span at which an arrow is tied to it."""

LOOP = 0
"""Number of the training loop's track; worker `n` has `n + 1`."""


class ProfileTrace:
    """Collects the batches of a profile, and writes them as a trace.

    Each track is strictly nested. That of the training loop has waits and steps; that of a worker has batches, and in
    them fetching with its samples, collation, writing and waiting for memory. An arrow leads from the worker's batch
    to the wait that ends with it. Times are microseconds behind `baseTimeNanoseconds`, as torch.profiler writes them,
    so both traces can be merged.

    Raises:
        OSError: the file cannot be written. It is made at once, so that an epoch is not measured in vain.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._batches: list[BatchTimings] = []
        self._spans = 0
        self._ended: float | None = None
        with open(self.path, "a", encoding="utf-8"):
            pass

    def add(self, times: BatchTimings) -> None:
        """Adds a batch."""
        self._spans += 2 + sum(4 + len(made.samples) for made in times.made)
        if self._spans > MOST_SPANS:
            times = times._replace(made=tuple(made._replace(samples=()) for made in times.made))
        self._batches.append(times)

    def end(self, now: float) -> None:
        """Ends the step with the last batch, at a time of `perf_counter()`."""
        self._ended = now

    def write(self) -> None:
        """Writes the file."""
        self._batches.sort(key=lambda times: times.asked)
        begun = [made.begun for times in self._batches for made in times.made]
        base = min([*begun, *(times.asked for times in self._batches[:1])], default=time.perf_counter())
        trace = {
            "baseTimeNanoseconds": time.time_ns() - int((time.perf_counter() - base) * 1e9),
            "displayTimeUnit": "ms",
            "traceEvents": list(self._events(base)),
        }
        try:
            with open(self.path, "w", encoding="utf-8") as file:
                json.dump(trace, file)
        except OSError as error:  # of a full disk, which names no file
            raise OSError(error.errno, error.strerror, self.path) from error

    def _events(self, base: float) -> Iterator[dict[str, Any]]:
        pid = os.getpid()
        workers = sorted({made.worker for times in self._batches for made in times.made})
        names = {LOOP: "training loop"} | {worker + 1: f"worker {worker}" for worker in workers}
        for tid, name in names.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
        for event in (*self._loop(), *self._made()):
            begin = round(1e6 * (event["ts"] - base), 3)
            whole = {"dur": round(round(1e6 * (event["end"] - base), 3) - begin, 3)} if "end" in event else {}
            yield {"pid": pid, **{name: value for name, value in event.items() if name != "end"}, "ts": begin, **whole}

    def _loop(self) -> Iterator[dict[str, Any]]:
        following = [*(times.asked for times in self._batches[1:]), self._ended]
        for times, asked in zip(self._batches, following, strict=False):  # without a batch, there is one more
            got = times.asked + times.waited
            yield _span(LOOP, f"wait for batch {times.batch}", times.asked, got, samples=times.samples)
            if asked is not None and asked > got:
                yield _span(LOOP, f"step with batch {times.batch}", got, asked)

    def _made(self) -> Iterator[dict[str, Any]]:
        numbers = itertools.count()
        for times in self._batches:
            indices = times.indices if isinstance(times.indices, (list, tuple, range)) else ()
            for made in times.made:
                tid = made.worker + 1
                yield _span(tid, f"batch {times.batch}", made.begun, made.ended)
                yield from _phases(tid, made, [str(index) for index in indices])
                flow = {"cat": "batch", "name": "batch", "id": next(numbers)}
                got = times.asked + times.waited
                yield {"ph": "s", "tid": tid, "ts": max(made.begun, made.ended - _INSIDE), **flow}
                yield {"ph": "f", "bp": "e", "tid": LOOP, "ts": max(times.asked, got - _INSIDE), **flow}


def _phases(tid: int, made: UnitTimings, indices: list[str]) -> Iterator[dict[str, Any]]:
    """The phases of a unit one after the other. The wait for memory comes first: where it lay is not recorded."""
    at = made.begun
    for name, seconds in (
        ("wait for memory", made.wait),
        ("fetch", made.fetch),
        ("collate", made.collate),
        ("write", made.write),
    ):
        if seconds > 0:
            yield _span(tid, name, at, at + seconds)
        if name == "fetch":
            begin = at + max(0.0, seconds - sum(made.samples))  # the time before the samples is the worker's start
            for place, spent in enumerate(made.samples, made.first):
                label = f"sample {indices[place]}" if place < len(indices) else f"place {place}"
                yield _span(tid, label, begin, min(begin + spent, at + seconds))
                begin += spent
        at += seconds


def _span(tid: int, name: str, begin: float, end: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "tid": tid, "name": name, "ts": begin, "end": end, "args": args}
