"""The verdict of a profile: pure, from figures to words."""

from __future__ import annotations

from typing import Any

import pytest

from stoker._engine.timings import StepSums
from stoker.diagnostics.profile.batch_sums import Durations, StageTimes, WorkerUse
from stoker.diagnostics.profile.loader_profile import LoaderProfile, tables
from stoker.diagnostics.profile.profile_verdict import ProfileFigures, SlowSample, verdict


def times(seconds: float, count: int = 100) -> StageTimes:
    return StageTimes(count, seconds, seconds / count, seconds / count, seconds / count)


STAGES = {
    "fetch": times(6.0),
    "collate": times(0.5),
    "write": times(0.2),
    "memory": times(0.1),
    "transport": times(0.1),
}


def profile(wait: float = 4.0, step: float = 6.0, stages: dict[str, StageTimes] | None = None, **more: Any) -> Any:
    values: dict[str, Any] = {
        "dataset": "Photos",
        "num_workers": 2,
        "batches": 100,
        "samples": 3200,
        "errors": 0,
        "seconds": wait + step,
        "first": 0.2,
        "wait": times(wait, 99),
        "step": times(step),
        "held": times(1.0, 20),
        "gain": 2.0,
        "is_measured": True,
        "stages": {**STAGES, **(stages or {})},
        "each": times(6.0, 3200),
        "cpu_share": 0.95,
        "slowest": (),
        "steps": (),
        "workers": (),
    }
    return ProfileFigures(**{**values, **more})


@pytest.mark.parametrize(
    ("figures", "kind", "stage", "words", "change"),
    [
        ({"wait": 0.3, "step": 9.0}, "compute-bound", "fetch", "waits 3.2% of its time", None),
        ({"wait": 1.0, "step": 9.0}, "balanced", "fetch", "waits 10%", "num_workers=8"),
        ({}, "data-bound", "fetch", "88% is fetching samples, 95% of it on the CPU", "num_workers=8"),
        ({"cpu_share": 0.2}, "data-bound", "fetch", "80% of it waiting", "threads_per_worker=8"),
        ({"num_workers": 8}, "data-bound", "fetch", "on the CPU", "Make samples"),
        ({"stages": {"collate": times(9.0)}}, "data-bound", "collate", "is collating samples", "collate_fn"),
        ({"stages": {"write": times(9.0)}}, "data-bound", "write", "is writing batches", "Return arrays"),
        ({"stages": {"memory": times(9.0)}}, "data-bound", "memory", "waiting for shared memory", "memory_budget="),
        ({"stages": {"transport": times(3.0)}}, "data-bound", "transport", "Of the waiting, 71%", "smaller in bytes"),
        ({"sampled": 3.5, "sampler": "Mine"}, "data-bound", "sampler", "83% is for the sampler", "quicker (Mine)"),
        ({"first": 30.0}, "data-bound", "fetch", "waits 40%", "num_workers=8"),
        ({"first": 30.0, "wait": 1.0, "step": 9.0}, "balanced", "start", "comes after 30 s", "persistent_workers=True"),
        ({"first": 30.0, "wait": 0.1}, "compute-bound", "start", "comes after 30 s", "persistent_workers=True"),
        ({"batches": 4}, "too short", "fetch", "4 batches in 10 s", "some more"),
        ({"seconds": 0.1}, "too short", "fetch", "100 batches in 0.1 s", "some more"),
        ({"wait": 10.0, "step": 0.001}, "loader alone", "fetch", "makes 320 samples/s", "num_workers=8"),
        ({"num_workers": 0}, "data-bound", "fetch", "fetching", "Pass num_workers="),
        ({"stages": dict.fromkeys(STAGES, StageTimes())}, "data-bound", None, "waits 40%", "num_workers=8"),
    ],
)
def test_verdict(figures: dict[str, Any], kind: str, stage: str | None, words: str, change: str | None) -> None:
    found = verdict(profile(**figures), cpus=8)
    assert (found.kind, found.stage) == (kind, stage) and words in found.text
    assert found.change is None if change is None else change in str(found.change)


