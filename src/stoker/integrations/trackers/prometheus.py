"""A loader's figures for Prometheus.

metrics = PrometheusMetrics(prometheus_client.REGISTRY)
loader = stoker.DataLoader(..., on_event=metrics.on_event)
prometheus_client.start_http_server(8000)
...
metrics.log(loader, step)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from stoker.errors import MissingExtraError
from stoker.events import Event
from stoker.integrations.trackers.report_metrics import metrics_of


class _Metric(NamedTuple):
    """A family of samples: how Prometheus calls it, what it says, and the label that tells its samples apart."""

    name: str
    help: str
    label: str = ""
    is_counter: bool = True


_OUTCOMES = ("delivered", "replaced", "skipped", "quarantined", "raised")
_SAMPLES = _Metric("samples", "Samples of all epochs, by what became of them.", "outcome")
_FAULTS = _Metric("faults", "Errors of samples and batches of all epochs, by the class of the exception.", "exception")
_EVENTS = _Metric("events", "Events of samples and workers, by kind.", "kind")
_EPOCHS = _Metric("epochs", "Epochs begun.")
_OF_TOTAL = {
    "batches": _Metric("batches", "Batches delivered in all epochs."),
    "waited": _Metric("wait_seconds", "Seconds in which the training loop waited for batches, in all epochs."),
    "spent": _Metric("loop_seconds", "Seconds from the request of an epoch's first batch to its latest, all epochs."),
}
_PLANNED = _Metric("epoch_planned_samples", "Samples of the latest epoch, where the number is known.", "", False)
_MEMORY = _Metric("memory_bytes", "Memory in use when the figures were logged, by what uses it.", "part", False)
_PROFILE = _Metric("profile", "Figures of a profile.", "figure", False)
METRICS = (_SAMPLES, _FAULTS, _EVENTS, _EPOCHS, *_OF_TOTAL.values(), _PLANNED, _MEMORY, _PROFILE)

_collectors: weakref.WeakKeyDictionary[Any, dict[str, _Collector]] = weakref.WeakKeyDictionary()
"""The collector of each registry and prefix, which serves all loaders: a registry takes each name once."""


class PrometheusMetrics:
    """A loader's figures as counters and gauges: `stoker_wait_seconds_total{loader="train"}`,
    `stoker_samples_total{outcome="delivered"}`, `stoker_faults_total{exception="OSError"}`, `stoker_memory_bytes`.

    Counters are sums over all epochs of a loader. A scrape reads what was logged last, from any thread: it asks neither
    the loader nor its workers. Make one for each loader; they may share a registry. A new one with the same labels
    takes the place of the former.

    Args:
        registry: the figures are registered there, such as in `prometheus_client.REGISTRY`.
        prefix: begins each name.
        labels: of all figures, such as `{"rank": "0"}`.
        loader: the value of the label `loader`.

    Raises:
        MissingExtraError: prometheus-client is not installed.
    """

    def __init__(
        self, registry: Any, prefix: str = "stoker", labels: dict[str, str] | None = None, *, loader: str = "train"
    ) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise MissingExtraError(
                "PrometheusMetrics needs prometheus-client, which is not installed: install the extra "
                "stoker[prometheus]."
            ) from error
        of_registry = _collectors.setdefault(registry, {})
        collector = of_registry.get(prefix)
        if collector is None:
            collector = of_registry[prefix] = _Collector(core, prefix)
            registry.register(collector)
        self._values: dict[tuple[_Metric, str], float] = {}
        self._events: dict[tuple[_Metric, str], float] = {}
        collector.sources = {**collector.sources, (*(labels or {}).items(), ("loader", loader)): self}

    def log(self, source: Any, step: int | None = None) -> None:
        """Makes the figures of a loader, a report or a profile those of the next scrapes, which know no `step`."""
        self._values = {(metric, value): figure for metric, value, figure in _figures(metrics_of(source, ""))}

    def on_event(self, event: Event) -> None:
        """Counts an event; for the loader's `on_event=`."""
        key = _EVENTS, event.kind
        self._events = {**self._events, key: self._events.get(key, 0) + 1}

    def figures(self) -> dict[tuple[_Metric, str], float]:
        """Returns the figures by metric and by the value of its label."""
        return {**self._values, **self._events}


class _Collector:
    """What a registry collects from: the loaders of one prefix."""

    def __init__(self, core: Any, prefix: str) -> None:
        self._core, self._prefix = core, prefix
        self.sources: dict[tuple[tuple[str, str], ...], PrometheusMetrics] = {}  # by their labels

    def collect(self) -> Iterator[Any]:
        """Yields the figures, for a scrape."""
        sources = [(dict(labels), source.figures()) for labels, source in self.sources.items()]
        names = list(dict.fromkeys(name for labels, _ in sources for name in labels))
        for metric in METRICS:
            kind = self._core.CounterMetricFamily if metric.is_counter else self._core.GaugeMetricFamily
            labels = [*names, metric.label] if metric.label else names
            family = kind(f"{self._prefix}_{metric.name}", metric.help, labels=labels)
            for values, figures in sources:
                for (of, value), figure in figures.items():
                    if of == metric:
                        own = [values.get(name, "") for name in names]
                        family.add_metric([*own, value] if metric.label else own, figure)
            yield family


def _figures(numbers: dict[str, float]) -> Iterator[tuple[_Metric, str, float]]:
    """Yields metric, value of its label, and figure, from a report or a profile."""
    if "/total/batches" not in numbers:
        for name, figure in numbers.items():
            yield _PROFILE, name.strip("/"), figure
        return
    for outcome in _OUTCOMES:
        yield _SAMPLES, outcome, numbers[f"/total/{outcome}"]
    for name, metric in _OF_TOTAL.items():
        yield metric, "", numbers[f"/total/{name}"]
    yield _EPOCHS, "", numbers["/epochs"]
    if "/epoch/planned" in numbers:
        yield _PLANNED, "", numbers["/epoch/planned"]
    for name, figure in numbers.items():
        _, part, *rest = name.split("/")
        if part == "memory":
            yield _MEMORY, "/".join(rest), figure
        elif part == "events":
            yield _EVENTS, rest[0], figure
        elif name.startswith("/total/faults/"):
            yield _FAULTS, rest[1], figure
