"""A loader's figures for Prometheus.

metrics = PrometheusMetrics(prometheus_client.REGISTRY)
loader = stoker.DataLoader(..., on_event=metrics.on_event)
prometheus_client.start_http_server(8000)
...
metrics.log(loader)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stoker.errors import MissingExtraError
from stoker.events import Event
from stoker.integrations.trackers.report_metrics import metrics_of

_REFUSED = re.compile(r"[^a-zA-Z0-9_:]")


class PrometheusMetrics:
    """A collector of a loader's figures as gauges, `stoker_epoch_delivered`, and of its events as a counter,
    `stoker_events_total{kind="death"}`.

    A scrape reads what was logged last, from any thread: it asks neither the loader nor its workers.

    Args:
        registry: the collector is registered there, such as in `prometheus_client.REGISTRY`.
        prefix: begins each name.
        labels: of all figures, such as `{"rank": "0"}`.

    Raises:
        MissingExtraError: prometheus-client is not installed.
    """

    def __init__(self, registry: Any, prefix: str = "stoker", labels: dict[str, str] | None = None) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise MissingExtraError(
                "PrometheusMetrics needs prometheus-client, which is not installed: install the extra "
                "stoker[prometheus]."
            ) from error
        self._core, self._prefix, self._labels = core, prefix, labels or {}
        self._values: dict[str, float] = {}
        self._events: dict[str, int] = {}
        registry.register(self)

    def log(self, source: Any) -> None:
        """Makes the figures of a loader, a report or a profile those of the next scrapes."""
        self._values = metrics_of(source, self._prefix)

    def on_event(self, event: Event) -> None:
        """Counts an event; for the loader's `on_event=`."""
        self._events = {**self._events, event.kind: self._events.get(event.kind, 0) + 1}

    def collect(self) -> Iterator[Any]:
        """Yields the figures, for a scrape."""
        names, values = list(self._labels), list(self._labels.values())
        for name, value in self._values.items():
            gauge = self._core.GaugeMetricFamily(_REFUSED.sub("_", name), "Of Stoker's loader.", labels=names)
            gauge.add_metric(values, value)
            yield gauge
        counter = self._core.CounterMetricFamily(f"{self._prefix}_events", "Of the loader.", labels=[*names, "kind"])
        for kind, count in self._events.items():
            counter.add_metric([*values, kind], count)
        yield counter
