"""Compares the loaders of two reports. Pure: the measurements of two reports in, figures out.

Loaders are matched by the line that iterates and the dataset's class. Where the line has moved, the file, the class and
the order decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stoker.diagnostics.page.html_file import Report

POINTS = 200
"""Of the common axis of two curves."""

NO_DIFFERENCE = 0.05
"""Distance from 1 up to which the ratio of two single runs counts as none."""

Loader = dict[str, Any]


@dataclass(frozen=True)
class PairedFigure:
    """A figure of a loader in both reports.

    Attributes:
        name: "samples/s", "waited", "first batch", "CPU-s / 1,000 samples", "memory", or one of `OPTIONAL`.
        unit: "number", "share", "seconds" or "bytes".
        ratio: after by before; None if either is unknown, or before is zero.
    """

    name: str
    unit: Literal["number", "share", "seconds", "bytes"]
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """Returns after, divided by before."""
        return self.after / self.before if self.before and self.after is not None else None


@dataclass(frozen=True)
class ReportPair:
    """Two reports, with their loaders matched.

    Attributes:
        pairs: numbers of loaders in the first and the second report, those with most time first.
        alone: of each report, the numbers of loaders without a partner.
    """

    reports: tuple[Report, Report]
    pairs: list[tuple[int, int]]
    alone: tuple[list[int], list[int]]

    def loaders(self, pair: tuple[int, int]) -> tuple[Loader, Loader]:
        """Returns the loaders of a pair."""
        return self.reports[0]["loaders"][pair[0]], self.reports[1]["loaders"][pair[1]]


def paired(before: Report, after: Report) -> ReportPair:
    """Returns two reports with their loaders matched."""
    left = [list(range(len(report["loaders"]))) for report in (before, after)]
    pairs = []
    for key in (_line, _file):
        for one in list(left[0]):
            wanted = key(before["loaders"][one])
            other = next((number for number in left[1] if key(after["loaders"][number]) == wanted), None)
            if other is not None:
                pairs.append((one, other))
                left[0].remove(one)
                left[1].remove(other)
    pairs.sort(key=lambda pair: -before["loaders"][pair[0]]["seconds"] - after["loaders"][pair[1]]["seconds"])
    return ReportPair((before, after), pairs, (left[0], left[1]))


def _line(loader: Loader) -> tuple[Any, ...]:
    return loader["name"], loader["settings"]["dataset"]


def _file(loader: Loader) -> tuple[Any, ...]:
    settings = loader["settings"]
    return str(settings["site"]).rpartition(":")[0], settings["dataset"], settings["rank"]


FIGURES: tuple[tuple[str, Literal["number", "share", "seconds", "bytes"], Callable[[Loader], float | None]], ...] = (
    ("samples/s", "number", lambda one: one["samples_per_second"]),
    ("waited", "share", lambda one: one["waited_share"]),
    ("first batch", "seconds", lambda one: one["first_batch"]),
    (
        "CPU-s / 1,000 samples",
        "number",
        lambda one: 1000 * one["cpu_seconds"] / one["samples"] if one["samples"] else None,
    ),
    ("memory", "bytes", lambda one: one["peak_memory"] or None),
    ("GPU busy", "share", lambda one: one.get("gpu_busy")),
    ("workers' growth, MiB/min", "number", lambda one: _growth(one)),
    ("workers replaced", "number", lambda one: _count(one, "worker replaced")),
    ("samples left out", "number", lambda one: _count(one, "sample left out", "sample skipped")),
)


OPTIONAL = {"GPU busy", "workers' growth, MiB/min", "workers replaced", "samples left out"}
"""Figures that are left out where both reports have none."""


def figures(before: Loader, after: Loader) -> list[PairedFigure]:
    """Returns the figures of a loader in both reports."""
    known = [PairedFigure(name, unit, value(before), value(after)) for name, unit, value in FIGURES]
    return [one for one in known if one.name not in OPTIONAL or one.before or one.after]


def _growth(loader: Loader) -> float | None:
    if "worker_growth" not in loader:  # of an earlier version
        return None
    return loader["worker_growth"]["rate"] * 60 / 2**20 if loader["worker_growth"] else 0.0


def _count(loader: Loader, *what: str) -> float | None:
    counts = loader["faults"]["counts"] if "faults" in loader else None
    return None if counts is None else float(sum(counts.get(one, 0) for one in what))


def conclusion(known: ReportPair) -> str:
    """Returns the comparison of the loader with most time as a sentence."""
    if not known.pairs:
        return "No loader is in both reports."
    before, after = known.loaders(known.pairs[0])
    rate = figures(before, after)[0].ratio
    if rate is None:
        return f"{before['name']}: no sample arrived in the first report."
    waits = (
        f"the loop waits {after['waited_share']:.0%} of its time for batches instead of {before['waited_share']:.0%}"
    )
    if abs(rate - 1) <= NO_DIFFERENCE:
        return f"No clear difference at {before['name']}: {rate:.2f} times the samples/s, and {waits}."
    speed = "more" if rate > 1 else "fewer"
    return f"{before['name']} gives {speed} samples/s in the second report: {rate:.2f} times as many, and {waits}."


def remarks(known: ReportPair) -> list[str]:
    """Returns further notes for the reader, as sentences: other machines, loaders without a partner, and the like."""
    before, after = known.reports
    said = []
    if before["cpus"] != after["cpus"]:
        said.append(f"The runs had {before['cpus']} and {after['cpus']} CPUs.")
    said += [f"{report['file']} was interrupted." for report in known.reports if report.get("interrupted")]
    for one, other in (known.loaders(pair) for pair in known.pairs):
        if one["name"] != other["name"]:
            said.append(f"{one['name']} is matched with {other['name']}: same file, same dataset's class.")
    for report, alone in zip(known.reports, known.alone, strict=True):
        for number in alone:
            loader = report["loaders"][number]
            said.append(f"{loader['name']} {loader['settings']['dataset']} is in {report['file']} alone.")
    return said


def as_dict(known: ReportPair) -> dict[str, Any]:
    """Returns the comparison as plain JSON values. Times are seconds, memory is in bytes, shares are from 0 to 1."""
    return {
        "reports": [
            {name: report[name] for name in ("file", "program", "engine", "seconds", "cpus")}
            for report in known.reports
        ],
        "conclusion": conclusion(known),
        "remarks": remarks(known),
        "loaders": [_pair_as_dict(*known.loaders(pair)) for pair in known.pairs],
    }


def _pair_as_dict(before: Loader, after: Loader) -> dict[str, Any]:
    return {
        "names": [before["name"], after["name"]],
        "dataset": before["settings"]["dataset"],
        "workers": [before["settings"].get("num_workers"), after["settings"].get("num_workers")],
        "figures": [{**vars(one), "ratio": one.ratio} for one in figures(before, after)],
        "verdicts": [{"kind": one["verdict"], "text": one["text"], "change": one["change"]} for one in (before, after)],
    }


def page_data(known: ReportPair) -> dict[str, Any]:
    """Returns the contents of the page: `as_dict`, with curves over one axis and the parts of each loader's time."""
    whole = as_dict(known)
    for shown, pair in zip(whole["loaders"], known.pairs, strict=True):
        sides = list(zip(known.reports, pair, strict=True))
        shown["curves"] = common_curves([_curves(report, number) for report, number in sides])
        shown["parts"] = [parts(report["loaders"][number]) for report, number in sides]
    return whole


