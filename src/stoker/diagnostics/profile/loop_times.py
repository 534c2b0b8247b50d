"""`LoopTimes`: the times of a training loop that is profiled, and the profile that follows from them."""

from __future__ import annotations

import contextlib
import os
from time import perf_counter
from typing import Any

from stoker._core.machine import cpus
from stoker.datasets.described import describe
from stoker.diagnostics.profile import profile_verdict
from stoker.diagnostics.profile.batch_sums import BatchSums, TimedSample
from stoker.diagnostics.profile.held_batch import wait_for_device
from stoker.diagnostics.profile.loader_profile import LoaderProfile
from stoker.diagnostics.profile.profile_figures import ProfileFigures, SlowSample
from stoker.diagnostics.profile.stage_times import Durations

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
        epochs: that were begun.
        first: seconds until the first batch of the first epoch.
        starts: seconds until the first batches of the other epochs, which are part of the waits.
        wait: for each batch but the first.
        step: the loop's own steps.
        held: steps on the held batch.
    """

    def __init__(self) -> None:
        self.count = self.epochs = 0
        self.first = self.starts = 0.0
        self.wait, self.step, self.held = Durations(), Durations(), Durations()
        self._held_from = 0.0

    @property
    def waited(self) -> float:
        """Returns all seconds waited, the first batch included."""
        return self.first + self.wait.seconds

    def received(self, seconds: float, begins: bool) -> None:
        """Counts a batch.

        Args:
            seconds: waited for it.
            begins: whether it is the first one of an epoch.
        """
        self.count += 1
        self.epochs += begins
        if self.count == 1:
            self.first = seconds
            return
        self.wait.add(seconds)
        if begins:
            self.starts += seconds

    def end_steps(self) -> None:
        """Counts the work queued on a device with the steps. Call it after the last one."""
        _wait_too(self.step)

    def end_held(self) -> None:
        """Counts the work queued on a device with the steps on the held batch. Call it after the last one."""
        _wait_too(self.held)

    def wants_more(self, wanted: int) -> bool:
        """Returns whether there is one more step on the held batch, of `wanted` ones."""
        done = self.held.count
        if not done:
            self._held_from = perf_counter()
        return done < wanted and (done < FEWEST or perf_counter() - self._held_from < HELD_SECONDS)

    def profile(self, sums: BatchSums, dataset: Any, num_workers: int, samples: int | None = None) -> LoaderProfile:
        """Returns the profile.

        Args:
            sums: of the loader's batches.
            dataset: of the loader.
            num_workers: of the loader.
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
        )
        return LoaderProfile(**vars(found), verdict=profile_verdict.verdict(found, cpus.cpus().number, _crowded()))


def _crowded() -> float:
    """Returns the threads that want a CPU, for each CPU of the machine; 0 if that is not known."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


def _wait_too(steps: Durations) -> None:
    """Counts the work that the last steps have queued on a device with them."""
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
