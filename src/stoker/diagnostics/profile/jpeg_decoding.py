"""Measures the time in which Pillow decodes whole JPEGs while batches are made, and names the cure.

A record is `{"jpegs": mark, "seconds": ...}`, where the mark is that of the epoch, as for batches that are made.
"""

from __future__ import annotations

import functools
import os
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stoker.diagnostics.recorder import Recorder
from stoker.diagnostics.worker_hooks import STARTED_BY

if TYPE_CHECKING:
    from stoker.diagnostics.measurements import LoaderSummary

DECODING = 0.4
"""Share of the time to make a batch from which on decoding whole JPEGs is worth a change."""


def measure_decoding(recorder: Recorder, plugin: ModuleType) -> None:
    """Measures from now on what Pillow's module of JPEGs decodes in this process."""
    kind: Any = plugin.JpegImageFile
    load, line, flushes = kind.load, dict[str, Any](), -1

    @functools.wraps(load)
    def measured(self: Any) -> Any:
        nonlocal line, flushes
        mark = recorder.mark or os.environ.get(STARTED_BY)
        if not self.tile or mark is None:
            return load(self)
        begun = time.perf_counter()
        try:
            return load(self)
        finally:
            if flushes != recorder.flushes or line["jpegs"] != mark:
                flushes, line = recorder.flushes, {"jpegs": mark, "seconds": 0.0}
                recorder.note(line)
            line["seconds"] += time.perf_counter() - begun

    kind.load = measured


def decoded_by_pillow(loader: LoaderSummary) -> str | None:
    """Returns the change for a loader whose samples spend their time on JPEGs that Pillow decodes whole, or None."""
    if loader.making is None or not loader.jpegs:
        return None
    share = loader.jpegs / max(loader.making.seconds * loader.batches, 1e-9)
    if share < DECODING:
        return None
    said = f"Pillow decodes whole JPEGs for {min(1.0, share):.0%} of the time to make a batch"
    part = "which decodes only what is used of them, to the same pixels"
    if loader.about.get("engine") == "stoker":
        return f"Call stoker.images.register() before the loop, {part}: {said}."
    return f"Call stoker.install(), {part}: {said}. `stoker compare` with this script shows what that gives."
