"""The curves of `stoker bench`, samples/s over workers and over batch sizes, as an HTML file or as an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.diagnostics.page.html_file import write_page
from stoker.diagnostics.settings.setting_trial import SettingTrial
from stoker.errors import MissingExtraError

IMAGES = (".png", ".svg", ".pdf")
"""Endings of files that matplotlib writes."""

PAGES = (".html", ".htm")
"""Endings of files that open in a browser."""


def write_plot(trials: Sequence[SettingTrial], path: str, title: str, verdict: str) -> None:
    """Writes the curves: an HTML file that opens offline, or by matplotlib a PNG, SVG or PDF.

    Args:
        trials: of the grid; failures are left out.
        path: of the file; its ending decides.
        title: the measurement.
        verdict: the heading.

    Raises:
        MissingExtraError: an image is asked for, and matplotlib is not installed.
        OSError: the file cannot be written.
    """
    if path.lower().endswith(IMAGES):
        _write_image(trials, path, title)
    else:
        _write_page(trials, path, title, verdict)


def check_plot(path: str) -> None:
    """Refuses an unknown kind of file, or an image where there is no matplotlib, before the measurement.

    Raises:
        ValueError: the file's name has another ending.
        MissingExtraError: matplotlib is not installed.
    """
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
        trials: of the grid.
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


def _write_page(trials: Sequence[SettingTrial], path: str, title: str, verdict: str) -> None:
    data = {
        "verdict": verdict,
        "over_workers": curves(trials, True),
        "over_sizes": curves(trials, False),
        "settings": [trial.as_dict() for trial in trials],
    }
    write_page(path, "bench", "stoker bench", "Settings", title, data)


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
