"""Figures in a run of Weights & Biases that is written to a file, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.integrations.trackers.wandb import WandbMetrics
from tests.integrations.trackers.epoch_with_a_fault import run

wandb = pytest.importorskip("wandb")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of others
    pytest.mark.leaves_behind("wandb-core, a process of wandb's, ends when the program does"),
]


def test_figures_join_the_users_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    made = wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(x_disable_stats=True))
    try:
        metrics = WandbMetrics(made, prefix="data")
        loader = run(output="numpy", on_event=metrics.on_event)
        metrics.log(loader)
        made.log({"loss": 0.5})
        metrics.log(loader, step=5)
        summary = made.summary
        assert summary["data/events/error"].startswith("sample") or "7" in summary["data/events/error"]
        assert made.step == 5
    finally:
        made.finish()
        wandb.teardown()
    (file,) = tmp_path.rglob("*.wandb")
    written = file.read_bytes()
    assert b"data/epoch/delivered" in written and b"loss" in written
