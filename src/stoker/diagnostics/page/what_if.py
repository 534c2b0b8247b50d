"""The measured figures from which the page's simulation starts. Pure: a measured loader in, plain values out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

from stoker.diagnostics.measurements import MeasuredLoader, Span, Work
from stoker.diagnostics.process_tree import TreeSample
from stoker.diagnostics.recorder import WORKS

GROUPS = 100
"""Values that stand for a distribution."""

ENOUGH = 8
"""Batches of which the making was recorded, from which on there is a simulation."""


def what_if(loader: MeasuredLoader, samples: Sequence[TreeSample], cpus: int) -> dict[str, Any] | None:
    """Returns what the simulation of a loader needs; None if too little is known of it.

    Times are seconds. `work`, `step` are distributions: means of equal groups of the sorted times.

    Args:
        loader: measured with its workers.
        samples: of all processes.
        cpus: that the program may use.
    """
    about, known = loader.about, loader.summary(samples)
    workers, batch_size = about.get("num_workers"), known.samples / max(1, known.batches)
    works = [work for made in loader.works for work in made]
    if len(works) < ENOUGH or known.batches - known.epochs < ENOUGH or type(workers) is not int or batch_size < 0.5:
        return None
    epochs = [epoch for epoch in loader.epochs if any(span.batches for span in epoch.spans)]
    taken = [epoch.spans[0].asked - epoch.ready for epoch in epochs]
    own = known.spent - known.waited - sum(max(0.0, one) for one in taken)
    steps = [after.asked - span.got for epoch in epochs for span, after in itertools.pairwise(epoch.spans)]
    count = max(1, known.batches)
    hand, take = handing_over(loader) if workers else (0.0, 0.0)
    first = fmean(epoch.spans[0].got - epoch.begun for epoch in epochs)
    wall, used = (sum(times) for times in zip(*((work.seconds, work.cpu) for work in works), strict=True))
    share = min(1.0, used / wall) if wall else 0.0
    steps_cpu = max(0.0, known.cpu - count * used / len(works))
    return {
        "workers": workers,
        "prefetch": about.get("prefetch_factor") or 2,
        "batch_size": batch_size,
        "in_turn": about["engine"] == "torch",
        "work": groups([work.seconds for work in works]),
        "work_cpu": share,
        "step": scaled(groups(steps), own / count) if steps else [own / count],
        "step_cpu": min(float(cpus), steps_cpu / own) if own > 0 else 0.0,
        "hand": hand,
        "take": take,
        "start": max(0.0, first - wall / len(works) - hand - take),
        "start_each": fmean(epoch.ready - epoch.begun for epoch in epochs) / max(1, workers),
        "end": sum(span.waited for epoch in epochs for span in epoch.spans if not span.batches) / len(epochs),
        "batches": count / len(epochs),
        "cpus": cpus,
        "batch_bytes": median(loader.sizes) if loader.sizes else None,
        "measured": {
            "rate": known.rate,
            "share": known.share,
            "first": first,
            "cpus": known.cpu / known.spent if known.spent else 0.0,
        },
    }


def groups(values: Sequence[float]) -> list[float]:
    """Returns at most `GROUPS` values with the distribution and the mean of many."""
    ordered, number = sorted(values), min(GROUPS, len(values))
    edges = [round(len(ordered) * part / number) for part in range(number + 1)]
    return [fmean(ordered[low:high]) for low, high in itertools.pairwise(edges)]


def scaled(values: Sequence[float], mean: float) -> list[float]:
    """Returns values in proportion, with another mean."""
    now = fmean(values)
    return [value * max(0.0, mean) / now for value in values] if now > 0 else [max(0.0, mean)] * len(values)


def handing_over(loader: MeasuredLoader) -> tuple[float, float]:
    """Returns two times of a batch: from its worker's end to a loop that waits for it, and of taking one that is ready.

    If the loop asks for a batch that is made already, `next()` takes the second time; if it waited before, it has the
    batch after both.
    """
    ready, waited = [], []
    for number, works in enumerate(loader.works):
        ends = ends_in_order(works, loader.about["num_workers"], loader.about["engine"] == "torch")
        known = int(0.8 * len(ends))  # a worker may end before it has written its last ones
        batch = 0
        for span in _until_next_start(loader, number) if works else ():
            if span.batches == 1 and 0 < batch < known:
                end = ends[batch]
                (ready if end <= span.asked else waited).append(span.got - max(span.asked, end))
            batch += span.batches
    late = [max(0.0, one) for one in waited]
    if ready and late:
        take = fmean(ready)
        if fmean(late) < take:  # the machine was busy with others at times: what all of them took, on average
            return 0.0, fmean(ready + late)
        return fmean(late) - take, take
    whole = fmean(ready) if ready else fmean(late) if late else 0.0
    return (0.0, whole) if ready else (whole / 2, whole / 2)


def ends_in_order(works: Sequence[Work], workers: int, in_turn: bool) -> list[float]:
    """Returns when each batch was made, in the order of delivery, as long as all batches were recorded.

    torch's workers make batches in turn. Where any worker makes the next one, the k-th batch that was made stands for
    the k-th that is delivered.
    """
    by_pid: dict[int, list[float]] = {}
    for work in works:
        by_pid.setdefault(work.pid, []).append(work.begun + work.seconds)
    each = [sorted(by_pid[pid])[:WORKS] for pid in sorted(by_pid)]
    if in_turn and len(each) == workers:
        return [end for turn in zip(*each, strict=False) for end in turn]
    return sorted(end for ends in each for end in ends)


def _until_next_start(loader: MeasuredLoader, number: int) -> Iterator[Span]:
    """Yields the spans of an epoch that started workers, and of those that went on with the same workers."""
    for place in range(number, len(loader.epochs)):
        if place > number and loader.works[place]:
            return
        yield from loader.epochs[place].spans
