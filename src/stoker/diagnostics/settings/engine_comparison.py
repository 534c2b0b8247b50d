"""Runs a program under torch's engine and under Stoker's by turns, and compares a loader's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from stoker._core.machine.gpu_activity import GpuSample
from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader
from stoker.diagnostics.process_tree import TreeSample
from stoker.diagnostics.settings.batch_limit import BatchLimit
from stoker.diagnostics.watched_program import Engine, WatchedProgram, run_to_limit
from stoker.errors import ProgramFailedError
from stoker.extend import NEGLIGIBLE_SHARE

ENGINES = ("torch", "stoker")

NO_DIFFERENCE = 0.02
"""Distance from 1 up to which a ratio of rates counts as none."""


@dataclass(frozen=True)
class EngineRun:
    """The figures of a loader in one run.

    Attributes:
        engine: "torch" or "stoker".
        rate: samples per second, from each `iter(loader)` to the last batch of that epoch.
        steady_rate: samples per second after the first batches of the epochs; None if there were no others.
        share: of the time, spent waiting for batches.
        first: seconds from `iter(loader)` to the first batch, the longest.
        cpu: CPU-seconds of all processes of the program meanwhile.
        memory: most proportional memory of all processes meanwhile, in bytes; 0 if unknown.
        gpu: share of the time in which the program's GPUs were busy; None if unknown.
    """

    engine: str
    batches: int
    samples: int
    rate: float
    steady_rate: float | None
    share: float
    first: float
    cpu: float
    memory: int
    gpu: float | None = None


@dataclass(frozen=True)
class Spread:
    """Values of several runs: the median, the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the spread of at least one value."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class ComparedFigure:
    """A figure under both engines.

    Attributes:
        name: "samples/s", "steady samples/s", "waited", "first batch", "CPU-s", "memory" or "GPU busy".
        ratio: Stoker's by torch's, of each round; None where torch's is zero.
    """

    name: str
    torch: Spread
    stoker: Spread
    ratio: Spread | None


FIGURES: dict[str, Callable[[EngineRun], float | None]] = {
    "samples/s": lambda run: run.rate,
    "steady samples/s": lambda run: run.steady_rate,
    "waited": lambda run: run.share,
    "first batch": lambda run: run.first,
    "CPU-s": lambda run: run.cpu,
    "memory": lambda run: float(run.memory) or None,
    "GPU busy": lambda run: run.gpu,
}


def main_loader(loaders: Sequence[MeasuredLoader], site: str | None = None) -> MeasuredLoader | None:
    """Returns the loader in which most time was spent; of a line, if one is named. None if there is none."""
    found = [one for one in loaders if site in (None, one.about["site"])]
    return max(found, key=lambda one: one.summary().spent, default=None)


def same_loaders(loaders: Sequence[MeasuredLoader], site: str, dataset: str) -> list[MeasuredLoader]:
    """Returns the loaders of a line and a class of datasets: one for each rank."""
    return [one for one in loaders if (one.about["site"], one.about["dataset"]) == (site, dataset)]


def run_of(
    engine: str, loaders: Sequence[MeasuredLoader], samples: Sequence[TreeSample], gpus: Sequence[GpuSample] = ()
) -> EngineRun:
    """Returns the figures of a loader, over all its ranks: rates are added, shares are means, times are the longest."""
    sums = [one.summary(samples, gpus) for one in loaders]
    busy = [one.gpu for one in sums if one.gpu is not None]
    steady = [steady_rate(one.epochs) for one in loaders]
    return EngineRun(
        engine,
        sum(one.batches for one in sums),
        sum(one.samples for one in sums),
        sum(one.rate for one in sums),
        None if None in steady else sum(rate for rate in steady if rate is not None),
        sum(one.share for one in sums) / len(sums),
        max(one.first for one in sums),
        max(one.cpu for one in sums),
        max(one.peak for one in sums),
        sum(busy) / len(busy) if busy else None,
    )


def steady_rate(epochs: Sequence[EpochSpans]) -> float | None:
    """Returns samples per second without the first batch of each epoch; None if there is no other."""
    later = [epoch for epoch in epochs if len(epoch.spans) > 1]
    spent = sum(epoch.until - epoch.spans[0].got for epoch in later)
    return sum(span.samples for epoch in later for span in epoch.spans[1:]) / spent if spent > 0 else None


def compared(runs: Sequence[EngineRun]) -> list[ComparedFigure]:
    """Returns the figures of all rounds in which both engines were run; none if there was no such round."""
    torch, stoker = ([run for run in runs if run.engine == engine] for engine in ENGINES)
    pairs = list(zip(torch, stoker, strict=False))
    figures = []
    for name, value in FIGURES.items():
        each = [(value(one), value(other)) for one, other in pairs]
        known = [(one, other) for one, other in each if one is not None and other is not None]
        if known:
            ratios = [other / one for one, other in known if one]
            spreads = Spread.of([one for one, _ in known]), Spread.of([other for _, other in known])
            figures.append(ComparedFigure(name, *spreads, Spread.of(ratios) if len(ratios) == len(known) else None))
    return figures


