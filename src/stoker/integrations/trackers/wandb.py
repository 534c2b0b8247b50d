"""A loader's figures in Weights & Biases.

metrics = WandbMetrics(wandb.init(project="photos"))
loader = stoker.DataLoader(..., on_event=metrics.on_event)
...
metrics.log(loader)
run.log({"loss": loss})
"""

from __future__ import annotations

from typing import Any

from stoker.events import Event
from stoker.integrations.trackers.report_metrics import metrics_of


class WandbMetrics:
    """Logs a loader's figures into a run, and its latest events into the run's summary.

    Used by the thread that iterates over the loader.

    Args:
        run: the result of `wandb.init()`.
        prefix: begins each name.
    """

    def __init__(self, run: Any, prefix: str = "stoker") -> None:
        self._run, self._prefix = run, prefix

    def log(self, source: Any, step: int | None = None) -> None:
        """Logs the figures of a loader, a report or a profile.

        Args:
            source: whose figures.
            step: of the run; None adds them to the step that the next `run.log` of yours ends.
        """
        values = metrics_of(source, self._prefix)
        if step is None:
            self._run.log(values, commit=False)
        else:
            self._run.log(values, step=step)

    def on_event(self, event: Event) -> None:
        """Keeps the latest event of a kind in the run's summary; for the loader's `on_event=`."""
        self._run.summary[f"{self._prefix}/events/{event.kind}"] = event.message
