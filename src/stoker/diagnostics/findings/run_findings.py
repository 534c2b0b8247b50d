"""Faults and growth of a whole run: plain values for JSON and the report, and lines for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.diagnostics.findings.fault_log import NONE
from stoker.diagnostics.findings.worker_growth import WorkerGrowth, curve, worker_growth
from stoker.diagnostics.measurements import MeasuredLoader, Measurements

JUDGED = 40
"""Loaders whose workers' memory is judged; those whose workers made most batches."""


def growth_of(known: Measurements, loaders: Sequence[MeasuredLoader]) -> dict[int, WorkerGrowth]:
    """Returns the growth of the workers of loaders, by the loader's number; those that do not grow are left out."""
    histories = known.memory.histories
    made = [sum(map(len, loader.works)) for loader in loaders]
    numbers = sorted(range(len(loaders)), key=lambda number: -made[number])[:JUDGED]
    found = {number: worker_growth(loaders[number], histories) for number in sorted(numbers)}
    return {number: growth for number, growth in found.items() if growth is not None}


def findings_of_loaders(known: Measurements) -> list[dict[str, Any]]:
    """Returns of each loader its `faults` and its `worker_growth` (None if there is none), as plain JSON values."""
    growing = growth_of(known, known.loaders)
    return [
        {
            "faults": loader.faults.as_dict(known.begun),
            "worker_growth": growing[number].as_dict() if number in growing else None,
        }
        for number, loader in enumerate(known.loaders)
    ]


def growth_curves(known: Measurements, loaders: Sequence[MeasuredLoader], times: Sequence[float]) -> dict[str, Any]:
    """Returns the workers' own memory over time, by the number of the loader whose workers grow.

    Args:
        known: the run.
        loaders: those of the page.
        times: seconds from the beginning of the run.
    """
    found = growth_of(known, loaders)
    moments = [known.begun + time for time in times]
    return {str(number): curve(growth, moments) for number, growth in found.items()}


def finding_lines(known: Measurements, loaders: Sequence[MeasuredLoader]) -> list[str]:
    """Returns a line for each loader with faults, and for each whose workers grow.

    Of a loader of Stoker's without faults a line says so, if no other one is to be shown.
    """
    lines = [f"{loader.name}: {loader.faults.text}." for loader in loaders if loader.faults.counts]
    if known.faults.counts:
        lines += [f"{one['what']}: {one['text']}" for one in known.faults.named]
    for growth in growth_of(known, loaders).values():
        lines.append(f"{growth.text} {growth.remedy}")
    if not lines and any(loader.about.get("engine") == "stoker" for loader in loaders):
        lines.append(f"Faults: none; {NONE}.")
    return lines
