"""Figures and tags in a run of MLflow, in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.integrations.trackers.mlflow import MLflowMetrics
from stoker.integrations.trackers.report_metrics import metrics_of
from tests.integrations.trackers.epoch_with_a_fault import run

mlflow = pytest.importorskip("mlflow")

pytestmark = pytest.mark.filterwarnings("ignore")  # of others


def test_metrics_and_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setattr(mlflow, "get_tracking_uri", mlflow.get_tracking_uri)
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as made:
        metrics = MLflowMetrics(mlflow)
        loader = run(output="numpy", on_event=metrics.on_event)
        metrics.log(loader, 3)
    data = mlflow.get_run(made.info.run_id).data
    assert set(data.metrics) == set(metrics_of(loader)) and data.metrics["stoker/epoch/delivered"] == 39
    assert "broken" in data.tags["stoker.events.error"]
