"""The verdict about a loader: whether the training loop waits for data, what there is to gain, and the change to make.

Pure: figures in, words out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stoker.diagnostics.measurements import LoaderSummary, are_single
from stoker.diagnostics.settings.change_to_make import change_to_make
from stoker.loader._autotune.wait_share import NEGLIGIBLE, WAITS

Kind = Literal["data-bound", "balanced", "compute-bound", "too short"]

ENOUGH = 5, 0.2
"""Batches, and seconds, after the first batch of each epoch, from which on there is a verdict.

Many epochs of a single batch are judged by these batches.
"""


LONG = 2.0
"""Seconds from which on the share of a GPU counts: its driver tells it for times of up to a second."""

FULL = 0.95
"""Share of the time from which on a GPU that is busy cannot be made busier."""


@dataclass(frozen=True)
class LoaderVerdict:
    """A loader's verdict.

    Attributes:
        kind: "data-bound", "balanced", "compute-bound", or "too short" to say.
        text: a sentence with its number.
        change: the one change to make; None if there is none to make.
        gain: how many times as fast the loop would be, at most, if it never waited. Of a loop that waits while a GPU
            still works on the steps before, no more than would keep the GPU busy all the time.
    """

    kind: Kind
    text: str
    change: str | None
    gain: float

    def __str__(self) -> str:
        return self.text if self.change is None else f"{self.text} {self.change}"


def verdict(loader: LoaderSummary, cpus: int, quota: float = math.inf) -> LoaderVerdict:
    """Returns the verdict about a loader.

    Args:
        loader: its figures.
        cpus: that the program may use.
        quota: CPUs of time that the control groups grant, which may be fewer by a fraction.
    """
    batches, seconds = ENOUGH
    is_single = are_single(loader.batches, loader.epochs)
    if (loader.batches - loader.epochs < batches and not is_single) or loader.spent < seconds:
        text = f"Too short to judge: {loader.batches} batches in {loader.spent:.2g} s."
        return LoaderVerdict("too short", text, "Let it run for a few seconds more.", 1.0)
    share = loader.share
    gain = loader.spent / max(loader.spent - loader.waited, 1e-9)
    gpu = loader.gpu if loader.spent >= LONG else None
    if gpu is not None:
        gain = min(gain, 1 / max(gpu, 1e-9))
    faster = f"{gain:.2g} times as fast" if gain < 100 else "over 100 times as fast"
    begins = "An epoch begins for each batch, as with next(iter(loader)). " if loader.restarts else ""
    if share <= NEGLIGIBLE:
        text = f"Compute-bound: the loop waits {share:.1%} of its time for batches, so a faster loader gains no more."
        return LoaderVerdict("compute-bound", f"{text} {begins}".rstrip(), None, gain)
    if gpu is not None and gpu >= FULL:
        text = (
            f"Compute-bound: the GPU is busy for {gpu:.0%} of the time. The loop waits {share:.0%} of it for batches, "
            "while the GPU still works on earlier ones, so a faster loader gains no more."
        )
        return LoaderVerdict("compute-bound", f"{text} {begins}".rstrip(), None, gain)
    on_gpu = "" if gpu is None else f", and the GPU is busy for {gpu:.0%} of it"
    kind: Kind = "data-bound" if share >= WAITS else "balanced"
    text = f"{kind.capitalize()}: the loop waits {share:.0%} of its time for batches{on_gpu}; "
    text += f"without that, {faster} at most."
    return LoaderVerdict(kind, f"{text} {begins}".rstrip(), change_to_make(loader, cpus, quota), gain)
