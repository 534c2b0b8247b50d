"""`Profiling`: an epoch that is measured, the times of its loop, and some steps on copies of a held batch behind it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from datetime import date, time, timedelta
from enum import Enum
from numbers import Number
from pathlib import PurePath
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._core.machine import cpus
from stoker.diagnostics.loader_hooks import sampler_timed
from stoker.diagnostics.profile import profile_verdict
from stoker.diagnostics.profile.batch_sums import BatchSums, Durations, TimedSample
from stoker.diagnostics.profile.loader_profile import LoaderProfile
from stoker.diagnostics.profile.profile_session import ProfileSession, ProfileTrace
from stoker.diagnostics.profile.profile_verdict import ProfileFigures, SlowSample
from stoker.diagnostics.recorder import sampler_of
from stoker.extend import describe

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Profiling:
    """Iterates over an epoch and measures it; made by `loader.profile()`. Used by one thread.

    The batches are those of `iter(loader)`, in its order. Behind them come copies of the second batch, `replay` times.
    The end, `close()`, `break` and the end of a `with` block end the workers; what was measured stays in `result`.

    Args:
        loader: of Stoker's.
        batches: number of batches of the epoch; None for all.
        replay: number of steps on the held batch; None for a fifth of `batches`, from 5 to 20, and none without it.
        end_workers: ends the persistent workers of the loader.
        stacks: whether the stacks of workers are sampled.
        trace: the file for the timeline; None for none.

    Raises:
        TypeError: one of these is no integer.
        ValueError: `batches` is less than 1, or `replay` less than 0.
        OSError: `trace` cannot be written.
    """

    def __init__(
        self,
        loader: Any,
        batches: int | None,
        replay: int | None,
        end_workers: Callable[[], None],
        stacks: bool = False,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        batches = None if batches is None else operator.index(batches)
        replay = None if replay is None else operator.index(replay)
        if batches is not None and batches < 1:
            raise ValueError(f"profile(batches={batches}): at least 1 is needed, or None for the whole epoch")
        if replay is not None and replay < 0:
            raise ValueError(f"profile(replay={replay}): 0 or more steps can be run on a held batch")
        if replay is None:
            replay = 0 if batches is None else held_steps(batches)
        self._loader, self._limit, self._replay = loader, batches, replay
        self._trace = None if trace is None else ProfileTrace(trace)
        self._session = ProfileSession(loader, end_workers, stacks=stacks, trace=self._trace)
        self._finalize = weakref.finalize(self, self._session.end)
        self._finalize.atexit = False  # workers end by themselves there
        self._batches: Any = None
        self._phase = "new"  # then "epoch", "held" and "over"
        self._times = LoopTimes()
        self._given: float | None = None  # when the loop got its batch
        self._held: Any = None
        self._result: LoaderProfile | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        now = perf_counter()
        if self._phase == "epoch":
            self._step_over(self._times.step, now)
        elif self._phase == "held":
            self._step_over(self._times.held, now)
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
            if self._times.count != self._limit:
                try:
                    return self._next(now)
                except StopIteration:
                    pass
            self._end_epoch()
        if self._held is not None and self._times.wants_more(self._replay):
            batch = fresh(self._held)
            self._given = perf_counter()
            return batch
        self.close()
        raise StopIteration

    def _next(self, asked: float) -> Any:
        """Returns the next batch of the epoch."""
        self._session.is_inside = True
        times = self._times
        try:
            with contextlib.nullcontext() if times.count else sampler_timed(times.sample):  # the plan is made here
                batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self._received(asked)
            raise
        finally:
            self._session.is_inside = False
        self._received(asked)
        if self._times.count <= 2 and self._replay:
            self._held = fresh(batch)
            self._given = perf_counter()
        return batch

    def _received(self, asked: float) -> None:
        now = self._given = perf_counter()
        self._times.received(now - asked, begins=self._times.count == 0)

    def _step_over(self, steps: Durations, now: float) -> None:
        if self._given is not None:
            steps.add(now - self._given)
            self._given = None

    def _end_epoch(self) -> None:
        """Ends the workers: steps on the held batch have the machine to themselves."""
        if self._phase != "epoch":
            return
        self._phase = "held"
        wait_too(self._times.step)
        if self._trace is not None:
            self._trace.end(perf_counter())
        close = getattr(self._batches, "close", None)
        self._batches = None
        try:
            if close is not None:
                close()
        finally:
            self._session.end()

    def close(self) -> None:
        """Ends the profile now, and its workers. Idempotent."""
        if self._phase == "epoch":
            self._step_over(self._times.step, perf_counter())
            self._end_epoch()
        elif self._phase == "held":
            self._step_over(self._times.held, perf_counter())
        if self._phase == "held":
            wait_too(self._times.held)
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
        loader, session = self._loader, self._session  # num_workers="auto" may have found a number meanwhile
        workers = loader.num_workers + getattr(session.options.remote, "num_workers", 0)
        return self._times.profile(session.sums, session.options.dataset, workers, sampler=sampler_of(loader))


LEAST_HELD, MOST_HELD = 5, 20
"""Steps on the held batch, where a fifth of the batches would be fewer or more."""

HELD_SECONDS = 10.0
"""Seconds after which steps on the held batch end, once there were `FEWEST`."""

FEWEST = 3
"""Steps on the held batch from which on they say something."""


def held_steps(batches: int) -> int:
    """Returns the number of steps on the held batch behind a number of batches."""
    return min(MOST_HELD, max(LEAST_HELD, batches // 5))


class LoopTimes:
    """Sums up the waits and the steps of a loop.

    Attributes:
        count: number of batches received, those with an error included.
        first: seconds until the first batch of the first epoch.
        starts: seconds until the first batches of the other epochs, which are part of the waits.
        wait: for each batch but the first.
        step: the loop's own steps.
        held: steps on the held batch.
        sampled: seconds inside the sampler, which are part of the waits.
    """

    def __init__(self) -> None:
        self.count = self.epochs = 0
        self.first = self.starts = self.sampled = 0.0
        self.wait, self.step, self.held = Durations(), Durations(), Durations()
        self._held_from = 0.0

    @property
    def waited(self) -> float:
        """Returns all seconds waited, the first batch included."""
        return self.first + self.wait.seconds

    def sample(self, seconds: float) -> None:
        """Counts time inside the sampler."""
        self.sampled += seconds

    def received(self, seconds: float, begins: bool) -> None:
        """Counts a batch."""
        self.count += 1
        self.epochs += begins
        if self.count == 1:
            self.first = seconds
            return
        self.wait.add(seconds)
        if begins:
            self.starts += seconds

    def wants_more(self, wanted: int) -> bool:
        """Returns whether there is one more step on the held batch, of `wanted` ones."""
        done = self.held.count
        if not done:
            self._held_from = perf_counter()
        return done < wanted and (done < FEWEST or perf_counter() - self._held_from < HELD_SECONDS)

    def profile(
        self, sums: BatchSums, dataset: Any, num_workers: int, samples: int | None = None, sampler: str | None = None
    ) -> LoaderProfile:
        """Returns the profile.

        Args:
            samples: number of samples received; None for those that `sums` has counted.
        """
        wait, step, held = self.wait.times(), self.step.times(), self.held.times()
        seconds = wait.seconds + step.seconds
        now = seconds / max(1, step.count)
        alone = held.mean if held.count else step.mean
        cpu, fetched = sums.fetch_cpu
        found = ProfileFigures(
            dataset=type(dataset).__name__,
            num_workers=num_workers,
            batches=self.count,
            samples=sums.samples if samples is None else samples,
            errors=sums.errors,
            seconds=seconds,
            first=self.first,
            wait=wait,
            step=step,
            held=held if held.count else None,
            gain=max(1.0, now / alone) if alone > 0 else 1.0,
            is_measured=held.count > 0,
            stages=sums.stages(),
            each=sums.each(),
            cpu_share=min(1.0, cpu / fetched) if fetched else None,
            slowest=tuple(_slow(sample, dataset) for sample in sums.slowest()),
            steps=sums.steps(),
            workers=sums.workers(),
            epochs=max(1, self.epochs),
            starts=self.starts,
            stacks=sums.stacks(),
            sampler=sampler,
            sampled=self.sampled,
        )
        return LoaderProfile(**vars(found), verdict=profile_verdict.verdict(found, cpus.cpus().number, _crowded()))


def _crowded() -> float:
    """Returns the threads that want a CPU, for each CPU of the machine; 0 if that is not known."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


