"""What a scrape of Prometheus reads."""

from __future__ import annotations

import gc
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker import MissingExtraError
from stoker.integrations.trackers.prometheus import METRICS, PrometheusMetrics
from tests.integrations.trackers.epoch_with_a_fault import run

DASHBOARD = Path(__file__).parents[3] / "examples" / "grafana.json"


@pytest.fixture
def client() -> Any:
    return pytest.importorskip("prometheus_client")


def test_a_scrape_reads_counters_of_all_epochs(client: Any) -> None:
    registry = client.CollectorRegistry(auto_describe=True)
    metrics = PrometheusMetrics(registry, labels={"rank": "0"})
    loader = run(output="numpy", on_event=metrics.on_event)
    assert 'outcome="delivered"' not in client.generate_latest(registry).decode()  # nothing was logged
    metrics.log(loader, 12)
    text = client.generate_latest(registry).decode()
    assert 'stoker_samples_total{loader="train",outcome="delivered",rank="0"} 39.0' in text
    assert 'stoker_events_total{kind="error",loader="train",rank="0"} 1.0' in text
    assert 'stoker_faults_total{exception="ValueError",loader="train",rank="0"} 1.0' in text
    assert "# HELP stoker_wait_seconds_total Seconds in which the training loop waited" in text
    assert "# TYPE stoker_wait_seconds_total counter" in text

    def value(name: str, **labels: str) -> float:
        return float(registry.get_sample_value(name, {"rank": "0", "loader": "train", **labels}))

    waited, spent = value("stoker_wait_seconds_total"), value("stoker_loop_seconds_total")
    assert 0 < waited <= spent
    batches = iter(loader)
    next(batches)
    metrics.log(loader)  # in the next epoch nothing falls
    assert value("stoker_samples_total", outcome="delivered") == 43
    assert value("stoker_wait_seconds_total") > waited
    assert value("stoker_epochs_total") == 2
    assert value("stoker_epoch_planned_samples") == 40
    assert len(list(batches)) == 9
    metrics.log(loader)
    assert value("stoker_faults_total", exception="ValueError") == value("stoker_events_total", kind="error") == 2


def test_loaders_share_a_registry(client: Any) -> None:
    registry = client.CollectorRegistry(auto_describe=True)
    for name, epochs in (("train", 2), ("validation", 1), ("validation", 3)):  # the last one of a name counts
        metrics = PrometheusMetrics(registry, loader=name, labels={} if name == "train" else {"rank": "1"})
        for _ in range(epochs):
            loader = run(output="numpy")
        metrics.log(loader)
    del metrics
    gc.collect()
    text = client.generate_latest(registry).decode()
    assert text.count("# TYPE stoker_batches_total") == 1
    lines = re.findall(r"^stoker_batches_total{.*", text, re.MULTILINE)
    assert lines == [
        'stoker_batches_total{loader="train",rank=""} 10.0',
        'stoker_batches_total{loader="validation",rank="1"} 10.0',
    ]
    PrometheusMetrics(registry, prefix="other").log(run(output="numpy").report())
    assert registry.get_sample_value("other_epochs_total", {"loader": "train"}) == 1


def test_names_are_those_of_prometheus(client: Any) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    registry = client.CollectorRegistry()
    PrometheusMetrics(registry).log(run(output="numpy", num_workers=1))
    families = {
        family.name: family for family in text_string_to_metric_families(client.generate_latest(registry).decode())
    }
    assert set(families) == {f"stoker_{metric.name}" for metric in METRICS}
    for metric in METRICS:
        family = families[f"stoker_{metric.name}"]
        assert family.type == ("counter" if metric.is_counter else "gauge")
        assert family.documentation == metric.help and metric.help.endswith(".")
        assert all(set(sample.labels) == {"loader", *filter(None, [metric.label])} for sample in family.samples)


def test_the_dashboard_names_metrics_that_exist() -> None:
    ours = {f"stoker_{metric.name}" + "_total" * metric.is_counter for metric in METRICS}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for panel in panels:
        named = {name for target in panel["targets"] for name in re.findall(r"\bstoker_\w+", target["expr"])}
        assert named and named <= ours, panel["title"]
    assert len(panels) == 6


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"stoker\[prometheus\]"):
        PrometheusMetrics(object())
