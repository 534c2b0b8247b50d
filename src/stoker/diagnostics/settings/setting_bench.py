"""Benches measure a loader with one setting after the other; the curves of `stoker bench` show it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader
from stoker.diagnostics.page.html_file import write_page
from stoker.diagnostics.settings.batch_limit import BatchLimit
from stoker.diagnostics.settings.engine_comparison import main_loader, same_loaders
from stoker.diagnostics.settings.setting_trial import LoaderSetting, Override, SettingTrial, trial_of
from stoker.diagnostics.watched_program import TOO_LATE, Engine, WatchedProgram, run_to_limit
from stoker.errors import MissingExtraError, ProgramFailedError, TargetError

LEAST = 4
"""Batches that are measured with each setting, at least."""

PATIENCE = 60.0
"""Seconds that a setting may take, its start included."""


@dataclass(frozen=True)
class BenchedLoader:
    """The loader of a bench.

    Attributes:
        name: of the target, or the line that iterates.
        engine: "torch" or "stoker": under which it is measured.
        threads: whether `threads_per_worker` is an argument that has an effect.
        is_stream: whether it is a torch loader of a stream, which each worker may read from its start.
    """

    name: str
    present: LoaderSetting
    dataset: str
    engine: str
    threads: bool
    is_stream: bool = False


class SettingBench(ABC):
    """Measures a loader with settings, as a context manager. `open` comes first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027  # a script's bench keeps nothing
        """Ends all that was started. Idempotent."""

    @abstractmethod
    def open(self) -> BenchedLoader:
        """Returns the facts of the loader. Starts the processes that it needs; call it once.

        Raises:
            TargetError: there is no such loader.
            ProgramFailedError: the program that makes it fails, or uses none.
        """

    @abstractmethod
    def measure(self, setting: LoaderSetting, seconds: float, patience: float = PATIENCE) -> SettingTrial:
        """Returns the trial of a setting. A setting that fails is a trial as well.

        Args:
            seconds: after the warm start.
            patience: seconds that it may take in all.
        """

    @property
    @abstractmethod
    def taken(self) -> int:
        """Returns the memory that the program takes now, between two trials, in bytes."""


class ScriptBench(SettingBench):
    """Runs a script for each setting, up to enough batches of one of its loaders.

    Args:
        seconds: of the first run, with the setting that the script has.
        site: the line that iterates; None for the loader in which most time is spent.
    """

    def __init__(self, command: Sequence[str], engine: Engine, seconds: float, site: str | None = None) -> None:
        self._command = command
        self._engine = engine
        self._seconds = seconds
        self._site = site
        self._known: BenchedLoader | None = None
        self._first: SettingTrial | None = None

    taken = 0

    def open(self) -> BenchedLoader:
        """Runs the script as it is."""
        limit = BatchLimit(None, self._seconds, least=LEAST, site=self._site)
        with WatchedProgram(self._command, self._engine, limit) as program:
            failure = run_to_limit(program)
            if failure is not None:
                raise ProgramFailedError(f"the program failed: {failure}")
            loaders = program.measurements.loaders
            found = main_loader(loaders, self._site)
            if found is None:
                sites = sorted({one.about["site"] for one in loaders})
                raise ProgramFailedError(
                    f"no loader is iterated over at {self._site}: there are {', '.join(sites)}"
                    if sites
                    else "no loader was iterated over: there was no torch.utils.data.DataLoader and no "
                    f"stoker.DataLoader. The program's last line was: {program.last_words()}"
                )
            about = found.about
            workers = about["num_workers"] or 0
            present = LoaderSetting(workers, about["prefetch_factor"] if workers else None, 1, about["batch_size"])
            if workers:
                persistent = bool(about["persistent_workers"])
                present = replace(present, threads=about["threads_per_worker"] or 1, persistent=persistent)
            is_ours = about["engine"] == "stoker" and self._engine == "torch"
            self._known = BenchedLoader(
                about["site"], present, about["dataset"], about["engine"], is_ours, about["stream"] and not is_ours
            )
            self._first = self._trial(program, present)
        return self._known

    def measure(self, setting: LoaderSetting, seconds: float, patience: float = PATIENCE) -> SettingTrial:
        """Runs the script once, up to enough batches. The first run serves for the script's own setting."""
        assert self._known is not None
        if setting == self._known.present and self._first is not None:
            first, self._first = self._first, None
            return first
        site, dataset = self._known.name, self._known.dataset
        limit = BatchLimit(None, seconds, setting.workers + 1, LEAST, site, dataset)
        with WatchedProgram(self._command, self._engine, limit, Override(setting, site, dataset)) as program:
            failure = run_to_limit(program, patience)
            return self._trial(program, setting) if failure is None else SettingTrial(setting, failure=failure)

    def _trial(self, program: WatchedProgram, setting: LoaderSetting) -> SettingTrial:
        """Returns the trial of a run: rates of several ranks are added."""
        assert self._known is not None
        known, samples = program.measurements, program.measurements.samples
        loaders = same_loaders(known.loaders, self._known.name, self._known.dataset)
        trials = [trial_of(setting, one.epochs, samples, setting.workers + 1) for one in loaders]
        good = [trial for trial in trials if trial.failure is None]
        if not good:
            return SettingTrial(setting, failure="it gave no batch")
        return replace(
            good[0],
            rate=sum(trial.rate for trial in good),
            share=sum(trial.share for trial in good) / len(good),
            first=max(trial.first for trial in good),
            batches=sum(trial.batches for trial in good),
        )


