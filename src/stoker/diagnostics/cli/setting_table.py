"""The trials of settings as a table with bars, or as lines on a narrow terminal."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from rich.console import Console

from stoker.diagnostics.cli.output import NARROW, print_table, seconds, size
from stoker.diagnostics.settings.loader_setting import LoaderSetting
from stoker.diagnostics.settings.setting_trial import SettingTrial

BAR = 20
"""Characters of the longest bar."""


def print_trials(console: Console, trials: Sequence[SettingTrial], chosen: LoaderSetting | None = None) -> None:
    """Prints a row for each trial. A `*` marks the setting that was chosen; failures are sentences below.

    Columns that are the same in all rows are left out.
    """
    sizes = len({trial.setting.batch_size for trial in trials}) > 1
    good = [trial for trial in trials if trial.failure is None]
    most = max((trial.rate for trial in good), default=0.0)
    if console.width < NARROW:
        width = max(6, console.width - 30)
        for trial in good:
            mark = "*" if trial.setting == chosen else " "
            console.print(
                f"{mark} {short(trial.setting, sizes):<12}{trial.rate:>9,.0f}/s {bar(trial.rate, most, width)}"
            )
    else:
        print_table(console, [_row(trial, good, most, chosen) for trial in good])
    for trial in trials:
        if trial.failure is not None:
            console.print(textwrap.fill(f"{short(trial.setting, sizes)}: {trial.failure}", console.width))


def short(setting: LoaderSetting, batch_size: bool = True) -> str:
    """Returns a setting in few characters: "4w", "4w p4 k", "2w t8 b64".

    Workers, prefetching (p), whether they are kept (k), threads (t), batch size (b) if it is asked for.
    """
    parts = [f"{setting.workers}w"]
    if setting.workers and setting.prefetch is not None and setting.prefetch != 2:
        parts.append(f"p{setting.prefetch}")
    if setting.persistent:
        parts.append("k")
    if setting.threads > 1:
        parts.append(f"t{setting.threads}")
    return " ".join([*parts, *([] if setting.batch_size is None or not batch_size else [f"b{setting.batch_size}"])])


def bar(value: float, most: float, width: int) -> str:
    """Returns a bar whose length is in proportion to a value."""
    mark = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    return mark * max(1, round(width * value / most)) if most and value else ""


def _row(
    trial: SettingTrial, good: Sequence[SettingTrial], most: float, chosen: LoaderSetting | None
) -> dict[str, str]:
    setting = trial.setting
    row = {"workers": f"{'*' if setting == chosen else ' '} {setting.workers}"}
    if len({one.setting.prefetch for one in good if one.setting.workers}) > 1:
        row["prefetch"] = "" if not setting.workers else str(setting.prefetch or "auto")
    if len({one.setting.persistent for one in good if one.setting.workers}) > 1:
        row["kept"] = "yes" if setting.persistent else "no"
    if any(one.setting.threads > 1 for one in good):
        row["threads"] = str(setting.threads)
    if len({one.setting.batch_size for one in good}) > 1:
        row["batch"] = str(setting.batch_size)
    return row | {
        "samples/s": f"{trial.rate:,.0f} ±{trial.noise:.0%}",
        "waited": f"{trial.share:.1%}",
        "first batch": seconds(trial.first),
        "CPUs": f"{trial.cpus:.1f}",
        "memory": size(trial.memory) if trial.memory else "unknown",
        " ": f"{bar(trial.rate, most, BAR):<{BAR}}",
    }
