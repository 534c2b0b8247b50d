"""What does it cost a training loop to be measured by `stoker run`?

torch's loader without workers, with two sizes of batch: 64 integers, about the least that a batch can cost, and 32 rows
of 40 kB. *Alone* is the loop as it is; *measured* has all hooks of `stoker run --report` in it, those of the making of
batches and of the samples in them too, and its recorder, which writes to a folder. Counted are the CPU time of the
process and the time of the loop, for each batch. What `stoker run` itself does meanwhile (a look at /proc four times in
a second) is bounded there, at 1 % of a CPU.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import method
from method import Case, Figures, Goal

RIVALS = ("measured", "alone")
CPU = "CPU-us per batch"


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.5 if options.quick else 3.0
    return [
        Case(name, {rival: {"rival": rival, "rows": rows, "seconds": seconds} for rival in RIVALS}, goals)
        for name, rows, goals in (
            ("batches of 64 integers", 0, []),
            ("batches of 32 rows of 40 kB", 32, [Goal(CPU, "alone", at_most=1.02)]),
        )
    ]


def measure(rival: str, rows: int, seconds: float) -> Figures:
    import torch
    from torch.utils.data import DataLoader

    from stoker.diagnostics.composition.order_hooks import OrderHooks
    from stoker.diagnostics.loader_hooks import LoaderHooks
    from stoker.diagnostics.recorder import Recorder

    dataset = [torch.zeros(10_000) for _ in range(rows * 20)] if rows else list(range(6400))
    loader = DataLoader(dataset, batch_size=rows or 64)
    with tempfile.TemporaryDirectory() as folder:
        if rival == "measured":
            recorder = Recorder(folder)
            hooks = LoaderHooks(recorder, detailed=True, order=OrderHooks(recorder))
            hooks.measure("torch.utils.data.dataloader")
            hooks.workers.measure("torch.utils.data._utils.fetch")
        for _ in loader:
            pass
        batches, begun, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < seconds:
            for _ in loader:
                batches += 1
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return {CPU: 1e6 * cpu / batches, "us per batch": 1e6 * took / batches}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