class TargetBench(SettingBench):
    """Measures the loader that `module:object` names, in another process, which keeps it between the settings.

    Args:
        name: `module:object`.
        step: seconds of the training loop after each batch.
        batch_size: of a dataset that is named without a loader; None for the usual one.
    """

    def __init__(self, name: str, engine: Engine = "torch", step: float = 0.0, batch_size: int | None = None) -> None:
        self._name = name
        self._engine = engine
        self._step = step
        self._batch_size = batch_size
        self._program: WatchedProgram | None = None
        self._answers = ""
        self._read = 0
        self._present_size: int | None = None

    def open(self) -> BenchedLoader:
        """Starts the process, which makes the loader."""
        about = self._start()
        setting = LoaderSetting(**about["setting"])
        if not setting.workers:
            setting = replace(setting, prefetch=None, threads=1)
        self._present_size = setting.batch_size
        engine = self._engine if about["engine"] == "torch" else "stoker"
        return BenchedLoader(self._name, setting, about["dataset"], engine, about["threads"], about["stream"])

    @property
    def taken(self) -> int:
        """Returns the memory that the process takes now."""
        samples = [] if self._program is None else self._program.measurements.samples
        return samples[-1].memory if samples else 0

    def measure(self, setting: LoaderSetting, seconds: float, patience: float = PATIENCE) -> SettingTrial:
        """Iterates over the loader with a setting. A process that died is started again."""
        if self._program is None:
            self._start()
        program = self._program
        assert program is not None
        size = setting.batch_size or self._present_size
        step = self._step * (size / self._present_size if size and self._present_size else 1.0)
        request = {"seconds": seconds, "least": LEAST, "most": 0.5 * patience, "step": step}
        begun = time.perf_counter()
        program.stdin.write((json.dumps({"setting": vars(setting), **request}) + "\n").encode())
        program.stdin.flush()
        answer = self._answer(patience)
        if "failure" in answer:
            return SettingTrial(setting, failure=answer["failure"])
        epochs = _since(program.measurements.loaders, begun)
        trial = trial_of(setting, epochs, program.measurements.samples, setting.workers + 1)
        return replace(trial, same=answer["same"])

    def _start(self) -> dict[str, Any]:
        handle, self._answers = tempfile.mkstemp(prefix="stoker-tune-")
        os.close(handle)
        self._read = 0
        size = [] if self._batch_size is None else [str(self._batch_size)]
        command = [sys.executable, "-m", "stoker.diagnostics.settings.setting_loop", self._name, self._answers, *size]
        self._program = WatchedProgram(command, self._engine, asked=True)
        self._program.__enter__()
        about = self._answer(None)
        if "failure" in about:
            kind, _, said = about["failure"].partition(": ")
            self.close()
            if kind == TargetError.__name__:
                raise TargetError(said)
            raise ProgramFailedError(f"{self._name} cannot be made: {about['failure']}")
        return about

    def _answer(self, patience: float | None) -> dict[str, Any]:
        """Waits for the next answer. If there is none in time, or the process dies, the process is ended."""
        program = self._program
        assert program is not None
        begun = time.perf_counter()
        while True:
            runs = program.look()
            with open(self._answers, "rb") as file:
                file.seek(self._read)
                line = file.readline()
            if line.endswith(b"\n"):
                self._read += len(line)
                program.look(0)
                answer: dict[str, Any] = json.loads(line)
                return answer
            late = patience is not None and time.perf_counter() - begun > patience
            if not runs or late:
                words = TOO_LATE if late else program.shortage
                words = words or f"its process ended with exit code {program.code}: {program.last_words()}"
                self.close()
                return {"failure": words}

    def close(self) -> None:
        """Kills the process. Idempotent."""
        if self._program is not None:
            self._program.__exit__(None, None, None)
            self._program = None
            os.unlink(self._answers)


