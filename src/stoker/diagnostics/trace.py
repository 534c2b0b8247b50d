"""The timeline of a measured run as Chrome's JSON, which ui.perfetto.dev, chrome://tracing and speedscope open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from stoker.diagnostics.measurements import MeasuredLoader, Measurements


def write_trace(known: Measurements, path: str) -> None:
    """Writes the trace of a run.

    Each loader is a track, on which waiting for a batch and the step with it follow each other, within an epoch.
    Memory and processes are counters. Times are microseconds after `baseTimeNanoseconds`, as torch.profiler writes
    them.

    Raises:
        OSError: the file cannot be written.
    """
    base = known.begun
    trace = {
        "baseTimeNanoseconds": time.time_ns() - int((time.perf_counter() - base) * 1e9),
        "displayTimeUnit": "ms",
        "traceEvents": [*_counters(known, base), *_tracks(known, base)],
    }
    with open(path, "w") as file:
        json.dump(trace, file)


def _counters(known: Measurements, base: float) -> Iterator[dict[str, Any]]:
    for sample in known.samples:
        at = {"ph": "C", "pid": 0, "tid": 0, "ts": 1e6 * (sample.time - base)}
        yield {**at, "name": "memory in MiB", "args": {"all processes": sample.memory / 2**20}}
        yield {**at, "name": "processes", "args": {"number": sample.processes}}


def _tracks(known: Measurements, base: float) -> Iterator[dict[str, Any]]:
    for number, loader in enumerate(known.loaders):
        pid, name = loader.about["pid"], f"{loader.about['site']} {loader.about['dataset']}"
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": name}}
        for event in _events(loader):
            yield {"ph": "X", "pid": pid, "tid": number, **event, "ts": 1e6 * (event["ts"] - base)}


def _events(loader: MeasuredLoader) -> Iterator[dict[str, Any]]:
    for count, epoch in enumerate(loader.epochs):
        yield _event(f"epoch {count}", epoch.begun, epoch.until)
        yield _event("iter()", epoch.begun, epoch.ready)
        batch = 0
        for span, following in zip(epoch.spans, [*epoch.spans[1:], None], strict=True):
            several = span.batches > 1
            name = f"batches {batch} to {batch + span.batches - 1}" if several else f"wait for batch {batch}"
            yield _event(name if span.batches else "end", span.asked, span.got, waited=span.waited)
            batch += span.batches
            if following is not None:
                yield _event("step", span.got, following.asked)


def _event(name: str, begin: float, end: float, **args: float) -> dict[str, Any]:
    return {"name": name, "ts": begin, "dur": 1e6 * (end - begin), "args": args}