def conclusion(figures: Sequence[ComparedFigure], rounds: int) -> str:
    """Returns the comparison of the rates as a sentence."""
    rate = next(figure for figure in figures if figure.name == "samples/s")
    waited = next(figure for figure in figures if figure.name == "waited")
    ratio = rate.ratio
    if ratio is None:
        return "Nothing to compare: no sample arrived under torch's engine."
    spread = f"{ratio.least:.2f} to {ratio.most:.2f} in {rounds} rounds"
    if rounds == 1:
        return (
            f"Stoker's engine gives {ratio.median:.2f} times the samples/s in one round: --rounds 3 shows the spread."
        )
    if ratio.least <= 1 <= ratio.most or abs(ratio.median - 1) <= NO_DIFFERENCE:
        text = f"No difference in samples/s: the ratio is {ratio.median:.2f} ({spread})."
        if waited.torch.median <= NEGLIGIBLE_SHARE:
            text += f" The loop waits {waited.torch.median:.1%} of its time for batches: no loader makes it faster."
        return text
    speed = "more" if ratio.median > 1 else "fewer"
    return f"Stoker's engine gives {speed} samples/s: {ratio.median:.2f} times as many ({spread})."


def figures_as_dict(figures: Sequence[ComparedFigure]) -> dict[str, Any]:
    """Returns the figures as plain JSON values. Times are seconds, memory is in bytes, shares are from 0 to 1."""
    each = map(asdict, figures)
    return {one.pop("name"): one for one in each}


STAYS = "stays on torch's engine"
"""Words of the warning of `stoker.install()` about a loader that it leaves as it is."""


class EngineRounds:
    """Runs of one program under both engines. The first run decides which loader, and how many batches, count.

    The order of the engines alternates, so that neither has always the files that the other has read.

    Args:
        batches: of the loader in each run; None for as many as torch's engine gives in `seconds`.
        seconds: of the first run, after the first batch.
        site: the line that iterates ("train.py:31"); None for the loader in which most time is spent.

    Attributes:
        about: settings of the loader; empty before the first run.
        batches: that each run takes, of each rank; None before the first run, unless given.
    """

    def __init__(
        self, command: Sequence[str], batches: int | None, seconds: float, rounds: int, site: str | None = None
    ) -> None:
        self._command = command
        self._seconds = seconds
        self._rounds = rounds
        self._site = site
        self.batches = batches
        self.runs: list[EngineRun] = []
        self.about: dict[str, Any] = {}

    def run(self, watch: Callable[[str], None]) -> None:
        """Does all rounds. What was measured stays in the attributes if an exception, as of Ctrl-C, ends it.

        Args:
            watch: called with the state in words, before each run.

        Raises:
            ProgramFailedError: the program failed, or none of its loaders was iterated over.
        """
        for number in range(self._rounds):
            engines: tuple[Engine, ...] = ("torch", "stoker") if number % 2 == 0 else ("stoker", "torch")
            for engine in engines:
                watch(f"round {number + 1} of {self._rounds}, {engine}'s engine")
                self._once(engine)

    def _once(self, engine: Engine) -> None:
        known_site, known_dataset = self.about.get("site", self._site), self.about.get("dataset")
        limit = BatchLimit(self.batches, self._seconds, site=known_site, dataset=known_dataset)
        with WatchedProgram(self._command, engine, limit) as program:
            failure = run_to_limit(program)
            if failure is not None:
                raise ProgramFailedError(f"under {engine}'s engine the program failed: {failure}")
            loaders = program.measurements.loaders
            found = self._loader(loaders, engine, known_dataset, program)
            ranks = same_loaders(loaders, found["site"], found["dataset"])
            measured = run_of(engine, ranks, program.measurements.samples, program.measurements.gpus)
            if engine == "stoker" and found["engine"] != "stoker":
                why = program.said(STAYS)
                raise ProgramFailedError(
                    f"Stoker's engine was not used for {found['site']}: {why or 'the program leaves it on torch'}"
                )
        if not self.about:
            self.about, self.batches = found, max(one.summary().batches for one in ranks)
        self.runs.append(measured)

    def _loader(self, loaders: Any, engine: str, dataset: str | None, program: WatchedProgram) -> dict[str, Any]:
        """Returns the facts of the loader that counts."""
        found = main_loader(loaders, self.about.get("site", self._site))
        if found is None and self._site is not None and loaders:
            sites = ", ".join(sorted({one.about["site"] for one in loaders}))
            raise ProgramFailedError(f"no loader is iterated over at {self._site}: there are {sites}")
        if found is None or (found.about["dataset"] != dataset and dataset is not None):
            raise ProgramFailedError(
                "no loader was iterated over: there was no torch.utils.data.DataLoader and no stoker.DataLoader. The "
                f"program's last line was: {program.last_words()}"
            )
        if engine == "torch" and found.about["engine"] == "stoker":
            raise ProgramFailedError(
                f"{found.about['site']} uses Stoker's engine by itself: compare needs a program with torch's DataLoader"
            )
        return found.about
