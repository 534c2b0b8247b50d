"""`Profiling`: an epoch that is measured, and some steps on a held batch behind it."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stoker._engine.timings import BatchTimings
from stoker._job.timed_steps import StepTimes
from stoker._machine import cpus
from stoker.datasets.described import describe
from stoker.loader._profile import profile_verdict
from stoker.loader._profile.batch_sums import BatchSums, TimedSample
from stoker.loader._profile.held_batch import fresh, wait_for_device
from stoker.loader._profile.loader_profile import LoaderProfile
from stoker.loader._profile.profile_figures import ProfileFigures, SlowSample
from stoker.loader._profile.profile_trace import ProfileTrace
from stoker.loader._profile.stage_times import Durations
from stoker.loader.record import record_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LEAST_HELD, MOST_HELD = 5, 20
"""Steps on the held batch, where a fifth of the batches would be fewer or more."""

HELD_SECONDS = 10.0
"""Seconds after which steps on the held batch end, once there were three."""


class Profiling:
    """Iterates over an epoch and measures it; made by `loader.profile()`. Used by one thread.

    The batches are those of `iter(loader)`, in its order. Behind them come copies of the second batch, `replay` times.
    The end, `close()`, `break` and the end of a `with` block end the workers; what was measured stays in `result`.

    Args:
        loader: of Stoker's.
        batches: number of batches of the epoch; None for all.
        replay: number of steps on the held batch; None for a fifth of `batches`, from 5 to 20, and none without it.
        end_workers: ends the persistent workers of the loader.
        trace: the file for the timeline; None for none.

    Raises:
        ValueError: `batches` is less than 1, or `replay` less than 0.
        OSError: `trace` cannot be written.
    """

    def __init__(
        self,
        loader: Any,
        batches: int | None,
        replay: int | None,
        end_workers: Callable[[], None],
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        if batches is not None and batches < 1:
            raise ValueError(f"profile(batches={batches}): at least 1 is needed, or None for the whole epoch")
        if replay is not None and replay < 0:
            raise ValueError(f"profile(replay={replay}): 0 or more steps can be run on a held batch")
        if replay is None:
            replay = 0 if batches is None else min(MOST_HELD, max(LEAST_HELD, batches // 5))
        self._loader, self._limit, self._replay = loader, batches, replay
        self._trace = None if trace is None else ProfileTrace(trace)
        self._session = _Session(loader, end_workers, self._trace)
        self._finalize = weakref.finalize(self, self._session.end)
        self._finalize.atexit = False  # workers end by themselves there
        self._batches: Any = None
        self._phase = "new"  # then "epoch", "held" and "over"
        self._count = 0
        self._wait, self._step, self._held_step = Durations(), Durations(), Durations()
        self._given: float | None = None  # when the loop got what it has
        self._first = 0.0
        self._held: Any = None
        self._held_from = 0.0
        self._result: LoaderProfile | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        now = perf_counter()
        if self._phase == "epoch":
            self._step_over(self._step, now)
        elif self._phase == "held":
            self._step_over(self._held_step, now)
        elif self._phase == "over":
            raise StopIteration
        if self._phase == "new":
            self._session.begin()
            self._phase = "epoch"
            self._batches = iter(self._loader)
        elif self._phase == "epoch":
            self._session.sum_up()
            now = perf_counter()  # the sums count for nobody
        if self._phase == "epoch":
            if self._count != self._limit:
                try:
                    return self._next(now)
                except StopIteration:
                    pass
            self._end_epoch()
        if self._replays():
            batch = fresh(self._held)
            self._given = perf_counter()
            return batch
        self.close()
        raise StopIteration

    def _next(self, asked: float) -> Any:
        """Returns the next batch of the epoch."""
        self._session.is_inside = True
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self._received(asked)
            raise
        finally:
            self._session.is_inside = False
        self._received(asked)
        if self._count <= 2 and self._replay:
            self._held = fresh(batch)
            self._given = perf_counter()
        return batch

    def _received(self, asked: float) -> None:
        now = self._given = perf_counter()
        self._count += 1
        if self._count == 1:
            self._first = now - asked
        else:
            self._wait.add(now - asked)

    def _step_over(self, steps: Durations, now: float) -> None:
        if self._given is not None:
            steps.add(now - self._given)
            self._given = None

    def _end_epoch(self) -> None:
        """Ends the workers: steps on the held batch have the machine to themselves."""
        if self._phase != "epoch":
            return
        self._phase = "held"
        _wait_too(self._step)
        if self._trace is not None:
            self._trace.end(perf_counter())
        close = getattr(self._batches, "close", None)
        self._batches = None
        try:
            if close is not None:
                close()
        finally:
            self._session.end()
        self._held_from = perf_counter()

    def _replays(self) -> bool:
        """Returns whether there is one more step on the held batch."""
        done = self._held_step.count
        if self._held is None or done >= self._replay:
            return False
        return done < 3 or perf_counter() - self._held_from < HELD_SECONDS

    def close(self) -> None:
        """Ends the profile now, and its workers. Idempotent."""
        if self._phase == "epoch":
            self._step_over(self._step, perf_counter())
            self._end_epoch()
        elif self._phase == "held":
            self._step_over(self._held_step, perf_counter())
        if self._phase == "held":
            _wait_too(self._held_step)
        self._phase, self._held = "over", None

    def __enter__(self) -> Self:
        """Returns the iterator; the end of the `with` block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def result(self) -> LoaderProfile:
        """Returns the measurements. Ends the profile if it has not ended, as after `break`."""
        self.close()
        if self._result is None:
            self._result = self._summed()
        return self._result

    def _summed(self) -> LoaderProfile:
        sums, options = self._session.sums, self._session.options
        wait, step, held = self._wait.times(), self._step.times(), self._held_step.times()
        seconds = wait.seconds + step.seconds
        now = seconds / max(1, step.count)
        alone = held.mean if held.count else step.mean
        cpu, fetched = sums.fetch_cpu
        found = ProfileFigures(
            dataset=type(options.dataset).__name__,
            num_workers=self._loader.num_workers,  # "auto" may have found it meanwhile
            batches=self._count,
            samples=sums.samples,
            errors=sums.errors,
            seconds=seconds,
            first=self._first,
            wait=wait,
            step=step,
            held=held if held.count else None,
            gain=max(1.0, now / alone) if alone > 0 else 1.0,
            is_measured=held.count > 0,
            stages=sums.stages(),
            each=sums.each(),
            cpu_share=min(1.0, cpu / fetched) if fetched else None,
            slowest=tuple(_slow(sample, options.dataset) for sample in sums.slowest()),
            steps=sums.steps(),
            workers=sums.workers(),
        )
        said = profile_verdict.verdict(found, cpus.cpus().number, _crowded())
        return LoaderProfile(**vars(found), verdict=said)


