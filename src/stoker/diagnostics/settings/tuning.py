"""`Tuning`: a search, or a grid, of settings on a bench, within a time and within the memory there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker._core.machine import memory, reserve
from stoker.diagnostics.settings.setting_bench import PATIENCE, BenchedLoader, SettingBench
from stoker.diagnostics.settings.setting_trial import PREFETCH, REPEATS, LoaderSetting, SettingTrial, repeats, together
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


TIE = 0.03
"""Relative difference of rates below which two settings are equal; more if the rates are noisier."""

NOISIEST = 0.06
"""Noise that makes two settings equal, at most."""

NOTHING_TO_GAIN = 0.02
"""Share of its time up to which a loop that waits has nothing to gain from a faster loader."""

IDLE = 0.7
"""Share of the CPUs up to which samples wait for something else: more workers than CPUs, and threads, may help."""

BEYOND = 4
"""Workers for each CPU, at most, if the CPUs idle."""

CLOSE = 0.1
"""Relative distance from the best up to which settings are measured again."""

STARTS = 0.1
"""Share of its time up to which a loop may wait for first batches of epochs; beyond it workers are kept."""

FINALISTS, FINALS = 4, 2
"""Settings that are measured again, at most, and how often."""

PREFETCHES, THREADS = (4, 8), (4, 8, 16)
"""Values that are tried one after the other, while they gain."""


@dataclass(frozen=True)
class SearchSpace:
    """The settings that may be tried.

    Attributes:
        most: workers; None for `BEYOND` times the CPUs.
        threads: whether the loader has threads in its workers.
        batch_sizes: to try, beside the loader's own; mostly none.
    """

    present: LoaderSetting
    cpus: int
    most: int | None = None
    threads: bool = False
    batch_sizes: tuple[int, ...] = ()


class SettingSearch:
    """The search. `plan()` yields settings and is sent their trials.

    First the loader's own setting; then 0, 1, 2, 4, ... workers, until the loop does not wait any more, or two numbers
    gained nothing, with `persistent_workers=True` if their start takes too much of each epoch; numbers between the best
    one and its neighbours; more prefetching, and threads, while they gain; other batch sizes, if any were asked for;
    and at last those near the best again, by turns.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._persistent = space.present.persistent
        self.known: dict[LoaderSetting, list[SettingTrial]] = {}

    def plan(self) -> Generator[LoaderSetting, SettingTrial, None]:
        """Yields the settings to try, one after the other; `send` it the trial of each."""
        space = self._space
        present = yield from self._tried(space.present)
        if present.failure is not None:
            return
        if space.present.workers == 0 and present.share <= NOTHING_TO_GAIN and not space.batch_sizes:
            return
        yield from self._workers()
        yield from self._between()
        best = self.best()
        if best is not None and best.share > NOTHING_TO_GAIN and best.setting.workers:
            yield from self._prefetch(best.setting)
            yield from self._threads()
        yield from self._batch_sizes()
        yield from self._finals()

    def best(self) -> SettingTrial | None:
        """Returns the trial of the cheapest setting whose rate is within the noise of the highest; None if all failed.

        Cheapest means: fewest workers, then fewest threads, then least prefetching, then the smallest batches.
        """
        good = self._good()
        if not good:
            return None
        fastest = max(good, key=lambda trial: trial.rate)
        ties = [max(TIE, min(NOISIEST, trial.noise + fastest.noise)) for trial in good]
        equal = [trial for trial, tie in zip(good, ties, strict=True) if trial.rate >= fastest.rate * (1 - tie)]
        return min(equal, key=lambda trial: _cost(trial.setting))

    def trials(self) -> list[SettingTrial]:
        """Returns one trial for each setting, in the order of the settings: those measured often as one.

        A setting with which samples repeat has failed.
        """
        each = [together(trials) for _, trials in sorted(self.known.items(), key=lambda item: _cost(item[0]))]
        return [replace(trial, failure=REPEATS) if repeats(trial, each) else trial for trial in each]

    def _good(self) -> list[SettingTrial]:
        return [trial for trial in self.trials() if trial.failure is None]

    def _tried(
        self, setting: LoaderSetting, again: bool = False
    ) -> Generator[LoaderSetting, SettingTrial, SettingTrial]:
        if setting not in self.known or again:
            trial = yield setting
            self.known.setdefault(setting, []).append(trial)
        return together(self.known[setting])

    def _of_workers(self, workers: int) -> LoaderSetting:
        """Returns the present setting with another number of workers."""
        prefetch = (self._space.present.prefetch or PREFETCH) if workers else None
        threads = self._space.present.threads if workers else 1
        persistent = self._persistent and workers > 0
        return replace(self._space.present, workers=workers, prefetch=prefetch, threads=threads, persistent=persistent)

    def _workers(self) -> Generator[LoaderSetting, SettingTrial, None]:
        space, fastest, in_vain = self._space, 0.0, 0
        for workers in numbers_of_workers(space.cpus, space.most):
            trial = yield from self._tried(self._of_workers(workers))
            if workers and trial.starts > STARTS and not self._persistent:
                self._persistent = True
                trial = yield from self._tried(self._of_workers(workers))
            if trial.failure is not None and workers:
                return
            if trial.failure is None and trial.share <= NOTHING_TO_GAIN:
                return
            in_vain = 0 if trial.rate > fastest * (1 + TIE) else in_vain + 1
            fastest = max(fastest, trial.rate)
            if in_vain >= 2 or (workers >= space.cpus and trial.cpus > IDLE * space.cpus):
                return

    def _between(self) -> Generator[LoaderSetting, SettingTrial, None]:
        """Tries the numbers in the middle between the best one and its neighbours."""
        best = self.best()
        if best is None:
            return
        tried = sorted(setting.workers for setting in self.known if setting == self._of_workers(setting.workers))
        number = best.setting.workers
        if number not in tried:
            return
        place = tried.index(number)
        neighbours = [tried[place - 1]] if place else []
        if place + 1 < len(tried) and best.share > NOTHING_TO_GAIN:
            neighbours.append(tried[place + 1])
        for neighbour in neighbours:
            middle = (number + neighbour) // 2
            if middle not in (number, neighbour):
                yield from self._tried(self._of_workers(middle))

    def _prefetch(self, setting: LoaderSetting) -> Generator[LoaderSetting, SettingTrial, None]:
        if setting.threads > 1:
            return
        fastest = together(self.known[setting]).rate
        for prefetch in PREFETCHES:
            if prefetch <= (setting.prefetch or PREFETCH):
                continue
            trial = yield from self._tried(replace(setting, prefetch=prefetch))
            if trial.rate <= fastest * (1 + TIE):
                return
            fastest = trial.rate

    def _threads(self) -> Generator[LoaderSetting, SettingTrial, None]:
        best = self.best()
        if best is None or not self._space.threads or best.cpus > IDLE * self._space.cpus:
            return
        fastest = 0.0
        workers = min(best.setting.workers, self._space.cpus)
        for threads in THREADS:
            if threads <= best.setting.threads:
                continue
            trial = yield from self._tried(replace(best.setting, workers=workers, threads=threads, prefetch=None))
            if trial.rate <= fastest * (1 + TIE):
                return
            fastest = trial.rate

    def _batch_sizes(self) -> Generator[LoaderSetting, SettingTrial, None]:
        best = self.best()
        if best is None:
            return
        for size in sorted(self._space.batch_sizes):
            trial = yield from self._tried(replace(best.setting, batch_size=size))
            if trial.failure is not None:
                return

    def _finals(self) -> Generator[LoaderSetting, SettingTrial, None]:
        for _ in range(FINALS):
            good = self._good()
            fastest = max((trial.rate for trial in good), default=0.0)
            near = [trial for trial in good if trial.rate >= fastest * (1 - CLOSE)]
            if len(near) < 2:
                return
            for trial in sorted(near, key=lambda trial: -trial.rate)[:FINALISTS]:
                yield from self._tried(trial.setting, again=True)


