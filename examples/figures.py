"""What a training run measures, and the table that sets several runs side by side."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Figures:
    """One training run.

    Attributes:
        name: the loader and its workers.
        loading_rate: images per second of an epoch in which nothing is trained.
        rate: images per second of training, the validation left out.
        wait_share: the part of the training's time that the loop waited for its next batch.
        first_batch: seconds from asking for the first batch to having it, with workers that have yet to start.
        cpu_seconds: processor time of all processes, for training and validation, loading alone left out.
        accuracy: the part of the validation's images that was recognised at the end.
        peak_memory: bytes of all processes together, with pages that they share counted once; None if not measured.
    """

    name: str
    loading_rate: float
    rate: float
    wait_share: float
    first_batch: float
    cpu_seconds: float
    accuracy: float
    peak_memory: int | None = None


class Clock:
    """Measures the training while it iterates over the batches of a loader."""

    def __init__(self) -> None:
        self.images = 0
        self.elapsed = self.waited = self.first_batch = 0.0
        self._cpu_seconds = _cpu_seconds()

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yields the loader's batches, which are pairs of images and labels."""
        began = asked = time.perf_counter()
        before = self.elapsed
        for images, labels in loader:
            now = time.perf_counter()
            self.waited += now - asked
            self.first_batch = self.first_batch or now - began
            self.images += len(images)
            self.elapsed = before + now - began
            yield images, labels
            asked = time.perf_counter()
        self.waited += time.perf_counter() - asked
        self.elapsed = before + time.perf_counter() - began

    @property
    def rate(self) -> float:
        return self.images / self.elapsed if self.elapsed else 0.0

    @property
    def wait_share(self) -> float:
        return self.waited / self.elapsed if self.elapsed else 0.0

    def figures(self, name: str, accuracy: float, alone: Clock) -> Figures:
        """Returns what was measured from this clock's making until now, and the rate of the clock of loading alone."""
        seconds = _cpu_seconds() - self._cpu_seconds
        return Figures(name, alone.rate, self.rate, self.wait_share, alone.first_batch, seconds, accuracy)


def _cpu_seconds() -> float:
    times = os.times()  # of this process, and of the workers that have ended, with theirs
    return times.user + times.system + times.children_user + times.children_system


ROWS = {
    "loading, images/s": ("loading_rate", "{:,.0f}"),
    "training, images/s": ("rate", "{:,.0f}"),
    "time waited": ("wait_share", "{:.0%}"),
    "first batch after": ("first_batch", "{:.2f} s"),
    "CPU-seconds": ("cpu_seconds", "{:,.1f}"),
    "peak memory of all": ("peak_memory", "{:,.0f} MB"),
    "validation accuracy": ("accuracy", "{:.0%}"),
}


def table(runs: list[Figures]) -> Table:
    """Returns a row for each figure and a column for each run; with several, also their shares of the last run's.

    The accuracy stands beside a single run only: runs that draw other numbers differ by chance.
    """
    result = Table("", *(run.name.replace(", ", "\n") for run in runs))
    for column in result.columns[1:]:
        column.justify = "right"
    for title, (field, form) in ROWS.items():
        values = [getattr(run, field) for run in runs]
        if None in values or (field == "accuracy" and len(runs) > 1):
            continue
        cells = [form.format(value / 1e6 if field == "peak_memory" else value) for value in values]
        for place, value in enumerate(values[:-1]):
            if values[-1]:
                cells[place] += f" ({value / values[-1]:.2f} x)"
        result.add_row(title, *cells)
    return result
