"""The verdict follows from figures alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.diagnostics.measurements import EpochSpans, LoaderSummary, MeasuredLoader, Span
from stoker.diagnostics.verdict import verdict

ABOUT = {"site": "train.py:8", "rank": None, "num_workers": 0, "persistent_workers": False}
WAITING = LoaderSummary(
    ABOUT, made=1, epochs=1, batches=100, samples=6400, spent=10.0, waited=8.0, first=0.1, steady=9.9,
    steady_waited=7.9, cpu=2.0, peak=0,
)  # fmt: skip


def with_workers(number: int, **settings: object) -> dict[str, object]:
    return {**ABOUT, "num_workers": number, **settings}


def test_waiting_loop_is_data_bound_with_its_gain() -> None:
    said = verdict(WAITING, cpus=8)
    assert said.kind == "data-bound"
    assert said.gain == pytest.approx(5.0)
    assert "80% of its time" in said.text and "5 times as fast" in said.text


def test_loop_that_hardly_waits_is_compute_bound() -> None:
    said = verdict(replace(WAITING, waited=0.3, steady_waited=0.2), cpus=8)
    assert (said.kind, said.change) == ("compute-bound", None)
    assert "3.0%" in said.text


def test_loop_that_waits_a_little_is_balanced() -> None:
    assert verdict(replace(WAITING, waited=1.0, steady_waited=0.9), cpus=8).kind == "balanced"


def test_gain_is_no_more_than_keeps_the_gpu_busy() -> None:
    said = verdict(replace(WAITING, gpu=0.5), cpus=8)
    assert said.kind == "data-bound"
    assert said.gain == pytest.approx(2.0)
    assert "80% of its time for batches, and the GPU is busy for 50% of it; without that, 2 times" in said.text


def test_loop_that_waits_beside_a_busy_gpu_is_compute_bound() -> None:
    said = verdict(replace(WAITING, gpu=0.98), cpus=8)
    assert (said.kind, said.change) == ("compute-bound", None)
    assert "the GPU is busy for 98%" in said.text and "waits 80%" in said.text
    assert said.gain == pytest.approx(1 / 0.98)


def test_share_of_a_gpu_does_not_count_in_a_short_run() -> None:
    assert verdict(replace(WAITING, spent=1.0, waited=0.8, gpu=0.98), cpus=8).kind == "data-bound"


@pytest.mark.parametrize("short", [{"batches": 5}, {"spent": 0.1, "waited": 0.05}])
def test_short_run_has_no_verdict(short: dict[str, float]) -> None:
    assert verdict(replace(WAITING, **short), cpus=8).kind == "too short"


@pytest.mark.parametrize(
    ("changed", "cpus", "said"),
    [
        ({}, 8, "Pass num_workers=4: batches are made in the training loop now"),
        ({}, 1, "There is one CPU"),
        ({"waited": 9.99, "batches": 1_000_000}, 8, "fetch a whole batch at once"),
        ({"about": with_workers(2)}, 8, "Pass num_workers=8: 2 of 8 CPUs make batches"),
        ({"about": with_workers(2), "cpu": 19.0}, 2, "95% of the 2 CPUs are in use, so more workers cannot help"),
        (
            {"about": with_workers(2)},
            2,
            "Pass num_workers=4: 10% of the CPUs are in use, so batches wait, for a disk or a network",
        ),
        (
            {"about": with_workers(4), "epochs": 3, "first": 2.5, "steady_waited": 0.5},
            8,
            "Pass persistent_workers=True: the first batch of an epoch comes after 2.5 s",
        ),
        ({"about": with_workers(4), "first": 7.5, "steady_waited": 0.5}, 8, "Longer epochs help"),
    ],
)
def test_change_fits_the_cause(changed: dict[str, object], cpus: int, said: str) -> None:
    found = verdict(replace(WAITING, **changed), cpus)
    assert found.kind == "data-bound" and said in str(found)


def restarted(epochs: int, wait: float, step: float, about: dict[str, object], *, read: bool = False) -> MeasuredLoader:
    """A loader of one batch in each epoch, which is read to its end or left."""
    loader, now = MeasuredLoader(about), 5.0
    for _ in range(epochs):
        epoch = EpochSpans(now, now + wait / 2)
        epoch.spans.append(Span(now + wait / 2, now + wait, 1, wait / 2, 32))
        now += wait + step
        if read:
            epoch.spans.append(Span(now, now, 0, 0.0, 0))
        loader.epochs.append(epoch)
    return loader


def test_epoch_for_each_batch_is_judged_by_the_whole_time() -> None:
    known = restarted(50, 0.03, 0.01, with_workers(4)).summary()
    assert known.restarts and known.spent == pytest.approx(50 * 0.04 - 0.01)
    said = verdict(known, cpus=8)
    assert said.kind == "data-bound" and said.gain == pytest.approx(4, rel=0.1)
    assert "75% of its time" in said.text and "An epoch begins for each batch" in said.text
    assert "Keep one iterator" in str(said) and "persistent_workers=True: 4 workers are started 50 times" in str(said)


@pytest.mark.parametrize(
    ("about", "change"),
    [
        (with_workers(0), "Workers can then make the next batches meanwhile"),
        (with_workers(4, persistent_workers=True), "thrown away now, 50 times"),
    ],
)
def test_change_for_an_epoch_for_each_batch(about: dict[str, object], change: str) -> None:
    assert change in str(verdict(restarted(50, 0.03, 0.01, about).summary(), cpus=8))


def test_epoch_for_each_batch_may_cost_nothing() -> None:
    said = verdict(restarted(50, 0.0002, 0.03, with_workers(0)).summary(), cpus=8)
    assert said.kind == "compute-bound" and said.text.endswith("as with next(iter(loader)).")


def test_epochs_of_one_batch_that_are_read_to_the_end() -> None:
    known = restarted(50, 0.03, 0.01, with_workers(0), read=True).summary()
    assert not known.restarts and known.share == pytest.approx(0.75)
    assert "Each epoch is one batch" in str(verdict(known, cpus=8))
    known = restarted(50, 0.03, 0.01, with_workers(4), read=True).summary()
    assert "Pass persistent_workers=True" in str(verdict(known, cpus=8))


def test_few_epochs_of_one_batch_are_too_short() -> None:
    assert verdict(restarted(5, 0.3, 0.1, with_workers(0)).summary(), cpus=8).kind == "too short"
