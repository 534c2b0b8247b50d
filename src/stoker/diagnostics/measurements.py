"""`Measurements`: what a run has recorded, the summary of each of its loaders, and the timeline as Chrome's JSON."""

from __future__ import annotations

import bisect
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from stoker._core.machine.gpu_activity import GpuSample, busy_between, used_gpus
from stoker.diagnostics.batch_making import BatchMaking, MadeBatch, batch_making
from stoker.diagnostics.fault_log import FaultLog
from stoker.diagnostics.process_tree import ProcessMemory, TreeSample


class Span(NamedTuple):
    """Batches that arrived one after the other: requested from `asked` on, the last one received at `got`.

    Times are seconds of `time.perf_counter()`. `batches` is 0 for the request that found the end of an epoch.
    """

    asked: float
    got: float
    batches: int
    waited: float
    samples: int


@dataclass
class EpochSpans:
    """One pass over a loader.

    Attributes:
        begun: `iter(loader)` was called.
        ready: it returned.
    """

    begun: float
    ready: float
    spans: list[Span] = field(default_factory=list)

    @property
    def until(self) -> float:
        """Returns the end of the last span."""
        return self.spans[-1].got if self.spans else self.ready


@dataclass
class MeasuredLoader:
    """A loader of a measured program; several of the same line and settings are one.

    Attributes:
        about: settings, engine, `site` (the line that iterates), `pid`, `rank`.
        made: how many loaders there were.
        works: batches made, of each epoch that started workers a list. Of many, a part.
        sizes: bytes of some batches.
        jpegs: of each epoch with workers, seconds in which Pillow decoded whole JPEGs.
        sampled: seconds inside the sampler.
        noted: notes of the samples of some epochs, as they were written.
        faults: of its samples and workers.
        chosen: the number of workers that `--auto` has chosen, in words.
        copies: of its batches to devices, up to the end of its latest epoch or later (`Report.copies`).
        machines: others that made batches of its latest epoch, as of then or later (`Report.elsewhere()`).
    """

    about: dict[str, Any]
    epochs: list[EpochSpans] = field(default_factory=list)
    made: int = 1
    works: list[list[MadeBatch]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    jpegs: list[list[float]] = field(default_factory=list)
    sampled: float = 0.0
    noted: list[dict[str, Any]] = field(default_factory=list)
    faults: FaultLog = field(default_factory=FaultLog)
    chosen: str | None = None
    copies: dict[str, float] = field(default_factory=dict)
    machines: dict[str, Any] = field(default_factory=dict)

    @property
    def restarts(self) -> bool:
        """Returns whether an epoch was begun for each batch, and left, as `next(iter(loader))` does."""
        batches = sum(span.batches for epoch in self.epochs for span in epoch.spans)
        ended = sum(bool(epoch.spans) and not epoch.spans[-1].batches for epoch in self.epochs)
        return are_single(batches, len(self.epochs)) and 2 * ended < len(self.epochs)

    @property
    def name(self) -> str:
        """Returns the line that iterates, and the rank if there is one."""
        return _named(self.about)

    def summary(self, samples: Sequence[TreeSample] = (), gpus: Sequence[GpuSample] = ()) -> LoaderSummary:
        """Returns the sums over all epochs.

        Args:
            samples: of the processes, from which CPU time and memory during the epochs follow. Without them the times
                of batches in workers are left out, too.
        """
        waited = first = steady_waited = steady = spent = cpu = used = idle = ends = 0.0
        batches = count = 0
        peak = 0
        busy: list[tuple[float, float]] = []
        waits: list[float] = []
        on_gpus = used_gpus(gpus)  # once: there may be very many epochs
        for epoch in self.epochs:
            spent += epoch.until - epoch.begun
            waited += epoch.ready - epoch.begun + sum(span.waited for span in epoch.spans)
            batches += sum(span.batches for span in epoch.spans)
            count += sum(span.samples for span in epoch.spans)
            ends += sum(span.waited for span in epoch.spans[1:] if not span.batches)
            waits += [span.waited for span in epoch.spans[1:] if span.batches]
            if epoch.spans:
                late = epoch.spans[0].got - epoch.begun
                first = max(first, late)
                steady += epoch.until - epoch.spans[0].got
                steady_waited += sum(span.waited for span in epoch.spans[1:])
            cpu += cpu_between(samples, epoch.begun, epoch.until)
            used += _between(samples, epoch.begun, epoch.until, "used")
            idle += _between(samples, epoch.begun, epoch.until, "idle")
            peak = max(peak, peak_between(samples, epoch.begun, epoch.until))
            if (share := busy_between(gpus, on_gpus, epoch.begun, epoch.until)) is not None:
                busy.append((share, epoch.until - epoch.begun))
        if restarts := self.restarts:  # the steps lie between the epochs
            begin, end = min(epoch.begun for epoch in self.epochs), max(epoch.until for epoch in self.epochs)
            spent, cpu, peak = end - begin, cpu_between(samples, begin, end), peak_between(samples, begin, end)
            used, idle = (_between(samples, begin, end, name) for name in ("used", "idle"))
            busy = [(share, 1.0)] if (share := busy_between(gpus, on_gpus, begin, end)) is not None else []
        making = batch_making(self.works, [epoch.begun for epoch in self.epochs]) if samples else None
        return LoaderSummary(
            self.about, self.made, len(self.epochs), batches, count, spent, waited, first, steady, steady_waited, cpu,
            peak, restarts, making, used / (used + idle) if used else None, max(0.0, used - cpu) / (used + idle or 1.0),
            sum(share * time for share, time in busy) / sum(time for _, time in busy) if busy else None,
            self.sampled, ends, sum(sorted(waits)[-(len(waits) // 20 or 1) :]), median(self.sizes) if self.sizes else 0,
            sum(map(sum, self.jpegs)), self.machines,
        )  # fmt: skip


@dataclass(frozen=True)
class LoaderSummary:
    """The sums of a loader. Times are in seconds, memory in bytes.

    Attributes:
        made: loaders that were summed up.
        epochs: passes that were begun.
        spent: from each `iter(loader)` to the last batch of that epoch; if it `restarts`, from the first `iter(loader)`
            to the last batch of all.
        waited: of it, inside the loader.
        first: the longest time from `iter(loader)` to the first batch.
        steady: spent after the first batch of each epoch.
        steady_waited: of it, inside the loader.
        cpu: CPU-seconds of all processes of the program meanwhile.
        peak: most proportional memory of all processes of the program meanwhile; 0 if unknown.
        making: times of batches in the processes that made them; None if they are not known.
        machine: share of the machine's CPUs, as far as this program may run on them, that was in use meanwhile by all
            programs; None if it is not known.
        others: of it, by other programs.
        gpu: share of the time in which the GPUs of the program were busy, by the driver; None if unknown.
        jpegs: seconds in which Pillow decoded whole JPEGs, of all processes.
        machines: other machines, as of the loader.
        sampled: of `waited`, inside the sampler.
        ends: of `steady_waited`, after the last batch of each epoch, in which workers end.
        long_waits: of `steady_waited`, the twentieth of the waits that are longest.
        size: bytes of a batch; 0 if unknown.
    """

    about: dict[str, Any]
    made: int
    epochs: int
    batches: int
    samples: int
    spent: float
    waited: float
    first: float
    steady: float
    steady_waited: float
    cpu: float
    peak: int
    restarts: bool = False
    making: BatchMaking | None = None
    machine: float | None = None
    others: float = 0.0
    gpu: float | None = None
    sampled: float = 0.0
    ends: float = 0.0
    long_waits: float = 0.0
    size: float = 0
    jpegs: float = 0.0
    machines: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Returns samples per second."""
        return self.samples / self.spent if self.spent else 0.0

    @property
    def share(self) -> float:
        """Returns the share of its time that the program waited for a batch."""
        return min(1.0, self.waited / self.spent) if self.spent else 0.0

    @property
    def steady_share(self) -> float:
        """Returns the same without the first batch of each epoch."""
        return min(1.0, self.steady_waited / self.steady) if self.steady else 0.0

    @property
    def name(self) -> str:
        """Returns the line that iterates, and the rank if there is one."""
        return _named(self.about)


class Measurements:
    """The records of a run, read from its folder as they come.

    Attributes:
        begun, until: when the program was started, and when it had ended or was looked at last.
        gpus: samples of the GPUs that it may use.
        cpu: CPU-seconds of the whole program, known at its end.
        lost: whether the records were deleted meanwhile, as by a program that cleans `$TMPDIR`.
        enough: when a limit of batches was reached; None without one.
    """

    def __init__(self) -> None:
        self.enough: float | None = None
        self.begun = self.until = 0.0
        self.samples: list[TreeSample] = []
        self.gpus: list[GpuSample] = []
        self.memory = ProcessMemory()
        self.faults = FaultLog()
        self.cpu = 0.0
        self.interrupted = False
        self.lost = False
        self._offsets: dict[str, int] = {}
        self._processes: dict[str, dict[str, Any]] = {}
        self._loaders: dict[tuple[str, int], MeasuredLoader] = {}
        self._kinds: dict[tuple[Any, ...], MeasuredLoader] = {}
        self._epochs: dict[tuple[str, int, int], EpochSpans] = {}
        self._works: dict[str, list[MadeBatch]] = {}
        self._jpegs: dict[str, list[float]] = {}
        self._marked: dict[str, MeasuredLoader] = {}

    @property
    def loaders(self) -> list[MeasuredLoader]:
        """Returns the loaders that were iterated over, in the order of their first epochs."""
        return list(self._kinds.values())

    @property
    def peak(self) -> int:
        """Returns the most proportional memory of all processes, in bytes."""
        return max((sample.memory for sample in self.samples), default=0)

    def ended(self, cpu: float) -> None:
        """Records the end of the program, and the CPU-seconds of the processes that it waited for."""
        seen = self.samples[-1].cpu if self.samples else 0.0
        self.cpu = max(cpu, seen)

    def read(self, folder: str) -> None:
        """Reads what was written to the folder since the last call. A line that is not complete is left for later."""
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            names, self.lost = [], True
        for name in names:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    file.seek(self._offsets.get(name, 0))
                    complete, _, _ = file.read().rpartition(b"\n")
            except FileNotFoundError:
                self.lost = True
                continue
            if not complete:
                continue
            self._offsets[name] = self._offsets.get(name, 0) + len(complete) + 1
            for line in complete.splitlines():
                self._heed(name, json.loads(line))

    def _heed(self, file: str, record: Any) -> None:
        if isinstance(record, list):
            loader, epoch, *span = record
            self._epochs[file, loader, epoch].spans.append(Span(*span))
        elif "pid" in record:
            self._processes[file] = record
        elif "enough" in record:
            self.enough = record["enough"] if self.enough is None else self.enough
        elif "made" in record:
            pid = self._processes[file]["pid"]
            work = MadeBatch(record["begun"], record["seconds"], record["cpu"], pid, record.get("collated"))
            self._works.setdefault(record["made"], []).append(work)
        elif "jpegs" in record:
            self._jpegs.setdefault(record["jpegs"], []).append(record["seconds"])
        elif "fault" in record:
            marked = self._marked.get(record["mark"])
            (self if marked is None else marked).faults.heed(record)
        elif "chosen" in record:
            if (chosen := self._marked.get(record["mark"])) is not None:
                chosen.chosen = record["chosen"]
        elif "bytes" in record:
            self._loaders[file, record["loader"]].sizes.append(record["bytes"])
        elif "copies" in record:
            self._loaders[file, record["loader"]].copies = record["copies"]
        elif "machines" in record:
            loader = self._loaders[file, record["loader"]]
            pool = record["machines"]["pool"] or loader.machines.get("pool", {})  # the iterator has left it at its end
            loader.machines = {**record["machines"], "pool": pool}
        elif "sampled" in record:
            self._loaders[file, record["loader"]].sampled += record["sampled"]
        elif "noted" in record:
            self._loaders[file, record["loader"]].noted.append(record)
        elif "epoch" in record:
            spans = EpochSpans(record["begun"], record["ready"])
            self._epochs[file, record["loader"], record["epoch"]] = spans
            loader = self._loaders[file, record["loader"]]
            loader.epochs.append(spans)
            if "mark" in record:
                self._marked[record["mark"]] = loader
                loader.works.append(self._works.setdefault(record["mark"], []))
                loader.jpegs.append(self._jpegs.setdefault(record["mark"], []))
        else:
            self._loaders[file, record["loader"]] = self._of_kind(file, record)

    def _of_kind(self, file: str, record: dict[str, Any]) -> MeasuredLoader:
        process = self._processes[file]
        about = {name: value for name, value in record.items() if name != "loader"}
        about |= {"pid": process["pid"], "rank": process["rank"]}
        key = tuple(sorted((name, repr(value)) for name, value in about.items()))
        if (known := self._kinds.get(key)) is not None:
            known.made += 1
            return known
        found = self._kinds[key] = MeasuredLoader(about)
        return found


def _named(about: dict[str, Any]) -> str:
    rank = about["rank"]
    return str(about["site"]) + ("" if rank is None else f" rank {rank}")


def are_single(batches: int, epochs: int) -> bool:
    """Returns whether these are many epochs of one batch each."""
    return epochs > 5 and batches < 2 * epochs


def cpu_between(samples: Sequence[TreeSample], begin: float, end: float) -> float:
    """Returns the CPU-seconds of all processes between two times, interpolated between samples."""
    return _between(samples, begin, end, "cpu")


def _between(samples: Sequence[TreeSample], begin: float, end: float, name: str) -> float:
    return max(0.0, _at(samples, end, name) - _at(samples, begin, name))


def _at(samples: Sequence[TreeSample], when: float, name: str) -> float:
    """Returns an attribute of the samples that grows with time, interpolated."""
    after = bisect.bisect_left(samples, when, key=lambda sample: sample.time)
    if after == 0 or after == len(samples):
        return float(getattr(samples[min(after, len(samples) - 1)], name)) if samples else 0.0
    low, high = samples[after - 1], samples[after]
    before, later = getattr(low, name), getattr(high, name)
    return float(before + (later - before) * (when - low.time) / (high.time - low.time))


def peak_between(samples: Sequence[TreeSample], begin: float, end: float) -> int:
    """Returns the most memory of the samples between two times, the nearest ones outside included."""
    return max((sample.memory for sample in _around(samples, begin, end)), default=0)


def _around(samples: Sequence[TreeSample], begin: float, end: float) -> Iterator[TreeSample]:
    first = max(0, bisect.bisect_left(samples, begin, key=lambda sample: sample.time) - 1)
    last = bisect.bisect_right(samples, end, key=lambda sample: sample.time) + 1
    yield from samples[first:last]


def write_trace(known: Measurements, path: str) -> None:
    """Writes the trace of a run.

    Each loader is a track, on which waiting for a batch and the step with it follow each other, within an epoch.
    Memory and processes are counters. Times are microseconds after `baseTimeNanoseconds`, as torch.profiler writes
    them.
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
