"""What GPUs do while a program runs: which are the program's, and how busy they are in a time."""

from __future__ import annotations

import ctypes

import pytest

from stoker._core.machine import gpu_activity
from stoker._core.machine.gpu_activity import (
    CONTEXT,
    GpuActivity,
    GpuReading,
    GpuSample,
    busy_between,
    used_gpus,
    visible,
)
from tests.nvml_driver import FakeDriver

UUIDS = ["GPU-a1", "GPU-a2", "GPU-b"]


def sample(time: float, *readings: tuple[float | None, int | None] | None) -> GpuSample:
    return GpuSample(time, tuple(None if one is None else GpuReading("Z1", *one) for one in readings))


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (None, {0, 1, 2}),
        ("", set()),
        ("1", {1}),
        ("2, 0", {0, 2}),
        ("GPU-b,1", {1, 2}),
        ("GPU-a,1", set()),  # of two
        ("0,-1,1", {0}),  # as CUDA reads it, up to the first that is none
        ("7", set()),
    ],
)
def test_visible_gpus_are_those_of_the_environment(words: str | None, numbers: set[int]) -> None:
    assert visible(UUIDS, {} if words is None else {"CUDA_VISIBLE_DEVICES": words}) == numbers


def test_gpu_is_used_if_its_memory_grew() -> None:
    of_another, ours, hidden = (0.9, 5 * CONTEXT), (0.0, 0), None
    samples = [sample(0, of_another, ours, hidden), sample(1, of_another, (0.5, CONTEXT), hidden)]
    assert used_gpus(samples) == [1]


def test_gpu_without_known_memory_is_used_if_it_was_busy() -> None:
    assert used_gpus([sample(0, (0.0, None), (0.0, None)), sample(1, (0.2, None), (0.0, None))]) == [0]


def test_busy_share_is_the_mean_of_a_time() -> None:
    samples = [sample(time, (time / 10, int(time) * CONTEXT)) for time in (0.0, 1.0, 2.0, 3.0)]
    assert busy_between(samples, [0], 0.5, 2.5) == pytest.approx(0.15)
    assert busy_between(samples, [0], 1.2, 1.4) == pytest.approx(0.2)
    assert busy_between(samples, [0], 4, 5) is None
    assert busy_between(samples, [], 0, 1) is None


def test_activity_samples_visible_gpus_and_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(gpus=2)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(gpu_activity, "INTERVAL", 0.0)
    activity = GpuActivity({"CUDA_VISIBLE_DEVICES": "1"})
    activity.sample_if_due()
    driver.used += CONTEXT
    activity.sample_if_due()
    activity.close()
    assert not driver.is_open
    activity.sample_if_due()
    activity.close()
    assert len(activity.samples) == 2
    assert used_gpus(activity.samples) == [1]


def test_old_samples_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver())
    monkeypatch.setattr(gpu_activity, "INTERVAL", 0.0)
    monkeypatch.setattr(gpu_activity, "MOST", 10)
    activity = GpuActivity({})
    for _ in range(100):
        activity.sample_if_due()
    activity.close()
    assert 5 <= len(activity.samples) <= 10
    assert [one.time for one in activity.samples] == sorted(one.time for one in activity.samples)
