"""A loader's figures for OpenTelemetry.

metrics = OpenTelemetryMetrics(opentelemetry.metrics.get_meter("training"))
loader = stoker.DataLoader(..., on_event=metrics.on_event)
...
metrics.log(loader, step)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.events import Event
from stoker.integrations.trackers.report_metrics import metrics_of


class OpenTelemetryMetrics:
    """Sets a loader's figures as gauges, `stoker.epoch.delivered`, and counts its events, `stoker.events`.

    Used by the thread that iterates over the loader; exporters have threads of their own.

    Args:
        meter: of OpenTelemetry's API 1.23 or later, whose gauges can be set.
        prefix: begins each name.
        attributes: of all figures, such as `{"rank": 0}`.
    """

    def __init__(self, meter: Any, prefix: str = "stoker", attributes: Mapping[str, Any] | None = None) -> None:
        self._meter, self._prefix, self._attributes = meter, prefix, dict(attributes or {})
        self._gauges: dict[str, Any] = {}
        self._events = meter.create_counter(f"{prefix}.events", description="events of Stoker's loader")

    def log(self, source: Any, step: int | None = None) -> None:
        """Sets the gauges to the figures of a loader, a report or a profile. It knows times, and no `step`."""
        for name, value in metrics_of(source, self._prefix).items():
            gauge = self._gauges.get(name)
            if gauge is None:
                gauge = self._gauges[name] = self._meter.create_gauge(name.replace("/", "."))
            gauge.set(value, self._attributes)

    def on_event(self, event: Event) -> None:
        """Counts an event; for the loader's `on_event=`."""
        self._events.add(1, {**self._attributes, "kind": event.kind})
