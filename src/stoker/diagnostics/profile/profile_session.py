"""`ProfileSession`: takes the times of a loader's batches, and leaves the loader as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stoker._engine.timings import BatchTimings, TimingSink
from stoker.diagnostics.profile.batch_sums import BatchSums
from stoker.diagnostics.profile.profile_trace import ProfileTrace
from stoker.loader._job.timed_steps import StepTimes
from stoker.loader.record import record_of


class ProfileSession:
    """The arrangements in the loader while it is profiled: from `begin` to `end`, as often as these are called.

    Args:
        loader: of Stoker's.
        end_workers: ends the persistent workers of the loader.
        sums: of the batches; None for new ones.
        stacks: whether the stacks of workers are sampled.
        trace: the timeline of the batches, which is written at the end; None for none.

    Attributes:
        sums: of the batches.
        options: of the loader.
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
