"""The verdict about a loader: whether the training loop waits for data, what there is to gain, and the change to make.

Pure: figures in, words out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker._autotune.hint import workers_for
from stoker._autotune.wait_share import NEGLIGIBLE, WAITS
from stoker.diagnostics.measurements import LoaderSummary, are_single

Kind = Literal["data-bound", "balanced", "compute-bound", "too short"]

BUSY = 0.85
"""Share of the CPUs from which on they count as all in use."""

ENOUGH = 5, 0.2
"""Batches, and seconds, after the first batch of each epoch, from which on there is a verdict.

Many epochs of a single batch are judged by these batches.
"""


@dataclass(frozen=True)
class LoaderVerdict:
    """A loader's verdict.

    Attributes:
        kind: "data-bound", "balanced", "compute-bound", or "too short" to say.
        text: a sentence with its number.
        change: the one change to make; None if there is none to make.
        gain: how many times as fast the loop would be, at most, if it never waited.
    """

    kind: Kind
    text: str
    change: str | None
    gain: float

    def __str__(self) -> str:
        return self.text if self.change is None else f"{self.text} {self.change}"


def verdict(loader: LoaderSummary, cpus: int) -> LoaderVerdict:
    """Returns the verdict about a loader.

    Args:
        loader: its figures.
        cpus: that the program may use.
    """
    batches, seconds = ENOUGH
    is_single = are_single(loader.batches, loader.epochs)
    if (loader.batches - loader.epochs < batches and not is_single) or loader.spent < seconds:
        text = f"Too short to judge: {loader.batches} batches in {loader.spent:.2g} s."
        return LoaderVerdict("too short", text, "Let it run for a few seconds more.", 1.0)
    share = loader.share
    gain = loader.spent / max(loader.spent - loader.waited, 1e-9)
    faster = f"{gain:.2g} times as fast" if gain < 100 else "over 100 times as fast"
    begins = "An epoch begins for each batch, as with next(iter(loader)). " if loader.restarts else ""
    if share <= NEGLIGIBLE:
        text = f"Compute-bound: the loop waits {share:.1%} of its time for batches, so a faster loader gains no more."
        return LoaderVerdict("compute-bound", f"{text} {begins}".rstrip(), None, gain)
    kind: Kind = "data-bound" if share >= WAITS else "balanced"
    text = f"{kind.capitalize()}: the loop waits {share:.0%} of its time for batches; without that, {faster} at most."
    return LoaderVerdict(kind, f"{text} {begins}".rstrip(), change(loader, cpus), gain)


def change(loader: LoaderSummary, cpus: int) -> str:
    """Returns the change that a loop needs which waits for its batches."""
    workers = loader.about.get("num_workers") or 0
    if loader.restarts:
        return _kept_iterator(loader, workers)
    if are_single(loader.batches, loader.epochs) and (not workers or loader.about.get("persistent_workers")):
        return "Each epoch is one batch, so none can be made ahead: pass a smaller batch_size, or a longer sampler."
    firsts = loader.waited - loader.steady_waited
    if firsts > 0.5 * loader.waited and loader.steady_share < WAITS:
        return _late_first_batch(loader, workers)
    if workers == 0:
        count = max(1, loader.batches)
        own, cost = (loader.spent - loader.waited) / count, loader.waited / count
        number = workers_for(own, cost, cpus)
        if number:
            return f"Pass num_workers={number}: batches are made in the training loop now, because of num_workers=0."
        if cpus == 1:
            return (
                "There is one CPU, and workers would share it: make samples cheaper (decode less, cache), or add CPUs."
            )
        return (
            "Workers would not help, because batches are cheap: fetch a whole batch at once (__getitems__), or keep "
            "the data in arrays."
        )
    busy = loader.cpu / loader.spent / cpus
    if busy >= BUSY:
        return (
            f"Make samples cheaper (a faster decoder, smaller files, a cache), or add CPUs: {busy:.0%} of the {cpus} "
            "CPUs are in use, so more workers cannot help."
        )
    if workers < cpus:
        return f"Pass num_workers={cpus}: {workers} of {cpus} CPUs make batches, and {busy:.0%} of the CPUs are in use."
    return (
        f"Pass num_workers={2 * workers}: {busy:.0%} of the CPUs are in use, so samples wait for a disk or a network. "
        f"With stoker.DataLoader, threads_per_worker=8 does it in {workers} processes."
    )


def _late_first_batch(loader: LoaderSummary, workers: int) -> str:
    late = f"the first batch of an epoch comes after {loader.first:.2g} s"
    if workers and not loader.about.get("persistent_workers") and loader.epochs > 1:
        return f"Pass persistent_workers=True: {late}, most of it the start of {workers} workers in each epoch."
    if workers:
        return f"Most of the waiting is for first batches: {late}. Longer epochs help, or a dataset that opens sooner."
    return f"Most of the waiting is for first batches: {late}. See what the dataset does in its first sample."


def _kept_iterator(loader: LoaderSummary, workers: int) -> str:
    kept = "Keep one iterator: batches = iter(loader) before the loop, and next(batches) in it"
    if not workers:
        return f"{kept}. Workers can then make the next batches meanwhile; they cannot now."
    if loader.about.get("persistent_workers"):
        return f"{kept}. The batches that {workers} workers make ahead are thrown away now, {loader.epochs:,} times."
    return (
        f"{kept}. Or pass persistent_workers=True: {workers} workers are started {loader.epochs:,} times now, and a "
        f"batch comes after up to {loader.first:.2g} s."
    )
