"""`LoaderSetting`: arguments that `stoker tune` tries. `SettingTrial`: the figures of a loader with them. Pure."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, NamedTuple

from stoker.diagnostics.measurements import EpochSpans, cpu_between
from stoker.diagnostics.process_tree import TreeSample

WINDOWS = 10
"""Parts of the measured time, at most. The rate is the median of their rates."""

UNSURE = 0.1
"""Noise of a rate from fewer than three parts."""


@dataclass(frozen=True)
class SettingTrial:
    """A setting and its measurements.

    Attributes:
        rate: samples per second after the warm start, the program's own steps included; 0 if it failed.
        noise: uncertainty of the rate, relative to it: the standard error of the median.
        share: of the time, spent waiting for batches.
        first: seconds from `iter(loader)` to the first batch, the longest.
        starts: share of the time, spent waiting for the first batches of epochs; 0 if one epoch was measured.
        cpus: CPUs in use by all processes.
        memory: most proportional memory of all processes, in bytes; 0 if unknown.
        failure: why there is no rate; else None.
        epoch: samples of a whole epoch, if there was one; else None.
        same: whether the first two batches were equal; None if unknown.
    """

    setting: LoaderSetting
    rate: float = 0.0
    noise: float = 0.0
    share: float = 0.0
    first: float = 0.0
    starts: float = 0.0
    cpus: float = 0.0
    memory: int = 0
    batches: int = 0
    failure: str | None = None
    epoch: int | None = None
    same: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the trial as plain JSON values."""
        return {
            "num_workers": self.setting.workers,
            "prefetch_factor": self.setting.prefetch if self.setting.workers else None,
            "persistent_workers": self.setting.persistent,
            "threads_per_worker": self.setting.threads,
            "batch_size": self.setting.batch_size,
            "samples_per_second": self.rate,
            "noise": self.noise,
            "waited_share": self.share,
            "first_batch": self.first,
            "cpus": self.cpus,
            "peak_memory": self.memory,
            "batches": self.batches,
            "failure": self.failure,
        }


def trial_of(
    setting: LoaderSetting, epochs: Sequence[EpochSpans], samples: Sequence[TreeSample], skip: int
) -> SettingTrial:
    """Returns the trial of a setting.

    Of several epochs, the first one is the warm start, and each of the others counts with its first batch: prefetching
    only moves work there. Of a single epoch, its first batches are the warm start.

    Args:
        epochs: of one loader meanwhile, in order.
        skip: batches of the warm start of a single epoch.
    """
    epochs = [epoch for epoch in epochs if any(span.batches for span in epoch.spans)]
    if not epochs:
        return SettingTrial(setting, failure="it gave no batch")
    later = [epoch for epoch in epochs[1:] if not epoch.spans[-1].batches] or epochs[1:]
    windows = [_whole(epoch) for epoch in later] or _windows(epochs[0], skip, setting.workers)
    whole = _sum(windows)
    rates = sorted(window.samples / window.spent for window in windows)
    middle = median(rates) if len(rates) > 2 else whole.samples / whole.spent
    begin, end = windows[0].begin, windows[-1].end
    return SettingTrial(
        setting,
        middle,
        _noise(rates),
        min(1.0, whole.waited / whole.spent),
        max(epoch.spans[0].got - epoch.begun for epoch in epochs),
        sum(epoch.spans[0].got - epoch.begun for epoch in later) / whole.spent,
        cpu_between(samples, begin, end) / (end - begin),
        _memory(samples, epochs[0].begun, max(epoch.until for epoch in epochs)),
        whole.batches,
        epoch=next((_whole(epoch).samples for epoch in epochs if not epoch.spans[-1].batches), None),
    )


class _Window(NamedTuple):
    begin: float
    end: float
    spent: float
    batches: int
    waited: float
    samples: int


def _sum(windows: Sequence[_Window]) -> _Window:
    sums = [sum(values) for values in list(zip(*windows, strict=True))[2:]]
    return _Window(windows[0].begin, windows[-1].end, *sums)


def _whole(epoch: EpochSpans) -> _Window:
    waited = epoch.ready - epoch.begun + sum(span.waited for span in epoch.spans)
    batches, samples = (
        sum(values) for values in ([one.batches for one in epoch.spans], [one.samples for one in epoch.spans])
    )
    return _Window(epoch.begun, epoch.until, max(epoch.until - epoch.begun, 1e-9), batches, waited, samples)


