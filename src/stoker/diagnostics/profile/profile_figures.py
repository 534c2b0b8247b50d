"""`ProfileFigures`: the measurements of an epoch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from stoker._engine.timings import StackCount, StepSums
from stoker.diagnostics.profile.batch_sums import WorkerUse
from stoker.diagnostics.profile.stage_times import StageTimes


@dataclass(frozen=True)
class SlowSample:
    """A sample that took long.

    Attributes:
        index: of the sample, None for a stream.
        description: the dataset's `describe(index)`, or None.
        seconds: that it took.
        cpu: CPU seconds of them; the rest was waiting.
        batch: number of its batch in the epoch.
        place: its place in the batch.
        worker: number of the worker.
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

    @property
    def share(self) -> float:
        """Returns the share of its time that the loop waited, without the first batch."""
        whole = self.wait.seconds + self.step.seconds
        return self.wait.seconds / whole if whole else 0.0

    @property
    def rate(self) -> float:
        """Returns the samples for each second of the loop; 0 before the second batch."""
        return self.samples / self.seconds if self.batches > 1 and self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures as plain JSON values."""
        plain = {
            "dataset": self.dataset,
            "num_workers": self.num_workers,
            "batches": self.batches,
            "samples": self.samples,
            "errors": self.errors,
            "seconds": self.seconds,
            "rate": self.rate,
            "first": self.first,
            "share": self.share,
            "wait": self.wait.as_dict(),
            "step": self.step.as_dict(),
            "held": None if self.held is None else self.held.as_dict(),
            "gain": self.gain,
            "is_measured": self.is_measured,
            "stages": {name: times.as_dict() for name, times in self.stages.items()},
            "each": self.each.as_dict(),
            "cpu_share": self.cpu_share,
            "slowest": [vars(sample) for sample in self.slowest],
            "steps": [step._asdict() for step in self.steps],
            "workers": [worker._asdict() for worker in self.workers],
            "epochs": self.epochs,
            "starts": self.starts,
            "stacks": [list(one) for one in self.stacks],
        }
        values: dict[str, Any] = json.loads(json.dumps(plain, default=repr))
        return values
