"""The report of a measured run as one HTML file: the verdict, the timeline, and the figures of the simulation.

`page/` holds the page, its script and its style. The timeline is a canvas of our own, uPlot draws the curves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

from stoker._core.machine.gpu_activity import used_gpus
from stoker.diagnostics.batch_making import MadeBatch
from stoker.diagnostics.composition.composition import pictures
from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader, Measurements, Span
from stoker.diagnostics.page.html_file import VERSION, write_page
from stoker.diagnostics.process_tree import TreeSample
from stoker.diagnostics.recorder import WORKS
from stoker.diagnostics.run_findings import growth_curves
from stoker.diagnostics.run_result import as_dict
from stoker.diagnostics.verdict import BUSY, are_computing

SPANS = 20_000
"""Spans in the page, some 35 bytes each; neighbours are joined until there are no more."""

EPOCHS = 4000
"""Epochs in the page, of all loaders; neighbours are joined until there are no more."""

BINS = 200
"""Points of each curve."""

LONGEST = 20
"""Waits that are listed."""

MOST_LOADERS = 40
"""Loaders in the page; those with the least time are left out."""


def write_report(known: Measurements, path: str, title: str, engine: str) -> None:
    """Writes the report of a run, some 100 kB to 1 MB."""
    data = {"report": VERSION, "program": title, **page_data(known, engine)}
    scripts = ("what_if_model", "findings", "page", "what_if", "composition")
    write_page(path, "page", "stoker run", "Loaders", title, data, scripts)


def page_data(known: Measurements, engine: str) -> dict[str, Any]:
    """Returns what the page shows, as plain JSON values. Times of spans are microseconds from the start of the run."""
    whole = as_dict(known)
    by_time = sorted(range(len(whole["loaders"])), key=lambda number: -whole["loaders"][number]["seconds"])
    numbers = sorted(by_time[:MOST_LOADERS])
    loaders, shown = [known.loaders[number] for number in numbers], [whole["loaders"][number] for number in numbers]
    passes = [joined_epochs(loader.epochs, EPOCHS // len(loaders)) for loader in loaders]
    step = max(1, -(-sum(len(epoch.spans) for _, epochs in passes for epoch in epochs) // SPANS))
    return {
        **whole,
        "loaders": shown,
        "engine": engine,
        "main": main_loader(shown),
        "spans": [[_epoch(epoch, known.begun, step) for epoch in epochs] for _, epochs in passes],
        "joined": [number for number, _ in passes],
        "over_time": over_time(loaders, known.begun, known.until),
        "processes": (seen := processes(known)),
        "growth_curves": growth_curves(known, loaders, seen["times"]),
        "gpu_curves": gpu_curves(known),
        "stages": [row for loader in loaders for row in stages(loader)],
        "longest": longest(loaders, known.begun),
        "pictures": pictures([loader.noted for loader in loaders]),
        "what_if": [what_if(loader, known.samples, whole["cpus"]) for loader in loaders],
    }


def main_loader(loaders: Sequence[dict[str, Any]]) -> int | None:
    """Returns the number of the loader of the headline: the one that waits most, of those with a verdict."""
    numbers = range(len(loaders))
    return max(numbers, key=lambda one: (loaders[one]["verdict"] != "too short", loaders[one]["waited"]), default=None)


def joined_epochs(epochs: list[EpochSpans], most: int) -> tuple[int, list[EpochSpans]]:
    """Returns how many neighbours are joined so that there are no more epochs than `most`, and the epochs.

    Of joined epochs, each one is a span.
    """
    number = max(1, -(-len(epochs) // most))
    if number == 1:
        return 1, epochs
    groups = [epochs[first : first + number] for first in range(0, len(epochs), number)]
    return number, [EpochSpans(group[0].begun, group[0].begun, [_as_span(one) for one in group]) for group in groups]


def _as_span(epoch: EpochSpans) -> Span:
    return Span(
        epoch.begun,
        epoch.until,
        sum(span.batches for span in epoch.spans),
        epoch.ready - epoch.begun + sum(span.waited for span in epoch.spans),
        sum(span.samples for span in epoch.spans),
    )


def _epoch(epoch: EpochSpans, base: float, step: int) -> dict[str, Any]:
    def when(seconds: float) -> int:
        return round(1e6 * (seconds - base))

    spans = joined(epoch.spans, step)
    return {
        "begun": when(epoch.begun),
        "ready": when(epoch.ready),
        "until": when(epoch.until),
        "spans": [[when(one.asked), when(one.got), one.batches, round(1e6 * one.waited), one.samples] for one in spans],
    }


def joined(spans: list[Span], step: int) -> list[Span]:
    """Returns spans with each `step` neighbours as one."""
    if step == 1:
        return spans
    groups = [spans[first : first + step] for first in range(0, len(spans), step)]
    return [
        Span(group[0].asked, group[-1].got, *(sum(values) for values in zip(*(one[2:] for one in group), strict=True)))
        for group in groups
    ]


def over_time(loaders: list[MeasuredLoader], begin: float, end: float) -> dict[str, Any]:
    """Returns samples per second, and the share of time waited, of each loader in equal parts of the run.

    None stands for a part in which the loader was not in use.
    """
    width = (end - begin) / BINS or 1.0
    curves = []
    for number, loader in enumerate(loaders):
        spent, waited, samples = [0.0] * BINS, [0.0] * BINS, [0.0] * BINS
        restarts = loader.restarts  # its steps lie between the epochs
        for epoch, after in itertools.zip_longest(loader.epochs, loader.epochs[1:]):
            until = after.begun if restarts and after is not None else epoch.until
            _spread(spent, epoch.begun - begin, until - begin, until - epoch.begun, width)
            _spread(waited, epoch.begun - begin, epoch.ready - begin, epoch.ready - epoch.begun, width)
            before = epoch.begun
            for span in epoch.spans:
                _spread(waited, span.asked - begin, span.got - begin, span.waited, width)
                _spread(samples, before - begin, span.got - begin, span.samples, width)
                before = span.got
        used = [seconds > 0.01 * width for seconds in spent]
        rate = [round(count / width, 3) if use else None for count, use in zip(samples, used, strict=True)]
        share = [
            round(min(1.0, part / whole), 4) if use else None
            for part, whole, use in zip(waited, spent, used, strict=True)
        ]
        curves.append({"loader": number, "rate": rate, "share": share})
    return {"times": [round((part + 0.5) * width, 4) for part in range(BINS)], "loaders": curves}


def _spread(bins: list[float], begin: float, end: float, amount: float, width: float) -> None:
    """Adds an amount to the bins that a time covers, in proportion."""
    first, last = (min(max(int(when / width), 0), len(bins) - 1) for when in (begin, end))
    if first == last or end <= begin:
        bins[last] += amount
        return
    for part in range(first, last + 1):
        inside = min(end, (part + 1) * width) - max(begin, part * width)
        bins[part] += amount * max(0.0, inside) / (end - begin)


def processes(known: Measurements) -> dict[str, list[float]]:
    """Returns memory, and CPUs in use since the sample before, of all processes."""
    samples = known.samples[:: max(1, len(known.samples) // 1000)]
    pairs = list(itertools.pairwise(samples))
    return {
        "times": [round(after.time - known.begun, 3) for _, after in pairs],
        "memory": [after.memory for _, after in pairs],
        "cpus": [round(max(0.0, after.cpu - before.cpu) / (after.time - before.time), 3) for before, after in pairs],
    }


def gpu_curves(known: Measurements) -> dict[str, Any]:
    """Returns how busy each GPU of the program was over time, and how much of its memory was in use."""
    samples = known.gpus[:: max(1, len(known.gpus) // 1000)]
    curves = []
    for number in used_gpus(known.gpus):
        readings = [one for one in (sample.readings[number] for sample in samples) if one is not None]
        curves.append(
            {
                "name": f"GPU {number}, {readings[0].name}",
                "busy": [one.busy for one in readings],
                "memory": [one.used for one in readings],
            }
        )
    return {"times": [round(sample.time - known.begun, 3) for sample in samples], "gpus": curves}


def stages(loader: MeasuredLoader) -> Iterator[dict[str, Any]]:
    """Yields median, 90 %, 99 %, longest and sum of the waits and the steps of a loader's single batches."""
    waits, steps = [], []
    for epoch in loader.epochs:
        single = [span for span in epoch.spans if span.batches <= 1]
        waits += [span.waited for span in single if span.batches]
        steps += [after.asked - span.got for span, after in itertools.pairwise(single)]
    for stage, times in (("wait for a batch", sorted(waits)), ("your step", sorted(steps))):
        if times:
            places = (len(times) // 2, int(0.9 * len(times)), int(0.99 * len(times)), len(times) - 1)
            yield {"loader": loader.name, "stage": stage, "times": [*(times[place] for place in places), sum(times)]}


def longest(loaders: list[MeasuredLoader], base: float) -> list[dict[str, Any]]:
    """Returns the longest waits for single batches, the longest first."""
    found = []
    for number, loader in enumerate(loaders):
        for count, epoch in enumerate(loader.epochs):
            batch = 0
            for span in epoch.spans:
                if span.batches == 1:
                    place = {"loader": number, "epoch": count, "batch": batch}
                    found.append({**place, "waited": span.waited, "at": span.asked - base})
                batch += span.batches
    return sorted(found, key=lambda one: -float(one["waited"]))[:LONGEST]


KEPT = 300
"""Batches whose times are replayed, in their order: a cause that slows several workers at once slows them here too."""

ENOUGH = 8
"""Batches of which the making was recorded, from which on there is a simulation."""

COMPUTING = 0.2
"""Part of the time of making a batch that is computing, from which on there is none: it erred by 0.13 to 0.62."""


def what_if(loader: MeasuredLoader, samples: Sequence[TreeSample], cpus: int) -> dict[str, Any] | None:
    """Returns the figures for the simulation of a loader; None if too little is known of it, as of workers on other
    machines.

    Where making a batch computes, or the CPUs were in use, that is the only figure: `computing`, and `in_use`.

    Times are seconds. `work`, `take` and `step` are those of the first batches, in the order of delivery. Of batches
    that workers make together, each record is the time that a whole batch takes one worker: `parts` are averaged.
    """
    works = [work for made in loader.works for work in made]
    if len(works) < ENOUGH or loader.machines:
        return None
    about, known = loader.about, loader.summary(samples)
    workers, batch_size = about.get("num_workers"), known.samples / max(1, known.batches)
    if known.batches - known.epochs < ENOUGH or type(workers) is not int or batch_size < 0.5:
        return None
    is_split = len(works) > 1.05 * known.batches + ENOUGH  # several workers make a batch together
    parts = max(2, round(len(works) / known.batches)) if is_split else 1
    wall, used = (sum(times) for times in zip(*((work.seconds, work.cpu) for work in works), strict=True))
    share, in_use = min(1.0, used / wall) if wall else 0.0, known.cpu / known.spent if known.spent else 0.0
    if share >= COMPUTING or in_use >= BUSY * cpus or are_computing(known, cpus):
        return {"computing": share, "in_use": in_use, "cpus": cpus}
    epochs = [epoch for epoch in loader.epochs if any(span.batches for span in epoch.spans)]
    taken = [epoch.spans[0].asked - epoch.ready for epoch in epochs]
    own = known.spent - known.waited - sum(max(0.0, one) for one in taken)
    steps = [after.asked - span.got for epoch in epochs for span, after in itertools.pairwise(epoch.spans)]
    count = max(1, known.batches)
    hand, take = handing_over(loader) if workers and parts == 1 else (0.0, [0.0])
    made = [work.seconds for one in loader.works for work in in_order(one, workers, about["engine"] == "torch")]
    made = [fmean(made[place : place + parts]) for place in range(0, len(made), parts)]
    first = fmean(epoch.spans[0].got - epoch.begun for epoch in epochs)
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
        "measured": {"rate": known.rate, "share": known.share, "first": first, "cpus": in_use},
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
