"""Ends a measured program after some batches of a loader: `stoker compare`, `tune` and `profile` need no more of it.

The hooks put a `LimitedRecorder` into the program. Only the standard library is imported.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from stoker.diagnostics.recorder import EpochRecord, Recorder, described


@dataclass(frozen=True)
class _Order:
    """An order to a program, which reaches it as text in a variable of the environment."""

    def as_text(self) -> str:
        """Returns the order as text."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Returns the order that `as_text` gave."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class BatchLimit(_Order):
    """When a program has been measured for long enough. The first loader that reaches it ends the program.

    With a limit in seconds, a second epoch and those after it are measured to their ends: short epochs count as wholes.

    Attributes:
        batches: number of batches of a loader; None for the other limit.
        seconds: measured time of a loader, after `skip` batches, that hold at least `least` more.
        skip: batches that come before the measured time: workers start, and their first batches are made.
        least: batches in the measured time, at least.
        site: the line that iterates ("train.py:31"); None for any.
        dataset: the dataset's class; None for any.
    """

    batches: int | None = None
    seconds: float = 0.0
    skip: int = 1
    least: int = 4
    site: str | None = None
    dataset: str | None = None

    def is_reached(self, batches: int, seconds: float) -> bool:
        """Returns whether it is enough.

        Args:
            seconds: since the last of the skipped batches was received.
        """
        if self.batches is not None:
            return batches >= self.batches
        return batches >= self.skip + self.least and seconds >= self.seconds


class EnoughBatches(SystemExit):
    """Ends the program from inside `next()`, as `sys.exit()` would: its own `finally` and `with` blocks run."""


class LimitedRecorder(Recorder):
    """A recorder that ends the program once a limit is reached.

    The request that comes after the last batch raises, so the step with this batch is measured too. It raises again if
    the program goes on. All loaders of a line and a class of datasets count together: some programs make one for each
    epoch.
    """

    def __init__(self, folder: str, limit: BatchLimit) -> None:
        self._limit = limit
        self._kinds: dict[int, tuple[str, str]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._warm: dict[tuple[str, str], float] = {}
        self._begun: dict[tuple[str, str], int] = {}
        self._enough = False
        super().__init__(folder)

    def begin(self, loader: Any, site: str, begun: float, *more: Any) -> EpochRecord:
        self._end_if_enough(begun)
        record = super().begin(loader, site, begun, *more)
        kind = self._kinds[record.loader] = (site, described(loader)["dataset"])
        self._begun[kind] = self._begun.get(kind, 0) + 1
        return record

    def batch(self, record: EpochRecord, asked: float, got: float, samples: int) -> None:
        self._end_if_enough(got)
        super().batch(record, asked, got, samples)
        kind = self._kinds[record.loader]
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count <= self._limit.skip:
            self._warm[kind] = got
        if self._limit.batches is not None or self._begun[kind] == 1:
            self._heed_limit(kind, got)

    def end(self, record: EpochRecord, asked: float, got: float) -> None:
        super().end(record, asked, got)
        self._heed_limit(self._kinds[record.loader], got)
        self._end_if_enough(got)

    def _heed_limit(self, kind: tuple[str, str], now: float) -> None:
        site, dataset = kind
        if self._enough or self._limit.site not in (None, site) or self._limit.dataset not in (None, dataset):
            return
        if self._limit.is_reached(self._counts.get(kind, 0), now - self._warm.get(kind, now)):
            self._enough = True
            self._lines.append({"enough": now})
            self.flush(now)

    def _end_if_enough(self, now: float) -> None:
        if self._enough:
            self.flush(now)
            raise EnoughBatches(0)


@dataclass(frozen=True)
class ProfileOrder(_Order):
    """The loader and the batches to profile.

    Attributes:
        folder: where each process writes its profiles.
        batches: number of batches of a loader after which the program ends.
        site: the line that iterates ("train.py:31"); None for the first loader that has given so many.
    """

    folder: str
    batches: int
    site: str | None = None
    stacks: bool = False