def parts(loader: Loader) -> dict[str, float]:
    """Returns seconds for 1,000 samples: for first batches, for other batches, and of the program's own step."""
    firsts = min(loader["waited_for_first_batches"], loader["waited"])
    share = 1000 / max(1, loader["samples"])
    return {
        "first batches": share * firsts,
        "waiting": share * (loader["waited"] - firsts),
        "your step": share * max(0.0, loader["seconds"] - loader["waited"]),
    }


def _curves(report: Report, number: int) -> dict[str, Any]:
    found = next(one for one in report["over_time"]["loaders"] if one["loader"] == number)
    return {"times": report["over_time"]["times"], **found}


def common_curves(curves: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns curves of several runs over one axis, which begins for each run when its loader is first used."""
    begins, lengths = [], []
    for one in curves:
        used = [time for time, rate in zip(one["times"], one["rate"], strict=True) if rate is not None]
        begins.append(used[0] if used else 0.0)
        lengths.append(used[-1] - used[0] if used else 0.0)
    step = max(lengths, default=0.0) / (POINTS - 1)
    times = [step * number for number in range(POINTS)] if step else []

    def at(one: dict[str, Any], begin: float, name: str) -> list[float | None]:
        width = one["times"][1] - one["times"][0]
        places = [round((begin + time - one["times"][0]) / width) for time in times]
        return [one[name][place] if place < len(one[name]) else None for place in places]

    return {
        "times": [round(time, 4) for time in times],
        **{
            name: [at(one, begin, name) for one, begin in zip(curves, begins, strict=True)]
            for name in ("rate", "share")
        },
    }
