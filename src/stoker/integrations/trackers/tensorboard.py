"""A loader's figures in TensorBoard.

metrics = TensorBoardMetrics(SummaryWriter())
loader = stoker.DataLoader(..., on_event=metrics.on_event)
...
metrics.log(loader, step)
"""

from __future__ import annotations

from typing import Any

from stoker.events import Event
from stoker.integrations.trackers.report_metrics import metrics_of


class TensorBoardMetrics:
    """Writes a loader's figures as scalars, and its events as texts.

    Used by the thread that iterates over the loader. A `SummaryWriter` has a thread of its own, which writes.

    Args:
        writer: a `SummaryWriter` of torch or of tensorboardX, or anything with its `add_scalar` and `add_text`.
        prefix: begins each name.
    """

    def __init__(self, writer: Any, prefix: str = "stoker") -> None:
        self._writer, self._prefix = writer, prefix
        self._step = 0

    def log(self, source: Any, step: int | None = None) -> None:
        """Writes the figures of a loader, a report or a profile at a step of the training; None for the last one."""
        self._step = step = self._step if step is None else step
        for name, value in metrics_of(source, self._prefix).items():
            self._writer.add_scalar(name, value, step)

    def on_event(self, event: Event) -> None:
        """Writes an event at the last step that was logged; for the loader's `on_event=`."""
        self._writer.add_text(f"{self._prefix}/events/{event.kind}", event.message, self._step)