def _windows(epoch: EpochSpans, skip: int, workers: int) -> list[_Window]:
    """Returns parts of an epoch after its warm start, of some batches each.

    A window holds more batches than there are workers, because as many may arrive at once.
    """
    seen = 0
    parts = []
    for before, span in itertools.pairwise(epoch.spans):
        seen += before.batches
        if span.batches and span.got > before.got:
            part = _Window(before.got, span.got, span.got - before.got, span.batches, span.waited, span.samples)
            parts.append((seen, part))
    warm = [part for seen, part in parts if seen >= skip] or [part for _, part in parts]
    if not warm:  # one batch, or all at once
        return [_whole(epoch)]
    least = _sum(warm).spent / WINDOWS
    windows, open_ = [], []
    for part in warm:
        open_.append(part)
        joined = _sum(open_)
        if joined.spent >= least and joined.batches > workers:
            windows.append(joined)
            open_ = []
    return windows or [_sum(warm)]


def _memory(samples: Sequence[TreeSample], begin: float, end: float) -> int:
    """Returns the most memory that was read in a time; a sample may carry what was read with another setting."""
    return max((one.memory for one in samples if begin <= (one.read or one.time) <= end), default=0)


def _noise(rates: Sequence[float]) -> float:
    """Returns the relative standard error of the median of sorted rates."""
    if len(rates) < 3 or not median(rates):
        return UNSURE
    low, high = rates[len(rates) // 4], rates[-1 - len(rates) // 4]
    return 1.25 * (high - low) / 1.35 / math.sqrt(len(rates)) / median(rates)


REPEATS = (
    "each worker reads the whole stream, so samples repeat: share it out by get_worker_info(), or take "
    "stoker.DataLoader, which shares it out"
)
"""The failure of a setting with which samples repeat."""


def repeats(trial: SettingTrial, before: Sequence[SettingTrial]) -> bool:
    """Returns whether a setting gives samples several times: a stream that all workers read from its start.

    Args:
        trial: with several workers.
        before: other trials; those with at most one worker tell what an epoch should be.
    """
    single = [one for one in before if one.failure is None and one.setting.workers <= 1]
    lengths = [one.epoch for one in single if one.epoch]
    if trial.epoch is not None and lengths and trial.epoch > 1.5 * max(lengths):
        return True
    return trial.setting.workers > 1 and trial.same is True and any(one.same is False for one in single)


def together(trials: Sequence[SettingTrial]) -> SettingTrial:
    """Returns several trials of one setting as one: medians, and the most of times and memory."""
    good = [trial for trial in trials if trial.failure is None]
    if len(good) <= 1 or len(good) < len(trials):
        return next((trial for trial in trials if trial.failure is not None), trials[0])
    rates = [trial.rate for trial in good]
    middle = median(rates)
    spread = (max(rates) - min(rates)) / middle / math.sqrt(len(rates)) / 1.7
    inner = median(trial.noise for trial in good) / math.sqrt(len(rates))
    return SettingTrial(
        good[0].setting,
        middle,
        max(spread, inner),
        median(trial.share for trial in good),
        max(trial.first for trial in good),
        median(trial.starts for trial in good),
        median(trial.cpus for trial in good),
        max(trial.memory for trial in good),
        sum(trial.batches for trial in good),
        epoch=next((trial.epoch for trial in good if trial.epoch is not None), None),
        same=next((trial.same for trial in good if trial.same is not None), None),
    )


PREFETCH = 2
"""Batches ahead for each worker, if nothing is said: torch's default, and Stoker's."""


@dataclass(frozen=True)
class LoaderSetting:
    """Arguments of a loader.

    Attributes:
        prefetch: `prefetch_factor`; None without workers.
        threads: `threads_per_worker`, of Stoker's loaders only.
        batch_size: None leaves that of the loader.
    """

    workers: int
    prefetch: int | None = None
    threads: int = 1
    batch_size: int | None = None
    persistent: bool = False

    @property
    def arguments(self) -> dict[str, int]:
        """Returns the arguments for the constructor of a loader."""
        found: dict[str, int] = {} if self.batch_size is None else {"batch_size": self.batch_size}
        found["num_workers"] = self.workers
        if self.workers and self.prefetch is not None:
            found["prefetch_factor"] = self.prefetch
        if self.workers and self.threads > 1:
            found["threads_per_worker"] = self.threads
        if self.workers and self.persistent:
            found["persistent_workers"] = True
        return found


class Override:
    """Puts a setting into the loaders of a program, as `iter(loader)` is called.

    Args:
        site: the line that iterates; None for any.
        dataset: the dataset's class; None for any.
    """

    def __init__(self, setting: LoaderSetting, site: str | None = None, dataset: str | None = None) -> None:
        self._setting = setting
        self._site = site
        self._dataset = dataset

    def __call__(self, loader: Any, site: str) -> None:
        """Changes the loader, if it is the one that is meant."""
        if self._site in (None, site) and self._dataset in (None, type(getattr(loader, "dataset", None)).__name__):
            put_into(loader, self._setting)

    def as_text(self) -> str:
        """Returns the override as text for a variable of the environment."""
        return json.dumps({"setting": asdict(self._setting), "site": self._site, "dataset": self._dataset})

    @classmethod
    def of_text(cls, text: str) -> Override:
        """Returns the override that `as_text` gave."""
        values = json.loads(text)
        return cls(LoaderSetting(**values["setting"]), values["site"], values["dataset"])


def put_into(loader: Any, setting: LoaderSetting) -> None:
    """Changes an existing loader of torch's or Stoker's, with effect from its next `iter()` on. Idempotent.

    Raises:
        ValueError: the loader's batches are made by a batch sampler of its own, and another batch size is asked for;
            or threads are asked for, and the loader is torch's.
    """
    own, record = vars(loader), vars(loader).get("_stoker")
    before = setting_of(loader)
    wanted = replace(setting, batch_size=setting.batch_size or before.batch_size)
    if wanted.workers and wanted.prefetch is None:
        wanted = replace(wanted, prefetch=_usual_prefetch(loader, wanted.threads))
    if wanted == before and getattr(record, "auto", None) is None:
        return
    if wanted.threads > 1 and record is None:
        raise ValueError("threads_per_worker is an argument of stoker.DataLoader, and this loader is torch's")
    _end_persistent_workers(loader)
    if record is not None:
        record.try_with(wanted.threads)
    if wanted.batch_size != before.batch_size:
        _put_batch_size(loader, wanted.batch_size)
    own["num_workers"], own["prefetch_factor"] = wanted.workers, wanted.prefetch
    own["persistent_workers"] = wanted.persistent
    if not wanted.workers:
        own["timeout"] = 0


def _usual_prefetch(loader: Any, threads: int) -> int:
    record = vars(loader).get("_stoker")
    units = 1 if record is None else replace(record.options(loader), threads_per_worker=threads).units_at_once
    return max(PREFETCH, units)


def setting_of(loader: Any) -> LoaderSetting:
    """Returns the present setting of a loader."""
    workers = int(getattr(loader, "num_workers", 0) or 0)
    record = vars(loader).get("_stoker")
    threads = 1 if record is None else record.own()["threads_per_worker"]
    persistent = bool(workers and loader.persistent_workers)
    return LoaderSetting(workers, loader.prefetch_factor if workers else None, threads, loader.batch_size, persistent)


def _put_batch_size(loader: Any, size: int | None) -> None:
    sampler = loader.batch_sampler
    kind = type(sampler)
    if (
        loader.batch_size is None
        or kind.__name__ != "BatchSampler"
        or kind.__module__.split(".")[0] not in ("torch", "stoker")
    ):
        made = "without batches (batch_size=None)" if sampler is None else f"by a {kind.__name__} of its own"
        raise ValueError(f"the batch size cannot be changed, because the loader's batches are made {made}")
    changed = copy.copy(sampler)
    changed.batch_size = size
    vars(loader)["batch_sampler"], vars(loader)["batch_size"] = changed, size


def _end_persistent_workers(loader: Any) -> None:
    """Ends workers that would go on with the old setting."""
    iterator = vars(loader).get("_iterator")
    if iterator is None:
        return
    vars(loader)["_iterator"] = None
    end: Callable[[], None] | None = getattr(iterator, "close", None) or getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()
