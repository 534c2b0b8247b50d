"""Where does the time of a small batch go?

The cases in which the limit is furthest away: what the loader itself does is most of such a batch, and this is its
account. In one process each function that is named here is timed by the clock, without those that it calls and that
have a row of their own; shown is the median over the batches, so that a pause of the machine counts for nothing. What
is done for several batches at once does not show in a median: of the order, which is made for 16,384 samples at a time,
the mean is told as well. The clocks take some time themselves: the last rows are a batch with them and without.

Ready batches: as in overhead.py, four leaves of 128 kB that lie ready when the trainer asks, after a pause of 4 ms in
which the workers had the processors. *Hot* is the same without the pause: caches and branch predictors still know the
way (the batch before was taken just now, and the workers make another meanwhile), so that is what the code takes where
it is run all the time. There, a process that the trainer wakes may take its processor at once, and its clock goes on.

Rows and tokens: as in rows.py and tokens.py, in the trainer's process. *Kept memory* gathers such batches, in
a shuffled order, into memory that is kept, which no loader can do that hands out batches.

Batches of 128 kB in two workers, as in transport.py: the processor time of each process for a batch, by the scheduler's
account. *Kept memory* is the work itself: the samples fetched and stacked into memory that is kept.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import method
import overhead
import rows
import tokens
import transport
from method import Case, Figures

WITH, WITHOUT = "us, all, with the clocks", "us, all"
ORDER = "us, the order"


def cases(options: argparse.Namespace) -> list[Case]:
    batches = 60 if options.quick else 1500
    size = 10 if options.quick else 1

    def rivals(case: str, *names: str) -> dict[str, dict[str, Any]]:
        return {name: {"case": case, "rival": name, "batches": batches, "size": size} for name in names}

    return [
        Case("ready batches of four leaves, trainer's thread", rivals("ready", "stoker", "stoker, hot")),
        Case("rows, in the trainer's process", rivals("rows", "stoker", "kept memory")),
        Case("tokens, in the trainer's process", rivals("tokens", "stoker", "kept memory")),
        Case("batches of 128 kB, 2 workers", rivals("processes", "stoker", "kept memory")),
    ]


def measure(case: str, rival: str, batches: int, size: int) -> Figures:
    if case == "processes":
        return processes(rival, batches)
    if case == "ready":
        return ready(min(batches, 600), is_hot=rival == "stoker, hot")
    with tempfile.TemporaryDirectory() as folder:
        dataset, batch = WORKLOADS[case](Path(folder), size)
        return gathered(dataset, batch, batches) if rival == "stoker" else kept(dataset, batch, batches)


# By the clock, in one process


class Clock:
    """Times functions, each without those inside it that are timed as well."""

    def __init__(self) -> None:
        self.rest = "us, the iterator, and what is not named"
        self._rows: list[dict[str, int]] = []
        self._now: dict[str, int] = {}
        self._inside = [self.rest]
        self._last = 0
        self._parts: set[str] = set()

    def time(self, owner: Any, name: str, part: str) -> None:
        """Times a method of a class from now on."""
        function = getattr(owner, name)
        self._parts.add(part)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._inside.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._inside.pop()

        setattr(owner, name, timed)

    def batch(self, take: Callable[[], Any]) -> Any:
        """Times what it takes to take one batch."""
        self._now, self._last = {}, time.perf_counter_ns()
        result = take()
        self._turn()
        self._rows.append(self._now)
        self._now = {}  # what is called between the batches is none of them
        return result

    def _turn(self) -> None:
        now = time.perf_counter_ns()
        part = self._inside[-1]
        self._now[part] = self._now.get(part, 0) + now - self._last
        self._last = now

    def figures(self) -> Figures:
        """The median of each part, the longest first, and of all together.

        Also of those that had no turn: which have one can differ from run to run.
        """
        found = {part: statistics.median(row.get(part, 0) for row in self._rows) / 1e3 for part in self._parts}
        found = dict(sorted(found.items(), key=lambda item: -item[1]))
        if ORDER in self._parts:
            found[f"{ORDER}, mean"] = statistics.fmean(row.get(ORDER, 0) for row in self._rows) / 1e3
        found[self.rest] = statistics.median(row[self.rest] for row in self._rows) / 1e3
        return {**found, WITH: statistics.median(sum(row.values()) for row in self._rows) / 1e3}


def timed(
    batches: Iterator[Any], count: int, parts: dict[tuple[Any, str], str], before: Callable[[], Any] = lambda: None
) -> Figures:
    """So many batches without the clocks, and so many with them. Each is held until the next is there, as by a loop."""
    plain, clock = [], Clock()
    for _ in range(count):
        before()
        began = time.perf_counter_ns()
        held = next(batches)
        plain.append(time.perf_counter_ns() - began)
    for (owner, name), part in parts.items():
        clock.time(owner, name, part)
    for _ in range(count):
        before()
        held = clock.batch(lambda: next(batches))
    del held
    return {**clock.figures(), WITHOUT: statistics.median(plain) / 1e3}


def ready(batches: int, is_hot: bool) -> Figures:
    import torch

    import stoker
    from stoker._engine.fork.trainer import ProcessBackend
    from stoker._engine.process.channel import Channel
    from stoker._engine.transport.reader import Reader
    from stoker.loader._epoch.plan import ComputedPlan

    dataset: Any = overhead.Repeated(tuple(torch.rand(4, 4096)))
    with iter(stoker.DataLoader(dataset, 8, num_workers=2)) as iterator:
        for _ in range(overhead.WARM_UP):
            next(iterator)
        parts = {
            (ComputedPlan, "next"): "us, to plan what comes next",
            (ProcessBackend, "submit"): "us, to queue it for the workers",
            (Channel, "flush"): "us, to send it, and wake the zygote",
            (Channel, "receive"): "us, to read what the zygote says",
            (Reader, "read"): "us, to make tensors over the slot",
        }

        def before() -> None:
            time.sleep(overhead.PAUSE)
            if is_hot:
                next(iterator)

        return timed(iterator, batches, parts, before)


def gathered(dataset: Any, batch: int, batches: int) -> Figures:
    import stoker
    from stoker.collate.gathered import Gathered
    from stoker.loader._epoch.plan import ComputedPlan
    from stoker.loader._job.job import LoaderJob

    def epochs() -> Iterator[Any]:
        loader: Any = stoker.DataLoader(dataset, batch, shuffle=True)
        while True:
            yield from loader

    parts = {
        (type(dataset), "gather"): "us, to gather",
        (Gathered, "_batch"): "us, memory, tensors, and to look at the layout",
        (LoaderJob, "run"): "us, the job around it",
        (ComputedPlan, "next"): ORDER,
    }
    made = epochs()
    for _ in range(20):
        next(made)
    return timed(made, batches, parts)


def kept(dataset: Any, batch: int, batches: int) -> Figures:
    import numpy as np

    from stoker.samplers.permutation import Permutation

    out = tuple(np.empty((batch, *leaf.shape[1:]), np.asarray(leaf).dtype) for leaf in dataset.gather_layout())
    order, took = Permutation(len(dataset), 0), []
    for number in range(batches):
        start = number * batch % (len(dataset) - batch)
        indices = order.take(np.arange(start, start + batch))
        began = time.perf_counter_ns()
        dataset.gather(indices, out)
        took.append(time.perf_counter_ns() - began)
    return {"us, to gather": statistics.median(took) / 1e3}


def of_rows(folder: Path, size: int) -> tuple[Any, int]:
    import torch

    import stoker

    return stoker.TensorDataset(torch.rand(1_000_000 // size, rows.WIDTH)), rows.BATCH


def of_tokens(folder: Path, size: int) -> tuple[Any, int]:
    import numpy as np

    from stoker.datasets.tokens import TokenWindows

    path = folder / "tokens.bin"
    np.random.default_rng(0).integers(0, 50_000, 100_000_000 // size, np.uint16).tofile(path)
    return TokenWindows(path, tokens.LENGTH), tokens.BATCH


WORKLOADS: dict[str, Callable[[Path, int], tuple[Any, int]]] = {"rows": of_rows, "tokens": of_tokens}


# By the scheduler, in several


def processes(rival: str, batches: int) -> Figures:
    import torch

    import stoker

    (shape, samples) = next((shape, samples) for name, shape, samples, _ in transport.SIZES if name == "128 kB")
    dataset: Any = transport.Tensors(torch.rand(samples, *shape).unbind())
    if rival == "kept memory":
        torch.set_num_threads(1)  # as in a worker
        out = torch.empty(transport.BATCH, *shape)
        began = time.thread_time_ns()
        for number in range(batches):
            first = number * transport.BATCH
            torch.stack([dataset[index] for index in range(first, first + transport.BATCH)], out=out)
        return {"us, workers": (time.thread_time_ns() - began) / batches / 1e3}
    with iter(stoker.DataLoader(dataset, transport.BATCH, num_workers=2)) as iterator:
        for _ in range(50):
            next(iterator)
        zygote, *workers = iterator._backend.pids
        before, began = {pid: _used(pid) for pid in (zygote, *workers)}, time.thread_time_ns()
        for _ in range(batches):
            held = next(iterator)
        del held
        mine = time.thread_time_ns() - began
        used = {pid: _used(pid) - before[pid] for pid in before}
    found = {"us, workers": sum(used[pid] for pid in workers), "us, zygote": used[zygote], "us, trainer": mine}
    return {name: value / batches / 1e3 for name, value in found.items()}


def _used(pid: int) -> int:
    """Nanoseconds on a processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
