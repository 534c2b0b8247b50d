"""`LoaderProfile`: where the time of an epoch went, and the change to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from stoker._engine.timings import StackCount, StepSums
from stoker.diagnostics.profile.batch_sums import WorkerUse
from stoker.diagnostics.profile.profile_figures import ProfileFigures, SlowSample
from stoker.diagnostics.profile.profile_tables import as_text
from stoker.diagnostics.profile.profile_verdict import ProfileVerdict
from stoker.diagnostics.profile.stage_times import StageTimes


@dataclass(frozen=True)
class LoaderProfile(ProfileFigures):
    """Where the time of an epoch went, as returned by `loader.profile()`. `print` it, or take `as_dict()`.

    All times are seconds. Those of stages are worker time, of all workers together; those of the loop are wall time
    without the first batch, which contains the start of the workers.

    Attributes:
        dataset: the class of the dataset.
        num_workers: number of workers; 0 if the training process made the batches.
        batches: number of batches received, those with an error included.
        samples: number of samples received.
        errors: number of batches whose error was raised.
        seconds: from the first batch to the end of the last step.
        first: seconds from `iter(loader)` to the first batch.
        wait: times that the loop waited for a batch.
        step: times of the loop's own steps.
        held: times of steps on a batch that was held and given again and again; None if there were none.
        gain: how many times as fast the loop would be at most if it never waited for a batch.
        is_measured: whether `gain` was measured by steps on a held batch; else it follows from the time waited.
        stages: times of a batch by stage: "fetch", "collate", "write" (into shared memory), "memory" (waiting for it),
            "transport" (from there to the loop, with pinning).
        each: times of single samples; none where a batch is fetched at once, by threads, or is very large.
        cpu_share: share of the fetching time in which the worker's thread had a CPU; None if other threads fetch.
        slowest: the slowest samples.
        steps: calls and times of the steps of each `Compose`, in order.
        workers: the work of each worker.
        epochs: epochs that were begun: one, but for a program's loop in `stoker profile SCRIPT`.
        starts: of the seconds waited, those for the first batches of the epochs after the first.
        stacks: of the workers, as they were seen every 10 ms, with `profile(stacks=True)`: estimates. The most frequent
            first.
        verdict: the conclusion.
    """

    verdict: ProfileVerdict = field(kw_only=True)

    def as_dict(self) -> dict[str, Any]:
        """Returns the profile as plain JSON values."""
        return {**super().as_dict(), "verdict": vars(self.verdict)}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> LoaderProfile:
        """Returns the profile that `as_dict` gave; indices that JSON does not know stay texts."""
        found = {one.name: values[one.name] for one in fields(cls)}
        for name in ("wait", "step", "each"):
            found[name] = StageTimes.of_dict(found[name])
        found["held"] = None if found["held"] is None else StageTimes.of_dict(found["held"])
        found["stages"] = {name: StageTimes.of_dict(times) for name, times in found["stages"].items()}
        found["slowest"] = tuple(SlowSample(**sample) for sample in found["slowest"])
        found["steps"] = tuple(StepSums(**step) for step in found["steps"])
        found["workers"] = tuple(WorkerUse(**use) for use in found["workers"])
        found["stacks"] = tuple(StackCount(*one) for one in found["stacks"])
        return cls(**{**found, "verdict": ProfileVerdict(**found["verdict"])})

    def __str__(self) -> str:
        return as_text(self, str(self.verdict))
