"""Rates of a setting: warm starts left out, short epochs as wholes, repeated samples found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.diagnostics.measurements import EpochSpans, Span
from stoker.diagnostics.process_tree import TreeSample
from stoker.diagnostics.settings.setting_trial import UNSURE, LoaderSetting, SettingTrial, repeats, together, trial_of


def epoch_of(begun: float, first: float, count: int, wait: float, step: float, ends: bool = True) -> EpochSpans:
    """An epoch whose first batch comes after `first` seconds, and the others after a wait and a step each."""
    epoch = EpochSpans(begun, begun)
    now = begun + first
    epoch.spans.append(Span(begun, now, 1, first, 8))
    for _ in range(count - 1):
        now += step
        epoch.spans.append(Span(now, now + wait, 1, wait, 8))
        now += wait
    if ends:
        epoch.spans.append(Span(now + step, now + step, 0, 0.0, 0))
    return epoch


def test_single_epoch_counts_after_its_warm_start() -> None:
    epoch = epoch_of(100.0, 3.0, 4, 1.0, 0.0, ends=False)
    late = epoch_of(epoch.until, 0.03, 100, 0.03, 0.01, ends=False)
    epoch.spans += late.spans
    trial = trial_of(LoaderSetting(2, 2), [epoch], [], skip=5)
    assert trial.rate == pytest.approx(200, rel=0.01)
    assert trial.share == pytest.approx(0.75, rel=0.01)
    assert (trial.first, trial.starts, trial.epoch, trial.failure) == (3.0, 0.0, None, None)
    assert trial.noise < 0.01


def test_short_epochs_count_as_wholes() -> None:
    """Otherwise prefetching, which moves work before the first batch, would look like speed."""
    epochs, now = [], 100.0
    for number in range(5):
        epochs.append(epoch_of(now, 5.0 if number == 0 else 0.9, 11, 0.0, 0.01))
        now = epochs[-1].until + 7.0  # a validation between epochs is not the loader's
    trial = trial_of(LoaderSetting(2, 8), epochs, [], skip=3)
    assert trial.rate == pytest.approx(88 / 1.01, rel=0.02)
    assert trial.starts == pytest.approx(0.9 / 1.01, rel=0.02)
    assert (trial.epoch, trial.first) == (88, 5.0)


def test_few_batches_are_unsure() -> None:
    one = epoch_of(100.0, 2.0, 1, 0.0, 0.0, ends=False)
    trial = trial_of(LoaderSetting(0), [one], [], skip=1)
    assert (trial.rate, trial.noise) == (4.0, UNSURE)
    assert trial_of(LoaderSetting(0), [], [], skip=1).failure == "it gave no batch"


def test_processes_are_those_of_the_time() -> None:
    epoch = epoch_of(100.0, 1.0, 101, 0.04, 0.0, ends=False)
    samples = [TreeSample(99.0 + n, 2.0 * n, (100 + n) << 20, 2) for n in range(12)]
    trial = trial_of(LoaderSetting(0), [epoch], samples, skip=1)
    assert trial.cpus == pytest.approx(2.0)
    assert trial.memory == 106 << 20
    late = replace(samples[-1], time=104.0, read=99.5)  # carries what was read with the setting before
    assert trial_of(LoaderSetting(0), [epoch], [late], skip=1).memory == 0


def test_trials_of_one_setting_are_one() -> None:
    trials = [SettingTrial(LoaderSetting(1), rate, 0.02, memory=rate) for rate in (100, 130, 110)]
    one = together(trials)
    assert (one.rate, one.memory) == (110, 130) and one.noise > 0.02
    failed = replace(trials[0], failure="no")
    assert together([trials[0], failed]).failure == "no"


@pytest.mark.parametrize(
    ("workers", "epoch", "same", "expected"),
    [
        (4, 400, None, True),
        (4, 104, None, False),
        (4, None, True, True),
        (4, None, False, False),
        (1, None, True, False),
    ],
)
def test_repeated_samples_are_found(workers: int, epoch: int | None, same: bool | None, expected: bool) -> None:
    before = [SettingTrial(LoaderSetting(0), 10, epoch=100, same=False)]
    trial = SettingTrial(LoaderSetting(workers), 40, epoch=epoch, same=same)
    assert repeats(trial, before) is expected
    assert not repeats(trial, [])  # nothing is known of an epoch with one worker
