"""What a scrape of Prometheus reads."""

from __future__ import annotations

import sys

import pytest

from stoker import MissingExtraError
from stoker.integrations.trackers.prometheus import PrometheusMetrics
from tests.integrations.trackers.epoch_with_a_fault import run


def test_a_scrape_reads_gauges_and_the_counter() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    metrics = PrometheusMetrics(registry, labels={"rank": "0"})
    loader = run(output="numpy", on_event=metrics.on_event)
    assert "delivered" not in client.generate_latest(registry).decode()  # nothing was logged
    metrics.log(loader)
    text = client.generate_latest(registry).decode()
    assert 'stoker_epoch_delivered{rank="0"} 39.0' in text
    assert 'stoker_events_total{kind="error",rank="0"} 1.0' in text
    assert registry.get_sample_value("stoker_epoch_faults_ValueError_count", {"rank": "0"}) == 1


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"stoker\[prometheus\]"):
        PrometheusMetrics(object())
