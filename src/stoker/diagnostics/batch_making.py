"""`BatchMaking`: the times of the processes that make a loader's batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

ENOUGH = 4
"""Batches from which on their times say something."""


class MadeBatch(NamedTuple):
    """A batch that was made in a process. Times are seconds; `begun` as those of `Span`."""

    begun: float
    seconds: float
    cpu: float
    pid: int = 0
    collated: float | None = None


@dataclass(frozen=True)
class BatchMaking:
    """Times of the batches that were made, in seconds.

    Attributes:
        seconds: to make a batch, the mean.
        cpu: CPU-seconds of the process that made it, the mean.
        longest: the time of the slowest batch, as a multiple of the median. First batches of processes are left out.
        start: mean time from `iter(loader)` to the beginning of the first batch, of epochs that started workers.
        first: to make the first batch of a process, the mean.
        slowest: to make the slowest batch. First batches of processes are left out.
        collated: of `seconds`, in the collation; None if it is not known.
    """

    seconds: float
    cpu: float
    longest: float
    start: float
    first: float = 0.0
    slowest: float = 0.0
    collated: float | None = None

    @property
    def on_cpu(self) -> float:
        """Returns the share of the time of a batch that was CPU time."""
        return min(1.0, self.cpu / self.seconds) if self.seconds else 1.0


def batch_making(works: Sequence[Sequence[MadeBatch]], begun: Sequence[float]) -> BatchMaking | None:
    """Returns the sums over all batches that were recorded; None if there are too few.

    Args:
        works: of each epoch the batches of the workers that it started.
    """
    made = [work for one in works for work in one]
    if len(made) < ENOUGH:
        return None
    seconds = sum(work.seconds for work in made)
    firsts = [work.seconds for one in works for work in {work.pid: work for work in reversed(one)}.values()]
    later = sorted(work.seconds for one in works for work in _without_firsts(one)) or [0.0]
    middle = median(later)
    collated = [work.collated for work in made if work.collated is not None]
    starts = [min(work.begun for work in one) - start for one, start in zip(works, begun, strict=False) if one]
    return BatchMaking(
        seconds / len(made),
        sum(work.cpu for work in made) / len(made),
        later[-1] / middle if middle else 1.0,
        max(0.0, fmean(starts)),
        fmean(firsts),
        later[-1],
        sum(collated) / len(made) if collated else None,
    )


def _without_firsts(works: Sequence[MadeBatch]) -> Iterator[MadeBatch]:
    seen = set()
    for work in works:
        if work.pid in seen:
            yield work
        seen.add(work.pid)