def numbers_of_workers(cpus: int, most: int | None) -> list[int]:
    """Returns 0, the powers of two up to the CPUs, the CPUs, and twice and four times as many, up to `most`."""
    limit = BEYOND * cpus if most is None else most
    powers = [2**power for power in range(cpus.bit_length()) if 2**power <= cpus]
    found = sorted({0, *powers, cpus, 2 * cpus, BEYOND * cpus})
    return sorted({number for number in found if number <= limit} | ({limit} if limit < cpus else set()))


def _cost(setting: LoaderSetting) -> tuple[int, int, int, int]:
    return setting.workers, setting.threads, setting.prefetch or 0, setting.batch_size or 0


def grid(present: LoaderSetting, workers: Iterable[int], batch_sizes: Sequence[int]) -> list[LoaderSetting]:
    """Returns each number of workers with each batch size."""
    sizes: Sequence[int | None] = list(batch_sizes) or [present.batch_size]
    prefetch = present.prefetch or PREFETCH
    return [
        replace(present, workers=number, prefetch=prefetch if number else None, batch_size=size)
        for size in sizes
        for number in workers
    ]


def forecast(trials: Sequence[SettingTrial], setting: LoaderSetting) -> int | None:
    """Returns the memory of all processes with a setting, in bytes; None if nothing is known.

    The trial with the fewest workers shows what the program takes by itself. Beyond it, memory is taken to grow with
    the workers, and in proportion to prefetch, threads and batch size, of which only a part does: the forecast is
    rather too high. Where no workers were measured, a worker is taken to be as large as the program itself.
    """
    known = [trial for trial in trials if trial.memory]
    if not known:
        return None
    least = min(known, key=lambda trial: (trial.setting.workers, trial.memory))
    if setting.workers <= least.setting.workers and _depth(setting) <= _depth(least.setting):
        return max(trial.memory for trial in known if trial.setting.workers == least.setting.workers)
    each = [
        (trial.memory - least.memory) / (trial.setting.workers - least.setting.workers) / _depth(trial.setting)
        for trial in known
        if trial.setting.workers > least.setting.workers
    ]
    growth = max(0.0, *each) if each else least.memory / max(1, least.setting.workers) / _depth(least.setting)
    more = max(1, setting.workers - least.setting.workers)
    return round(least.memory + more * growth * _depth(setting))


def _depth(setting: LoaderSetting) -> float:
    return (setting.prefetch or PREFETCH) / PREFETCH * max(1, setting.threads / 4) * (setting.batch_size or 1)
