"""The numbers of a report by one flat name each."""

from __future__ import annotations

import importlib
import inspect
import math

import pytest

import stoker
from stoker.integrations.trackers.report_metrics import metrics_of
from tests.integrations.trackers.epoch_with_a_fault import Breaks, run


def test_numbers_of_a_report() -> None:
    loader = run(output="numpy")
    found = metrics_of(loader)
    assert found == metrics_of(loader.report()) | {name: found[name] for name in found if "per_second" in name}
    counts = loader.report().epoch
    assert (found["stoker/epoch/delivered"], found["stoker/epoch/skipped"]) == (39, counts.skipped)
    assert found["stoker/epoch/faults/ValueError/count"] == 1 and found["stoker/events/error/count"] == 1
    assert found["stoker/epoch/wait_share"] == counts.waited / counts.spent
    assert found["stoker/epoch/samples_per_second"] == pytest.approx(39 / counts.spent)
    assert all(type(value) is float and math.isfinite(value) for value in found.values())
    assert not any("latest" in name or "/first" in name for name in found)


def test_before_the_first_epoch_there_is_no_share() -> None:
    found = metrics_of(stoker.DataLoader(Breaks(), output="numpy"), prefix="val")
    assert found["val/epochs"] == 0 and not any("share" in name or "epoch_number" in name for name in found)


def test_numbers_of_a_profile() -> None:
    result = stoker.DataLoader(range(40), batch_size=4, output="numpy").profile(5, step=lambda batch: None)  # type: ignore[arg-type]
    found = metrics_of(result)
    assert found["stoker/stages/fetch/count"] == 5 and found["stoker/batches"] == 5
    assert metrics_of(result.as_dict()) == found


def test_names_do_not_change_with_the_number_of_workers() -> None:
    report = stoker.DataLoader(Breaks(), output="numpy").report().as_dict()
    found = metrics_of({**report, "memory": {"4 workers": 7, "helper process": 8}})
    assert (found["stoker/memory/workers"], found["stoker/memory/helper_process"]) == (7, 8)


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "mlflow", "prometheus", "opentelemetry"])
def test_every_tracker_takes_a_step_or_none(tracker: str) -> None:
    module = importlib.import_module(f"stoker.integrations.trackers.{tracker}")
    (kind,) = (value for name, value in vars(module).items() if name.endswith("Metrics"))
    source, step = list(inspect.signature(kind.log).parameters.values())[1:]
    assert (source.name, step.name, step.default) == ("source", "step", None)
