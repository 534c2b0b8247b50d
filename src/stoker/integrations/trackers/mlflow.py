"""A loader's figures in MLflow.

metrics = MLflowMetrics(mlflow)
loader = stoker.DataLoader(..., on_event=metrics.on_event)
...
metrics.log(loader, step)
"""

from __future__ import annotations

import re
from typing import Any

from stoker.events import Event
from stoker.integrations.trackers.report_metrics import metrics_of

LONGEST = 5_000
"""Letters of a tag that MLflow takes."""

_REFUSED = re.compile(r"[^\w\-. :/]")


class MLflowMetrics:
    """Logs a loader's figures into the active run, and its latest events as tags.

    Used by the thread that iterates over the loader. MLflow sends both at once: log every some hundred batches.

    Args:
        mlflow: the module `mlflow`, or anything with its `log_metrics` and `set_tag`.
        prefix: begins each name.
    """

    def __init__(self, mlflow: Any, prefix: str = "stoker") -> None:
        self._mlflow, self._prefix = mlflow, prefix

    def log(self, source: Any, step: int | None = None) -> None:
        """Logs the figures of a loader, a report or a profile; signs that MLflow refuses in names become `_`."""
        values = metrics_of(source, self._prefix)
        self._mlflow.log_metrics({_REFUSED.sub("_", name): value for name, value in values.items()}, step=step)

    def on_event(self, event: Event) -> None:
        """Keeps the latest event of a kind as a tag; for the loader's `on_event=`."""
        self._mlflow.set_tag(f"{self._prefix}.events.{event.kind}", event.message[:LONGEST])