def test_gain_says_whether_it_was_measured() -> None:
    assert (
        "2 times as fast at most without that, as 20 steps on a held batch have shown (50 ms in place of 100 ms)"
        in str(verdict(profile(), 2))
    )
    said = str(verdict(profile(held=None, is_measured=False), 2))
    assert "without that, 2 times as fast at most" in said and "held" not in said


def test_slowest_transform_is_named_and_not_its_chain() -> None:
    steps = (StepSums("t.0 Chain", 9, 5.0, 1.0), StepSums("t.0.0 Blur", 9, 4.5, 1.0), StepSums("t.1 Flip", 9, 0.1, 0.1))
    found = verdict(profile(num_workers=8, steps=steps), 8)
    assert "75% of it in t.0.0 Blur" in found.text and "slowest transform" in str(found.change)


def test_workers_that_idle_behind_slow_batches() -> None:
    fetch = StageTimes(100, 6.0, 0.01, 0.2, 1.5)
    idle = tuple(WorkerUse(number, 50, 0.3, 0.1, 0.6) for number in range(2))
    found = verdict(profile(stages={"fetch": fetch}, workers=idle), 2)
    assert "prefetch_factor: workers idle 60%" in str(found.change)


def test_a_crowded_machine_blames_no_storage() -> None:
    found = verdict(profile(cpu_share=0.3), 2, crowded=4.2)
    assert "4.2 threads for each CPU" in found.text and "nothing else runs" in str(found.change)
    assert "nothing else runs" not in str(verdict(profile(cpu_share=0.9), 2, crowded=4.2).change)
    assert "num_workers=1" in str(verdict(profile(cpu_share=0.3, num_workers=0), 2, crowded=4.2).change)
    assert "Pass num_workers=2: 8 workers share" in str(
        verdict(profile(cpu_share=0.3, num_workers=8), 2, crowded=4.2).change
    )


def test_text_and_json_hold_the_figures() -> None:
    made = profile(workers=(WorkerUse(0, 50, 0.9, 0.0, 0.1), WorkerUse(1, 50, 0.5, 0.1, 0.4)))
    made = LoaderProfile(**vars(made), verdict=verdict(made, 2))
    text = str(made)
    assert "100 batches, 3,200 samples of Photos, 2 workers: 320 samples/s" in text
    for title, rows in tables(made):
        assert title in text and all(value in text for row in rows for value in row.values())
    plain = made.as_dict()
    assert (plain["share"], plain["verdict"]["kind"], plain["stages"]["fetch"]["mean"]) == (0.4, "data-bound", 0.06)


def test_durations() -> None:
    collected = Durations()
    assert collected.times() == StageTimes()
    for seconds in range(1, 51):
        collected.add(float(seconds))
    collected.extend([float(seconds) for seconds in range(51, 101)])
    collected.seconds += 50.0
    found = collected.times()
    assert (found.count, found.seconds, found.median, found.longest) == (100, 5100.0, 50.5, 100.0)
    assert found.p95 == pytest.approx(95.05)


def test_late_first_batches_of_many_epochs() -> None:
    found = verdict(profile(epochs=20, starts=3.5), 8)
    assert found.stage == "start" and "The first batch of an epoch comes after 0.18 s, 88% of all" in found.text
    assert found.change is not None and "persistent_workers=True" in found.change
    (title, _), *_ = tables(profile(epochs=20, starts=3.5))
    assert "3.50 s were for the first batches of later epochs" in title


def test_profile_is_the_same_behind_its_plain_values() -> None:
    steps, uses = (StepSums("0 Crop", 5, 1.5, 0.5),), (WorkerUse(0, 5, 0.5, 0.25, 0.25),)
    slow = (SlowSample(3, "cat.jpg", 0.5, 0.25, 1, 2, 0),)
    figures = profile(epochs=3, starts=1.5, steps=steps, workers=uses, slowest=slow)
    whole = LoaderProfile(**vars(figures), verdict=verdict(figures, 8))
    assert LoaderProfile.of_dict(whole.as_dict()) == whole
