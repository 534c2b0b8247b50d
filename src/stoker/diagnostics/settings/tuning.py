"""`Tuning`: a search, or a grid, of settings on a bench, within a time and within the memory there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

from stoker._core.machine import memory, reserve
from stoker.diagnostics.settings.loader_setting import PREFETCH, LoaderSetting
from stoker.diagnostics.settings.memory_forecast import forecast
from stoker.diagnostics.settings.setting_bench import PATIENCE, BenchedLoader, SettingBench
from stoker.diagnostics.settings.setting_search import SettingSearch
from stoker.diagnostics.settings.setting_trial import REPEATS, SettingTrial, repeats
from stoker.diagnostics.watched_program import TOO_LATE
from stoker.errors import ProgramFailedError

Watch = Callable[[LoaderSetting, list[SettingTrial]], None]


class Tuning:
    """Measures settings one after the other.

    Args:
        bench: that measures; open already.
        loader: what `bench.open()` returned.
        seconds: for each setting, after its warm start.
        ends: when all should be over, in seconds of `time.perf_counter()`; None for no limit.

    Attributes:
        trials: in the order in which they were made.
        out_of_time: whether settings were left out because the time was over.
    """

    def __init__(self, bench: SettingBench, loader: BenchedLoader, seconds: float, ends: float | None = None) -> None:
        self._bench = bench
        self._loader = loader
        self._seconds = seconds
        self._ends = ends
        self._took = 0.0
        self.trials: list[SettingTrial] = []
        self.out_of_time = False

    def follow(self, search: SettingSearch, watch: Watch) -> None:
        """Measures what a search asks for. What was measured stays if an exception, as of Ctrl-C, ends it.

        Args:
            search: is sent the trials.
            watch: called before each setting, with it and the trials so far.

        Raises:
            ProgramFailedError: the loader fails with its own setting.
        """
        self._follow(search.plan(), watch)

    def grid(self, settings: Iterable[LoaderSetting], watch: Watch) -> None:
        """Measures all settings."""

        def plan() -> Generator[LoaderSetting, SettingTrial, None]:
            for setting in settings:  # noqa: UP028  # a list is sent nothing
                yield setting

        self._follow(plan(), watch)

    def _follow(self, plan: Generator[LoaderSetting, SettingTrial, None], watch: Watch) -> None:
        setting = next(plan, None)
        while setting is not None:
            begun = time.perf_counter()
            patience = PATIENCE
            if self._ends is not None and self.trials:
                patience = min(PATIENCE, self._ends - begun)
                if patience < self._took:
                    self.out_of_time = True
                    return
            watch(setting, self.trials)
            trial = self._measured(setting, patience)
            if trial.failure == TOO_LATE and patience < PATIENCE:
                self.out_of_time = True
                return
            self._took = time.perf_counter() - begun
            self.trials.append(trial)
            if trial.failure is not None and len(self.trials) == 1 and setting == self._loader.present:
                raise ProgramFailedError(f"the loader fails with its own setting: {trial.failure}")
            try:
                setting = plan.send(trial)
            except StopIteration:
                return

    def _measured(self, setting: LoaderSetting, patience: float) -> SettingTrial:
        if (short := self._too_large(setting)) is not None:
            return SettingTrial(setting, failure=short)
        trial = self._bench.measure(setting, self._seconds, patience)
        return SettingTrial(setting, failure=REPEATS) if repeats(trial, self.trials) else trial

    def _too_large(self, setting: LoaderSetting) -> str | None:
        """Returns why the memory does not hold a setting; None if it does, or if nothing is known."""
        for trial in self.trials:
            if trial.failure is not None and "memory" in trial.failure and _is_larger(setting, trial.setting):
                return f"it was not tried: memory ran out with {in_words(trial.setting)}"
        needed = forecast([trial for trial in self.trials if trial.failure is None], setting)
        left = memory.available()
        free = left.bytes - reserve.kept_free(left.limit)
        if needed is None or needed - self._bench.taken <= free:
            return None
        return (
            f"it was not tried: it would take some {needed / 2**30:.1f} GiB of memory, and "
            f"{max(0, free) / 2**30:.1f} GiB are free"
        )


def _is_larger(one: LoaderSetting, other: LoaderSetting) -> bool:
    return (
        one.workers >= other.workers
        and (one.prefetch or PREFETCH) >= (other.prefetch or PREFETCH)
        and one.threads >= other.threads
        and (one.batch_size or 0) >= (other.batch_size or 0)
    )


def in_words(setting: LoaderSetting) -> str:
    """Returns a setting as arguments: "num_workers=4, prefetch_factor=2"."""
    return ", ".join(f"{name}={value}" for name, value in setting.arguments.items())


def line_to_paste(loader: BenchedLoader, trial: SettingTrial) -> str:
    """Returns the constructor's call with the arguments of a trial."""
    arguments: dict[str, Any] = dict(trial.setting.arguments)
    if trial.setting.prefetch == PREFETCH and loader.present.prefetch in (None, PREFETCH):
        arguments.pop("prefetch_factor", None)
    if trial.setting.batch_size == loader.present.batch_size:
        arguments.pop("batch_size", None)
    return f"DataLoader({', '.join(['...', *(f'{name}={value}' for name, value in arguments.items())])})"


def conclusion(loader: BenchedLoader, trials: Iterable[SettingTrial], best: SettingTrial) -> str:
    """Returns the gain of the best setting, as a sentence.

    Args:
        loader: that was measured.
        trials: one for each setting; one is that of the loader.
        best: that was chosen.
    """
    present = next(trial for trial in trials if trial.setting == loader.present)
    if present.failure is not None:
        return f"{best.rate:,.0f} samples/s. With {in_words(present.setting)}, as it is now, {present.failure}."
    if best.setting == loader.present:
        return f"The present setting is as good as any that was tried: {present.rate:,.0f} samples/s."
    ratio = best.rate / present.rate
    if ratio < 1.03:
        return f"The same {best.rate:,.0f} samples/s as with {in_words(present.setting)}, with less."
    text = ""
    if loader.is_stream and best.setting.workers > 1:
        text = " The dataset is a stream: make sure that each worker reads its share only (get_worker_info())."
    before = f"{present.rate:,.0f} with {in_words(present.setting)}"
    return f"{best.rate:,.0f} samples/s instead of {before}: {ratio:.2g} times.{text}"
