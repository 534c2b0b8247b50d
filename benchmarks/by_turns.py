"""On photographs that Pillow decodes, are rate and processor time those of torch's loader, within one percent?

What two loaders give of photographs, which Pillow decodes, differs by a hundredth or two, and whole runs beside each
other differ by ten (images.py): the machine's speed changes from minute to minute. So here both loaders are alive at
once, in one process, and take turns: the dataset, the batches of 64, the two workers and the training step are those
of images.py. When a turn ends, all of that loader's processes are stopped where they are (SIGSTOP), and go on from
there with its next one: no turn begins with batches that are ready, or ends with a wait for the last one.

A turn is some batches of one loader, a pair is two turns beside each other, each in the opposite order of the last; the
statistics are those of pairs.py. A ratio is Stoker's figure divided by torch's. The processor time is that of the
trainer and of all of that loader's processes, by the scheduler's account.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import images
import method
import pairs
from method import Case, Figures, Goal

method.LONGEST = 1800.0
RATE, CPU = "images/s, ratio", "processor time, ratio"
WARM_UP = 12  # batches
TURN = 8  # batches


def cases(options: argparse.Namespace) -> list[Case]:
    if not options.data.is_dir():
        raise SystemExit(f"no photographs in {options.data}: `python examples/make_photos.py --data {options.data}`")
    lives, turns = (1, 2) if options.quick else (32, 4)
    goals = [Goal(RATE, at_least=1), Goal(CPU, at_most=1)]
    how = {"data": str(options.data), "lives": lives, "turns": turns}
    return [
        Case("photographs, with the training step, by turns", {"Stoker / torch": {**how, "train": True}}, goals),
        Case("photographs, no step, by turns", {"Stoker / torch": {**how, "train": False}}, goals),
    ]


def measure(data: str, lives: int, turns: int, train: bool) -> Figures:
    rates: list[list[float]] = []
    cpu: list[list[float]] = []
    seconds: dict[str, list[float]] = {"stoker": [], "torch": []}
    step = images.Step(Path(data)) if train else images.Look()
    if train:
        images.keep_freed_memory()
    for life in range(lives):
        names = ("stoker", "torch") if life % 2 else ("torch", "stoker")
        loaders = {name: Loader(name, Path(data), step, WARM_UP + turns * TURN) for name in names}
        rates.append([])
        cpu.append([])
        for turn in range(turns):
            taken = {name: loaders[name].turn(TURN) for name in (names if turn % 2 else names[::-1])}
            rates[-1].append(taken["torch"][0] / taken["stoker"][0])
            cpu[-1].append(taken["stoker"][1] / taken["torch"][1])
            for name, (took, _) in taken.items():
                seconds[name].append(took)
        for loader in loaders.values():
            loader.end()
    figures: Figures = {}
    for name, found in ((RATE, rates), (CPU, cpu)):
        low, high = pairs.interval(found)
        figures[name] = pairs.middle([ratio for life in found for ratio in life])
        figures |= {f"{name}, lower end": low, f"{name}, upper end": high}
    for name, turned in seconds.items():
        figures[f"images/s, {name}"] = TURN * images.BATCH / statistics.median(turned)
    return {**figures, "pairs": lives * turns}


class Loader:
    """A loader with its processes, stopped but for its turns.

    Args:
        name: "stoker" or "torch".
        data: the photographs.
        step: what the trainer does with a batch.
        batches: how many will be taken.
    """

    def __init__(self, name: str, data: Path, step: Any, batches: int) -> None:
        before = method.family()
        self._step = step
        self._iterator = iter(images.loaded(name, data, batches + 2 * images.WORKERS, fast=False))
        self._take(1)
        self._processes = sorted(method.family() - before)
        self._take(WARM_UP)
        self._send(signal.SIGSTOP)

    def turn(self, batches: int) -> tuple[float, float]:
        """Seconds, and processor seconds, for so many batches."""
        used, began = self._used(), time.perf_counter()
        self._send(signal.SIGCONT)
        self._take(batches)
        self._send(signal.SIGSTOP)
        return time.perf_counter() - began, self._used() - used

    def end(self) -> None:
        self._send(signal.SIGCONT)
        if hasattr(self._iterator, "close"):
            self._iterator.close()
        else:
            self._iterator._shutdown_workers()

    def _take(self, batches: int) -> None:
        for _ in range(batches):
            self._step(next(self._iterator))

    def _send(self, number: signal.Signals) -> None:
        for pid in self._processes:
            os.kill(pid, number)

    def _used(self) -> float:
        used = time.process_time_ns()  # who has no turn has no thread that runs in the trainer
        for pid in self._processes:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                used += int((thread / "schedstat").read_text().split()[0])
        return used / 1e9


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=1)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs")
    method.main(arguments, cases, measure)