class _Session:
    """The arrangements in the loader while it is profiled.

    Attributes:
        sums: of the batches.
        options: of the loader.
        is_inside: whether the profile asks for a batch; those of other iterators do not count.
    """

    def __init__(self, loader: Any, end_workers: Callable[[], None], trace: ProfileTrace | None) -> None:
        self._record = record_of(loader)
        self._trace = trace
        self._end_workers = end_workers
        self._owner = os.getpid()
        self._steps: StepTimes | None = None
        self._pending: list[BatchTimings] = []
        self._is_on = False
        self.options = self._record.options(loader)
        self.sums = BatchSums()
        self.is_inside = False

    def begin(self) -> None:
        self._end_workers()  # those that are there measure nothing
        self._is_on, self._outer = True, self._record.timing_sink
        self._record.timing_sink = self._take
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
        self.sum_up()
        if self._trace is not None:
            self._trace.write()
        if self._record.timing_sink == self._take:
            self._record.timing_sink = self._outer
        if self._steps is not None:
            self._steps.end()
        self._end_workers()


def _crowded() -> float:
    """Returns the threads that want a CPU, for each CPU of the machine; 0 if that is not known."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


def _wait_too(steps: Durations) -> None:
    """Counts what the last steps have queued on a device with them."""
    begun = perf_counter()
    wait_for_device()
    steps.add_to_sum(perf_counter() - begun)


def _slow(sample: TimedSample, dataset: Any) -> SlowSample:
    said = None
    if sample.index is not None:
        with contextlib.suppress(Exception):  # of the user's describe()
            said = describe(dataset, sample.index)
    text = None if said is None else str(said)
    return SlowSample(sample.index, text, sample.seconds, sample.cpu, sample.batch, sample.place, sample.worker)
