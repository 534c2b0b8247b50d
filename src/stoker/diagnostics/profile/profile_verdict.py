"""The figures of a profile, and the verdict on them: the bound of the loop, its slow stage, and the change to make.

Pure: figures in, words out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stoker.diagnostics.profile.batch_sums import StageTimes, WorkerUse
from stoker.diagnostics.verdict import ENOUGH, OFF_CPU, ON_CPU, UNEVEN
from stoker.extend import NEGLIGIBLE_SHARE, WAITING_SHARE, StackCount, StepSums, workers_for

NO_STEP = 50e-6
"""Seconds of a step below which the loop does nothing with its batches, if it waits almost all of its time."""

IDLE = 0.4
"""Share of its time from which on a worker counts as idle while the loop waits."""

CROWDED = 1.5
"""Threads that want a CPU, for each CPU, from which on times of waiting say little about storage."""

_START = "Pass persistent_workers=True if there are several epochs; else see what the dataset opens."
_EPOCHS = "Pass persistent_workers=True, and make epochs longer if they stay slow to begin."

_DOING = {
    "fetch": "fetching samples",
    "collate": "collating samples into batches",
    "write": "writing batches into shared memory",
    "memory": "waiting for shared memory",
    "transport": "handing over batches that are ready",
    "start": "making the first batch",
    "sampler": "the sampler, in the training process",
}


@dataclass(frozen=True)
class ProfileVerdict:
    """The conclusion of a profile.

    Attributes:
        kind: "data-bound", "balanced", "compute-bound", "loader alone" if the loop does nothing with its batches, or
            "too short" to say.
        stage: the stage that makes batches slow: "fetch", "collate", "write", "memory", "transport", "start" or
            "sampler"; None if no time of a stage is known.
        text: a sentence or two with their numbers.
        change: the one change to make, or None.
    """

    kind: str
    stage: str | None
    text: str
    change: str | None

    def __str__(self) -> str:
        return self.text if self.change is None else f"{self.text} {self.change}"


def verdict(profile: ProfileFigures, cpus: int, crowded: float = 0.0) -> ProfileVerdict:
    """Returns the verdict of a profile.

    Args:
        profile: its figures.
        cpus: that the program may use.
        crowded: threads that want a CPU of this machine for each that there is; above `CROWDED`, what seems to wait for
            storage may wait for a CPU.
    """
    stage, share = slow_stage(profile)
    batches, seconds = ENOUGH
    if profile.batches < batches or profile.seconds < seconds:
        text = f"Too short to judge: {profile.batches} batches in {profile.seconds:.2g} s."
        return ProfileVerdict("too short", stage, text, "Profile some more batches.")
    waits = profile.share
    if waits <= NEGLIGIBLE_SHARE:
        text = f"Compute-bound: the loop waits {waits:.1%} of its time for batches, so a faster loader gains no more."
        if stage == "start":
            return ProfileVerdict("compute-bound", stage, f"{text} {_slow(profile, stage, share)}", _START)
        return ProfileVerdict("compute-bound", stage, text, None)
    if waits > 0.95 and profile.step.median < NO_STEP:
        kind = "loader alone"
        text = f"The loader alone makes {profile.rate:,.0f} samples/s: the loop does nothing with its batches."
    else:
        kind = "data-bound" if waits >= WAITING_SHARE else "balanced"
        text = f"{kind.capitalize()}: the loop waits {waits:.0%} of its time for batches; {_gain(profile)}."
    if stage is not None:
        text += f" {_slow(profile, stage, share)}"
    waits_for_what = profile.cpu_share is not None and profile.cpu_share <= OFF_CPU
    if stage == "fetch" and waits_for_what and crowded > CROWDED and profile.num_workers:
        text += f" The machine is crowded ({crowded:.1f} threads for each CPU): much of that may be waiting for a CPU."
        return ProfileVerdict(kind, stage, text, _less(profile.num_workers, cpus))
    return ProfileVerdict(kind, stage, text, _change(profile, stage, cpus))


def slow_stage(profile: ProfileFigures) -> tuple[str | None, float]:
    """Returns the stage that takes most of the time of batches, and its share of that."""
    seconds = {name: times.seconds for name, times in profile.stages.items()}
    whole = sum(seconds.values())
    steady = profile.wait.seconds
    if profile.batches and profile.sampled > 0.5 * (profile.first + steady):
        return "sampler", min(1.0, profile.sampled / (profile.first + steady))
    if whole <= 0:
        return None, 0.0
    if profile.starts > 0.5 * steady and profile.share > NEGLIGIBLE_SHARE:
        return "start", (profile.first + profile.starts) / (profile.first + steady)
    if profile.share < WAITING_SHARE and profile.first > max(steady, 0.5 * profile.seconds):
        return "start", profile.first / (profile.first + steady)
    if profile.num_workers and seconds["transport"] > 0.5 * (steady + profile.first):
        return "transport", seconds["transport"] / (steady + profile.first)
    made = {name: seconds[name] for name in ("fetch", "collate", "write", "memory")}
    stage = max(made, key=lambda name: made[name])
    return stage, made[stage] / (sum(made.values()) or 1.0)


def _gain(profile: ProfileFigures) -> str:
    faster = f"{profile.gain:.2g} times as fast" if profile.gain < 100 else "over 100 times as fast"
    if not profile.is_measured or profile.held is None:
        return f"without that, {faster} at most"
    now = (profile.wait.seconds + profile.step.seconds) / max(1, profile.step.count)
    return (
        f"{faster} at most without that, as {profile.held.count} steps on a held batch have shown "
        f"({_ms(profile.held.mean)} in place of {_ms(now)})"
    )


def _slow(profile: ProfileFigures, stage: str, share: float) -> str:
    if stage == "start" and profile.starts:
        mean = (profile.first + profile.starts) / profile.epochs
        return f"The first batch of an epoch comes after {mean:.2g} s, {share:.0%} of all the waiting."
    if stage == "start":
        return f"The first batch comes after {profile.first:.2g} s, {share:.0%} of all the waiting."
    if stage in ("transport", "sampler"):
        return f"Of the waiting, {share:.0%} is for {_DOING[stage]}."
    text = f"Of the time to make a batch, {share:.0%} is {_DOING[stage]}"
    if stage != "fetch":
        return f"{text}."
    if (cpu := profile.cpu_share) is not None:
        text += (
            f", {cpu:.0%} of it on the CPU"
            if cpu >= ON_CPU
            else f", {1 - cpu:.0%} of it waiting (for storage, a network, or a CPU)"
        )
    named = _slow_step(profile)
    return f"{text}; {named}." if named else f"{text}."


def _slow_step(profile: ProfileFigures) -> str | None:
    """Names the step of a `Compose` that takes a third of the fetching or more."""
    fetch = profile.stages["fetch"].seconds
    inner = [
        one for one in profile.steps if not any(other.name.startswith(_prefix(one.name)) for other in profile.steps)
    ]
    if not inner or not fetch:
        return None
    most = max(inner, key=lambda step: step.seconds)
    if most.seconds < fetch / 3:
        return None
    return f"{most.seconds / fetch:.0%} of it in {most.name}"


def _prefix(name: str) -> str:
    return name.partition(" ")[0] + "."


def _change(profile: ProfileFigures, stage: str | None, cpus: int) -> str | None:
    workers = profile.num_workers
    if stage == "sampler":
        return (
            f"Make the sampler quicker ({profile.sampler}): workers cannot help. Compute the order of an epoch at "
            "once, as with NumPy, and yield from that."
        )
    if workers == 0:
        count = max(1, profile.wait.count)
        number = workers_for(profile.step.mean, profile.wait.seconds / count, cpus)
        if number:
            return f"Pass num_workers={number}: batches are made in the training loop now, because of num_workers=0."
    if stage == "start" and workers:
        return _EPOCHS if profile.starts else _START
    if stage == "transport":
        return "Make batches smaller in bytes (uint8 instead of float32), or leave out pin_memory on a CPU."
    if stage == "memory":
        return "Give batches more memory (memory_budget=), or make them smaller."
    if stage == "collate":
        return "Leave out collate_fn, or use stoker.PadCollator: both write straight into the batch's memory."
    if stage == "write":
        return "Return arrays or tensors from collate_fn, of which each is copied once, and no other objects."
    if workers > 1 and (held_up := _held_up(profile)) is not None:
        return held_up
    if profile.cpu_share is not None and profile.cpu_share <= OFF_CPU and workers:
        return f"Pass threads_per_worker=8: samples wait, and {workers} processes can wait for more of them at once."
    if 0 < workers < cpus:
        return f"Pass num_workers={cpus}: {workers} of {cpus} CPUs make batches."
    if stage == "fetch":
        named = _slow_step(profile)
        what = f"its slowest transform ({named})" if named else "samples (a faster decoder, smaller files, a cache)"
        return f"Make {what} cheaper, or add CPUs."
    return None


def _less(workers: int, cpus: int) -> str:
    if workers > cpus:
        return f"Pass num_workers={cpus}: {workers} workers share {cpus} CPUs."
    return "Measure again while nothing else runs."


def _held_up(profile: ProfileFigures) -> str | None:
    """Returns the change for workers that idle because few batches take much longer than others."""
    idle = sum(worker.idle for worker in profile.workers) / max(1, len(profile.workers))
    fetch = profile.stages["fetch"]
    if idle < IDLE or fetch.longest < UNEVEN * fetch.median:
        return None
    return (
        f"Raise prefetch_factor: workers idle {idle:.0%} of their time behind slow batches (the longest took "
        f"{_ms(fetch.longest)}, the median {_ms(fetch.median)}). See the slowest samples."
    )


def _ms(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


@dataclass(frozen=True)
class SlowSample:
    """A sample that took long.

    Attributes:
        index: of the sample, None for a stream.
        description: the dataset's `describe(index)`, or None.
        cpu: CPU seconds of them; the rest was waiting.
        batch: number of its batch in the epoch.
    """

    index: Any
    description: str | None
    seconds: float
    cpu: float
    batch: int
    place: int
    worker: int


@dataclass(frozen=True)
class ProfileFigures:
    """The measurements of an epoch. `LoaderProfile`, which adds the verdict, describes the attributes."""

    dataset: str
    num_workers: int
    batches: int
    samples: int
    errors: int
    seconds: float
    first: float
    wait: StageTimes
    step: StageTimes
    held: StageTimes | None
    gain: float
    is_measured: bool
    stages: dict[str, StageTimes]
    each: StageTimes
    cpu_share: float | None
    slowest: tuple[SlowSample, ...]
    steps: tuple[StepSums, ...]
    workers: tuple[WorkerUse, ...]
    epochs: int = 1
    starts: float = 0.0
    stacks: tuple[StackCount, ...] = ()
    sampler: str | None = None
    sampled: float = 0.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({"sampler": None, "sampled": 0.0, **state})  # a pickle of before has neither

    @property
    def share(self) -> float:
        """Returns the share of its time that the loop waited, without the first batch."""
        whole = self.wait.seconds + self.step.seconds
        return self.wait.seconds / whole if whole else 0.0

    @property
    def rate(self) -> float:
        """Returns the samples for each second of the loop; 0 before the second batch."""
        return self.samples / self.seconds if self.batches > 1 and self.seconds > 0 else 0.0
