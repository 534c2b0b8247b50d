"""A measured run as plain values, for JSON and for the report."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from stoker._core.machine.cpus import Cpus, cpus
from stoker._core.machine.gpu_activity import used_gpus
from stoker.diagnostics.composition.composition import composition_of
from stoker.diagnostics.measurements import LoaderSummary, Measurements
from stoker.diagnostics.run_findings import findings_of_loaders
from stoker.diagnostics.verdict import verdict


def as_dict(known: Measurements) -> dict[str, Any]:
    """Returns the whole run as plain JSON values. Times are seconds, memory is in bytes."""
    usable = cpus()
    return {
        "seconds": known.until - known.begun,
        "cpu_seconds": known.cpu,
        "peak_memory": known.peak,
        "interrupted": known.interrupted,
        "records_lost": known.lost,
        "cpus": usable.number,
        "gpus": gpus_as_dicts(known),
        "faults": known.faults.as_dict(known.begun),
        "loaders": [
            {
                **loader_as_dict(one.summary(known.samples, known.gpus), usable),
                "composition": composition_of(one.noted),
                "workers_chosen": one.chosen,
                **found,
            }
            for one, found in zip(known.loaders, findings_of_loaders(known), strict=True)
        ],
    }


def gpus_as_dicts(known: Measurements) -> list[dict[str, Any]]:
    """Returns the GPUs that the program used, as plain JSON values."""
    found = []
    for number in used_gpus(known.gpus):
        readings = [one for one in (sample.readings[number] for sample in known.gpus) if one is not None]
        busy = [one.busy for one in readings if one.busy is not None]
        found.append(
            {
                "number": number,
                "name": readings[0].name,
                "busy": fmean(busy) if busy else None,
                "peak_memory": max((one.used for one in readings if one.used is not None), default=None),
            }
        )
    return found


def loader_as_dict(loader: LoaderSummary, usable: Cpus) -> dict[str, Any]:
    """Returns a loader's sums and its verdict as plain JSON values."""
    said = verdict(loader, usable.number, usable.quota)
    return {
        "name": loader.name,
        "settings": loader.about,
        "loaders": loader.made,
        "epochs": loader.epochs,
        "batches": loader.batches,
        "samples": loader.samples,
        "seconds": loader.spent,
        "samples_per_second": loader.rate,
        "waited": loader.waited,
        "waited_for_first_batches": max(0.0, loader.waited - loader.steady_waited),
        "waited_share": loader.share,
        "waited_share_after_first_batches": loader.steady_share,
        "first_batch": loader.first,
        "cpu_seconds": loader.cpu,
        "peak_memory": loader.peak,
        "gpu_busy": loader.gpu,
        "verdict": said.kind,
        "text": said.text,
        "change": said.change,
        "cause": said.cause,
        "gain_at_most": said.gain,
    }
