"""The measured figures from which the page's simulation starts. Pure: a measured loader in, plain values out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

from stoker.diagnostics.measurements import MeasuredLoader, Span
from stoker.diagnostics.process_tree import TreeSample
from stoker.diagnostics.recorder import WORKS
from stoker.diagnostics.workers.batch_making import MadeBatch

KEPT = 300
"""Batches whose times are replayed, in their order: a cause that slows several workers at once slows them here too."""

ENOUGH = 8
"""Batches of which the making was recorded, from which on there is a simulation."""


def what_if(loader: MeasuredLoader, samples: Sequence[TreeSample], cpus: int) -> dict[str, Any] | None:
    """Returns the figures for the simulation of a loader; None if too little is known of it.

    Times are seconds. `work`, `take` and `step` are those of the first batches, in the order of delivery. Of batches
    that workers make together, each record is the time that a whole batch takes one worker: `parts` are averaged.

    Args:
        loader: measured with its workers.
        samples: of all processes.
        cpus: that the program may use.
    """
    works = [work for made in loader.works for work in made]
    if len(works) < ENOUGH:
        return None
    about, known = loader.about, loader.summary(samples)
    workers, batch_size = about.get("num_workers"), known.samples / max(1, known.batches)
    if known.batches - known.epochs < ENOUGH or type(workers) is not int or batch_size < 0.5:
        return None
    is_split = len(works) > 1.05 * known.batches + ENOUGH  # several workers make a batch together
    parts = max(2, round(len(works) / known.batches)) if is_split else 1
    epochs = [epoch for epoch in loader.epochs if any(span.batches for span in epoch.spans)]
    taken = [epoch.spans[0].asked - epoch.ready for epoch in epochs]
    own = known.spent - known.waited - sum(max(0.0, one) for one in taken)
    steps = [after.asked - span.got for epoch in epochs for span, after in itertools.pairwise(epoch.spans)]
    count = max(1, known.batches)
    hand, take = handing_over(loader) if workers and parts == 1 else (0.0, [0.0])
    made = [work.seconds for one in loader.works for work in in_order(one, workers, about["engine"] == "torch")]
    made = [fmean(made[place : place + parts]) for place in range(0, len(made), parts)]
    first = fmean(epoch.spans[0].got - epoch.begun for epoch in epochs)
    wall, used = (sum(times) for times in zip(*((work.seconds, work.cpu) for work in works), strict=True))
    share = min(1.0, used / wall) if wall else 0.0
    steps_cpu = max(0.0, known.cpu - count * used / len(works))
    return {
        "workers": workers,
        "prefetch": about.get("prefetch_factor") or 2,
        "batch_size": batch_size,
        "parts": parts,
        "in_turn": about["engine"] == "torch",
        "work": kept(made, wall / len(works)),
        "work_cpu": share,
        "step": kept(steps, own / count),
        "step_cpu": min(float(cpus), steps_cpu / own) if own > 0 else 0.0,
        "hand": hand,
        "take": take,
        "start": max(0.0, first - made[0] - hand - take[0]),
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


def kept(values: Sequence[float], mean: float) -> list[float]:
    """Returns the first `KEPT` values, in proportion, with the mean of all."""
    some = values[:KEPT]
    now = fmean(some) if some else 0.0
    return [float(f"{value * max(0.0, mean) / now:.5g}") for value in some] if now > 0 else [max(0.0, mean)]


def handing_over(loader: MeasuredLoader) -> tuple[float, list[float]]:
    """Returns the time from a worker's end to a loop that waits for the batch, and times of taking one that is ready.

    If the loop asks for a batch that is made already, `next()` takes the second time; if it waited before, it has the
    batch after both. The second ones are in the order of delivery.
    """
    seen = []
    for number, works in enumerate(loader.works):
        in_turn = loader.about["engine"] == "torch"
        ordered = in_order(works, loader.about["num_workers"], in_turn)
        known = len(ordered) if in_turn else int(0.8 * len(ordered))  # a worker may end without its last ones written
        batch = 0
        for span in _until_next_start(loader, number) if works else ():
            if span.batches == 1 and batch < known:
                end = ordered[batch].begun + ordered[batch].seconds
                seen.append((end <= span.asked, max(0.0, span.got - max(span.asked, end))))
            batch += span.batches
    if not seen:
        return 0.0, [0.0]
    ready, late = ([time for is_ready, time in seen[1:] if is_ready is kind] for kind in (True, False))
    hand = max(0.0, fmean(late) - fmean(ready)) if ready and late else 0.0 if ready or not late else fmean(late) / 2
    takes = [time if is_ready else max(0.0, time - hand) for is_ready, time in seen]
    return hand, kept(takes, fmean(takes))


def in_order(works: Sequence[MadeBatch], workers: int, in_turn: bool) -> list[MadeBatch]:
    """Returns the made batches in the order of delivery, as long as all batches were recorded.

    torch's workers make batches in turn. Where any worker makes the next one, the k-th batch that was made stands for
    the k-th that is delivered.
    """
    by_pid: dict[int, list[MadeBatch]] = {}
    for work in works:
        by_pid.setdefault(work.pid, []).append(work)
    each = [sorted(by_pid[pid])[:WORKS] for pid in sorted(by_pid)]
    if in_turn and len(each) == workers:
        return [work for turn in zip(*each, strict=False) for work in turn]
    return sorted((work for one in each for work in one), key=lambda work: work.begun + work.seconds)


def _until_next_start(loader: MeasuredLoader, number: int) -> Iterator[Span]:
    """Yields the spans of an epoch that started workers, and of those that went on with the same workers."""
    for place in range(number, len(loader.epochs)):
        if place > number and loader.works[place]:
            return
        yield from loader.epochs[place].spans