def wait_too(steps: Durations) -> None:
    """Counts the work that the last steps have queued on a device with them. Call it after the last one."""
    begun = perf_counter()
    wait_for_device()
    steps.seconds += perf_counter() - begun


def _slow(sample: TimedSample, dataset: Any) -> SlowSample:
    said = None
    if sample.index is not None:
        with contextlib.suppress(Exception):  # of the user's describe()
            said = describe(dataset, sample.index)
    text = None if said is None else str(said)
    return SlowSample(sample.index, text, sample.seconds, sample.cpu, sample.batch, sample.place, sample.worker)


_CONSTANT = (str, bytes, Number, type(None), np.generic, PurePath, Enum, date, time, timedelta, range, type)


def fresh(batch: Any) -> Any:
    """Returns a copy with containers, arrays and tensors of its own; other objects are shared with `batch`.

    A step may change its batch, such as by `batch.pop("labels")` or `images.div_(255)`. Pinned tensors are copied
    into pinned memory.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(batch, torch.Tensor):
        clone = batch.detach().clone()
        return clone.pin_memory() if batch.device.type == "cpu" and batch.is_pinned() else clone
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, (str, bytes)):
        return batch
    if isinstance(batch, Mapping):
        return _mapping(batch, {key: fresh(value) for key, value in batch.items()})
    if isinstance(batch, tuple):
        items = [fresh(item) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else tuple(items)
    if isinstance(batch, list):
        clone = copy.copy(batch)
        clone[:] = [fresh(item) for item in batch]
        return clone
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        clone = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(clone, field.name, fresh(getattr(batch, field.name)))
        return clone
    return batch


def shared_part(batch: Any) -> str | None:
    """Returns the class of an object that `fresh` would share, and a step might change; None if there is none."""
    torch = sys.modules.get("torch")
    if isinstance(batch, _CONSTANT) or (torch is not None and isinstance(batch, torch.Tensor)):
        return None
    if isinstance(batch, np.ndarray):
        return "object array" if batch.dtype.hasobject else None
    if isinstance(batch, Mapping):
        parts: Iterable[Any] = batch.values()
    elif isinstance(batch, (tuple, list)):
        parts = batch
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        parts = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    else:
        return type(batch).__name__
    return next((part for part in map(shared_part, parts) if part is not None), None)


def _mapping(batch: Mapping[Any, Any], fields: dict[Any, Any]) -> Any:
    if type(batch) is dict:
        return fields
    try:
        clone = copy.copy(batch)
        if isinstance(clone, MutableMapping):
            clone.update(fields)
            return clone
        return type(batch)(fields)  # type: ignore[call-arg]
    except TypeError:
        return fields


def wait_for_device() -> None:
    """Waits for the work that the program has queued on its GPU: a step that only queues work would seem to be free."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