def _since(loaders: Sequence[MeasuredLoader], begun: float) -> list[EpochSpans]:
    """Returns the epochs that began after a time, in order."""
    epochs = [epoch for loader in loaders for epoch in loader.epochs if epoch.begun >= begun]
    return sorted(epochs, key=lambda epoch: epoch.begun)


IMAGES = (".png", ".svg", ".pdf")
"""Endings of files that matplotlib writes."""

PAGES = (".html", ".htm")
"""Endings of files that open in a browser."""


def write_plot(trials: Sequence[SettingTrial], path: str, title: str, verdict: str) -> None:
    """Writes the curves: an HTML file that opens offline, or by matplotlib a PNG, SVG or PDF.

    Args:
        trials: of the grid; failures are left out.
        path: of the file; its ending decides.
    """
    if path.lower().endswith(IMAGES):
        _write_image(trials, path, title)
        return
    data = {
        "verdict": verdict,
        "over_workers": curves(trials, True),
        "over_sizes": curves(trials, False),
        "settings": [trial.as_dict() for trial in trials],
    }
    write_page(path, "bench", "stoker bench", "Settings", title, data)


def check_plot(path: str) -> None:
    """Refuses an unknown kind of file, or an image where there is no matplotlib, before the measurement."""
    if not path.lower().endswith((*PAGES, *IMAGES)):
        endings = ", ".join((PAGES[0], *IMAGES[:-1]))
        raise ValueError(f"{path}: the curves are written as {endings} or {IMAGES[-1]}: name such a file")
    if path.lower().endswith(IMAGES):
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                f"{path} is drawn by matplotlib, which is not installed: pip install matplotlib, or name an .html file"
            ) from error


def curves(trials: Sequence[SettingTrial], over_workers: bool) -> dict[str, Any]:
    """Returns the rates over one argument, with a line for each value of the other; None where nothing was measured.

    Args:
        over_workers: whether the workers are the axis, and not the batch sizes.
    """
    points = {}
    for trial in trials:
        if trial.failure is None:
            workers, size = trial.setting.workers, trial.setting.batch_size or 0
            points[(workers, size) if over_workers else (size, workers)] = trial.rate
    values = sorted({axis for axis, _ in points})
    others = sorted({other for _, other in points})
    name = "batch size {}" if over_workers else "{} workers"
    lines = [
        {
            "name": name.format(other) if other or not over_workers else "batches of the loader",
            "rates": [points.get((axis, other)) for axis in values],
        }
        for other in others
    ]
    return {"values": values, "lines": lines}


def _write_image(trials: Sequence[SettingTrial], path: str, title: str) -> None:
    check_plot(path)
    from matplotlib.figure import Figure

    both = [(curves(trials, True), "workers"), (curves(trials, False), "batch size")]
    shown = [(one, label) for one, label in both if len(one["values"]) > 1] or both[:1]
    figure = Figure(figsize=(6.4 * len(shown), 4.2), layout="constrained")
    figure.suptitle(title)
    for axes, (one, label) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for line in one["lines"]:
            rates = [float("nan") if rate is None else rate for rate in line["rates"]]
            axes.plot(one["values"], rates, marker="o", label=line["name"])
        axes.set(xlabel=label, ylabel="samples/s", ylim=(0, None), xticks=one["values"])
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)
