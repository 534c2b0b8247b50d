"""Forecasts the memory of a setting from the trials so far, so that no trial takes more than there is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.diagnostics.settings.loader_setting import PREFETCH, LoaderSetting
from stoker.diagnostics.settings.setting_trial import SettingTrial


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
