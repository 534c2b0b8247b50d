"""`EngineRounds`: runs a program under torch's engine and under Stoker's by turns, as far as is needed to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stoker.diagnostics.engine_comparison import EngineRun, main_loader, run_of, same_loaders
from stoker.diagnostics.settings.batch_limit import BatchLimit
from stoker.diagnostics.watched_program import Engine, WatchedProgram, run_to_limit
from stoker.errors import ProgramFailedError

STAYS = "stays on torch's engine"
"""Words of the warning of `stoker.install()` about a loader that it leaves as it is."""


class EngineRounds:
    """Runs of one program under both engines. The first run decides which loader, and how many batches, count.

    The order of the engines alternates, so that neither has always the files that the other has read.

    Args:
        command: the program and its arguments.
        batches: of the loader in each run; None for as many as torch's engine gives in `seconds`.
        seconds: of the first run, after the first batch.
        rounds: runs of each engine.
        site: the line that iterates ("train.py:31"); None for the loader in which most time is spent.

    Attributes:
        runs: so far.
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
