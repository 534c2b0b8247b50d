"""`stoker run --engine stoker`: which loaders ran on Stoker's engine, and with `--auto` the workers it has chosen."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.recorder import Recorder

if TYPE_CHECKING:
    from stoker.events import Event


def begun(recorder: Recorder, loader: Any, mark: str | None) -> None:
    """Records the number of workers of a torch loader on Stoker's engine, or why it is the program's, if it is to be
    found; an epoch has begun."""
    if "stoker.integrations.install" in sys.modules:
        with contextlib.suppress(TypeError):  # no loader of torch's
            _note(recorder, getattr(sys.modules["stoker"].loader_of(loader), "workers_text", None), mark)


def heed(recorder: Recorder, event: Event) -> None:
    """Records the number of workers that a loader has chosen."""
    if event.kind == "auto":
        _note(recorder, event.message, recorder.mark)


def _note(recorder: Recorder, text: str | None, mark: str | None) -> None:
    if text is not None and mark is not None:
        recorder.note({"chosen": text, "mark": mark})


def engine_lines(known: Measurements) -> Iterator[str]:
    """Returns lines on the engine of each loader, of a run with Stoker's."""
    ours = [loader for loader in known.loaders if loader.about.get("engine") == "stoker"]
    if ours:
        every = "all loaders" if len(ours) == len(known.loaders) else ", ".join(loader.name for loader in ours)
        yield f"Stoker's engine ran {every}."
    for loader in known.loaders:
        if loader not in ours:
            yield f"{loader.name}: stayed on torch's engine; a warning of the program says why."
    for loader in ours:
        if loader.chosen is not None:
            yield f"{loader.name}: {loader.chosen}."
