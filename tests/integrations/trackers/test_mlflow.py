"""Figures and tags in a run of MLflow, in a folder."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# A program of its own: MLflow imports Polars where it is installed, whose threads would stay beside the other tests.
PROGRAM = """
import json, sys
import mlflow
from stoker.integrations.trackers.mlflow import MLflowMetrics
from stoker.integrations.trackers.report_metrics import metrics_of
from tests.integrations.trackers.epoch_with_a_fault import run

mlflow.set_tracking_uri(sys.argv[1])
with mlflow.start_run() as made:
    metrics = MLflowMetrics(mlflow)
    loader = run(output="numpy", on_event=metrics.on_event)
    metrics.log(loader, 3)
data = mlflow.get_run(made.info.run_id).data
print(json.dumps([sorted(data.metrics), sorted(metrics_of(loader)), data.metrics, data.tags]))
"""


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_metrics_and_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-c", PROGRAM, (tmp_path / "runs").as_uri()]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    logged, expected, values, tags = json.loads(ended.stdout.splitlines()[-1])
    assert logged == expected and values["stoker/epoch/delivered"] == 39
    assert "broken" in tags["stoker.events.error"]
