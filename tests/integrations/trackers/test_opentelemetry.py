"""What a reader of OpenTelemetry's SDK collects."""

from __future__ import annotations

import pytest

from stoker.integrations.trackers.opentelemetry import OpenTelemetryMetrics
from tests.integrations.trackers.epoch_with_a_fault import run


def test_gauges_and_the_counter() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader], shutdown_on_exit=False)
    metrics = OpenTelemetryMetrics(provider.get_meter("test"), attributes={"rank": 0})
    loader = run(output="numpy", on_event=metrics.on_event)
    metrics.log(loader)
    data = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics
    points = {metric.name: metric.data.data_points[0] for metric in scope.metrics}
    assert points["stoker.epoch.delivered"].value == 39
    assert dict(points["stoker.epoch.delivered"].attributes) == {"rank": 0}
    assert points["stoker.events"].value == 1 and dict(points["stoker.events"].attributes)["kind"] == "error"
    provider.shutdown()
