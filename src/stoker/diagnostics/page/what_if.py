"""The measured figures from which the page's simulation starts. Pure: a measured loader in, plain values out."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from stoker.diagnostics.measurements import MeasuredLoader, Span, Work
from stoker.diagnostics.process_tree import TreeSample

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
    full = [span for epoch in loader.epochs for span in epoch.spans if span.batches]
    if len(works) < ENOUGH or known.batches - known.epochs < ENOUGH or type(workers) is not int or batch_size < 0.5:
        return None
    epochs = [epoch for epoch in loader.epochs if any(span.batches for span in epoch.spans)]
    taken = [epoch.spans[0].asked - epoch.ready for epoch in epochs]
    own = known.spent - known.waited - sum(max(0.0, one) for one in taken)
    steps = [after.asked - span.got for epoch in epochs for span, after in itertools.pairwise(epoch.spans)]
    count = max(1, known.batches)
    hand, take = handing_over(full, works) if workers else (0.0, 0.0)
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


def handing_over(spans: Sequence[Span], works: Sequence[Work]) -> tuple[float, float]:
    """Returns two times of a batch: from its worker to a loop that waits for it, and of taking one that is ready.

    Both are seen where a worker ended a batch while the loop waited: from then until the loop had it. Of that, the
    second is what the shortest waits take, and half of it at most.
    """
    ends = sorted(work.begun + work.seconds for work in works)
    single = [span for span in spans if span.batches == 1] or list(spans)
    waits = sorted(span.waited / span.batches for span in single)
    seen = []
    for span in single:
        place = bisect.bisect_right(ends, span.got) - 1
        if place >= 0 and ends[place] > span.asked:
            seen.append(span.got - ends[place])
    whole = median(seen) if seen else median(waits)
    take = min(waits[len(waits) // 10], whole / 2)
    return whole - take, take
