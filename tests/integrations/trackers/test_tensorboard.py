"""Scalars and texts that TensorBoard reads back from its files."""

from __future__ import annotations

from pathlib import Path

import pytest

import stoker
from stoker.integrations.trackers.report_metrics import metrics_of
from stoker.integrations.trackers.tensorboard import TensorBoardMetrics
from tests.integrations.trackers.epoch_with_a_fault import run

pytest.importorskip("torch")
pytest.importorskip("tensorboard")

pytestmark = pytest.mark.filterwarnings("ignore")  # of others


def test_scalars_and_texts(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        metrics = TensorBoardMetrics(writer, prefix="data")
        loader: stoker.DataLoader[object] = run(output="numpy", on_event=metrics.on_event)
        metrics.log(loader, 12)
        expected = metrics_of(loader, "data")
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert set(read.Tags()["scalars"]) == set(expected)
    (scalar,) = read.Scalars("data/epoch/delivered")
    assert (scalar.step, scalar.value) == (12, 39)
    assert read.Tags()["tensors"] == ["data/events/error/text_summary"]
