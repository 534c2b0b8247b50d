"""`LoaderProfile`: where the time of an epoch went, and the change to make; also as tables of text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from stoker.diagnostics.profile.batch_sums import StageTimes, WorkerUse
from stoker.diagnostics.profile.profile_verdict import ProfileFigures, ProfileVerdict, SlowSample
from stoker.extend import StackCount, StepSums


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
        sampler: the class of the sampler; None if it is not known.
        sampled: of the seconds waited, those inside the sampler.
        verdict: the conclusion.
    """

    verdict: ProfileVerdict = field(kw_only=True)

    def as_dict(self) -> dict[str, Any]:
        """Returns the profile as plain JSON values."""
        plain = {
            **vars(self),
            "rate": self.rate,
            "share": self.share,
            "steps": [step._asdict() for step in self.steps],
            "workers": [worker._asdict() for worker in self.workers],
        }
        values: dict[str, Any] = json.loads(json.dumps(plain, default=_plain))
        return values

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


def _plain(value: Any) -> Any:
    """Returns a part of a profile as plain values; what JSON does not know, such as the index of a sample, as text."""
    if isinstance(value, StageTimes):
        return value.as_dict()
    return vars(value) if isinstance(value, SlowSample | ProfileVerdict) else repr(value)


Row = Mapping[str, str]

_NAMES = {"memory": "wait for memory"}


def heading(profile: ProfileFigures) -> str:
    """Returns the measurements in a line."""
    made = f"{profile.num_workers} workers" if profile.num_workers else "no workers"
    failed = f", {profile.errors} of them with an error" if profile.errors else ""
    rate = f": {profile.rate:,.0f} samples/s" if profile.rate else ""
    return f"{profile.batches:,} batches{failed}, {profile.samples:,} samples of {profile.dataset}, {made}{rate}"


def tables(profile: ProfileFigures) -> Iterator[tuple[str, list[Row]]]:
    """Yields each table that has rows, with its title."""
    loop = profile.wait.seconds + profile.step.seconds
    rows = [_row("loop", "waits for a batch", profile.wait, loop), _row("loop", "its own step", profile.step, loop)]
    if profile.held is not None:
        rows.append(_row("loop", "step on a held batch", profile.held, 0))
    yield _of_loop(profile), rows
    made = {name: times for name, times in profile.stages.items() if times.count}
    whole = sum(times.seconds for times in made.values())
    if made:
        where = "workers" if profile.num_workers else "training process"
        stages = [_row("stage", _NAMES.get(name, name), times, whole) for name, times in made.items()]
        if profile.each.count:
            stages.append(_row("stage", "one sample", profile.each, 0))
        on_cpu = "" if profile.cpu_share is None else f"; {profile.cpu_share:.0%} of fetch is CPU time"
        yield f"A batch, in the {where}{on_cpu}", stages
    if profile.steps:
        yield "Transforms", list(_steps(profile))
    if len(profile.workers) > 1:
        yield (
            "Workers",
            [
                {
                    "worker": str(use.worker),
                    "parts": f"{use.units:,}",
                    "busy": f"{use.busy:.0%}",
                    "wait for memory": f"{use.memory:.0%}",
                    "idle": f"{use.idle:.0%}",
                }
                for use in profile.workers
            ],
        )
    if profile.slowest:
        yield "Slowest samples", list(_slowest(profile))


def as_text(profile: ProfileFigures, verdict: str) -> str:
    """Returns all of it as text."""
    parts = [heading(profile), verdict]
    parts += [f"{title}\n{_lines(rows)}" for title, rows in tables(profile)]
    return "\n\n".join(parts)


def _row(name: str, what: str, times: StageTimes, whole: float) -> Row:
    return {
        name: what,
        "total": _time(times.seconds),
        "share": f"{times.seconds / whole:.1%}" if whole else "",
        "median": _time(times.median),
        "95 %": _time(times.p95),
        "longest": _time(times.longest),
    }


def _of_loop(profile: ProfileFigures) -> str:
    title = f"The training loop, behind the first batch, which came after {_time(profile.first)}"
    if profile.sampled > 0.1 * (profile.first + profile.wait.seconds):
        title += f"; of its waits, {_time(profile.sampled)} were inside {profile.sampler}"
    if not profile.starts:
        return title
    return f"{title}; of its waits, {_time(profile.starts)} were for the first batches of later epochs"


def _steps(profile: ProfileFigures) -> Iterator[Row]:
    fetch = profile.stages["fetch"].seconds
    for step in profile.steps:
        yield {
            "step": step.name,
            "calls": f"{step.calls:,}",
            "total": _time(step.seconds),
            "of fetch": f"{step.seconds / fetch:.1%}" if fetch else "",
            "mean": _time(step.seconds / max(1, step.calls)),
            "longest": _time(step.longest),
        }


def _slowest(profile: ProfileFigures) -> Iterator[Row]:
    for sample in profile.slowest:
        index = f"sample {sample.place} of batch {sample.batch}" if sample.index is None else str(sample.index)
        yield {
            "sample": index if sample.description is None else f"{index}  {sample.description}",
            "time": _time(sample.seconds),
            "CPU": _time(sample.cpu),
            "batch": f"{sample.batch:,}",
            "worker": str(sample.worker),
        }


def _lines(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}

    def line(values: Mapping[str, str]) -> str:
        first, *others = names
        cells = [f"  {values[first]:<{widths[first]}}", *(f"{values[name]:>{widths[name]}}" for name in others)]
        return "  ".join(cells).rstrip()

    return "\n".join([line({name: name for name in names}), *map(line, rows)])


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} us"
