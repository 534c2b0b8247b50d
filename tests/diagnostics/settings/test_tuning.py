"""Tuning on a bench that is a formula: time, memory, failures, and the words at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stoker._core.machine.memory import Available
from stoker.diagnostics.settings import tuning
from stoker.diagnostics.settings.setting_bench import BenchedLoader, SettingBench
from stoker.diagnostics.settings.setting_trial import REPEATS, LoaderSetting, SettingTrial
from stoker.diagnostics.settings.tuning import SearchSpace, SettingSearch, Tuning, conclusion, line_to_paste
from stoker.diagnostics.watched_program import TOO_LATE
from stoker.errors import ProgramFailedError

PRESENT = LoaderSetting(0, None, 1, 32)
LOADER = BenchedLoader("train:make", PRESENT, "Photos", "torch", False)


class FormulaBench(SettingBench):
    """Measures by a function, in no time."""

    taken = 0

    def __init__(self, measured: Callable[[LoaderSetting], SettingTrial]) -> None:
        self._measured = measured
        self.asked: list[LoaderSetting] = []

    def open(self) -> BenchedLoader:
        return LOADER

    def measure(self, setting: LoaderSetting, seconds: float, patience: float = 60.0) -> SettingTrial:
        self.asked.append(setting)
        return self._measured(setting)


def grows(setting: LoaderSetting) -> SettingTrial:
    """A worker takes 1 GiB, and doubles the rate."""
    return SettingTrial(setting, 2.0**setting.workers, 0.01, 1.0, memory=(1 + setting.workers) << 30)


def searched(bench: FormulaBench, ends: float | None = None) -> tuple[Tuning, SettingSearch]:
    made, search = Tuning(bench, LOADER, 1.0, ends), SettingSearch(SearchSpace(PRESENT, 16))
    made.follow(search, lambda setting, trials: None)
    return made, search


def test_settings_beyond_the_memory_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning.memory, "available", lambda: Available(8 << 30, 16 << 30, "the machine"))
    bench = FormulaBench(grows)
    _, search = searched(bench)
    assert max(setting.workers for setting in bench.asked) == 6  # between 4 and 8: 7 GiB, and 1 is kept free
    failures = [trial.failure for trial in search.trials() if trial.failure is not None]
    assert "it was not tried: it would take some 9.0 GiB of memory, and 7.2 GiB are free" in failures
    found = search.best()
    assert found is not None and found.setting.workers == 6


def test_settings_larger_than_one_that_ran_out_are_not_tried() -> None:
    def runs_out(setting: LoaderSetting) -> SettingTrial:
        failure = "12 MiB of memory were left" if setting.workers >= 2 else None
        return SettingTrial(setting, 2.0**setting.workers, 0.01, 1.0, failure=failure)

    bench = FormulaBench(runs_out)
    made = Tuning(bench, LOADER, 1.0)
    made.grid([LoaderSetting(n, 2 if n else None, 1, 32) for n in (0, 1, 2, 4)], lambda setting, trials: None)
    assert [setting.workers for setting in bench.asked] == [0, 1, 2]
    assert made.trials[-1].failure == (
        "it was not tried: memory ran out with batch_size=32, num_workers=2, prefetch_factor=2"
    )


def test_own_setting_is_measured_even_if_the_time_is_over() -> None:
    made, search = searched(FormulaBench(grows), ends=0.0)
    assert made.out_of_time and len(made.trials) == 1
    assert search.best() is not None


def test_a_setting_cut_off_by_the_time_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(setting: LoaderSetting) -> SettingTrial:
        return (
            SettingTrial(setting, failure=TOO_LATE) if setting.workers == 2 else SettingTrial(setting, 1.0, share=1.0)
        )

    clock = iter(range(1000))
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: float(next(clock)))
    made, search = searched(FormulaBench(late), ends=30.0)
    assert made.out_of_time
    assert all(trial.failure is None for trial in search.trials())


def test_loader_that_fails_as_it_is() -> None:
    bench = FormulaBench(lambda setting: SettingTrial(setting, failure="ValueError: no such label"))
    with pytest.raises(ProgramFailedError, match="with its own setting: ValueError: no such label"):
        searched(bench)


def test_repeated_samples_fail_a_setting() -> None:
    def stream(setting: LoaderSetting) -> SettingTrial:
        return SettingTrial(setting, 1.0 + setting.workers, share=1.0, epoch=10 * max(1, setting.workers))

    made, _ = searched(FormulaBench(stream))
    assert [(trial.setting.workers, trial.failure) for trial in made.trials][:3] == [(0, None), (1, None), (2, REPEATS)]


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (LoaderSetting(4, 2, 1, 32), "DataLoader(..., num_workers=4)"),
        (
            LoaderSetting(4, 8, 1, 32, True),
            "DataLoader(..., num_workers=4, prefetch_factor=8, persistent_workers=True)",
        ),
        (LoaderSetting(2, None, 8, 64), "DataLoader(..., batch_size=64, num_workers=2, threads_per_worker=8)"),
        (LoaderSetting(0, None, 1, 32), "DataLoader(..., num_workers=0)"),
    ],
)
def test_line_to_paste_has_what_differs(setting: LoaderSetting, line: str) -> None:
    assert line_to_paste(LOADER, SettingTrial(setting)) == line


def test_conclusion_names_gain_and_present_setting() -> None:
    present, better = SettingTrial(PRESENT, 100.0), SettingTrial(LoaderSetting(2, 2, 1, 32), 250.0)
    assert conclusion(LOADER, [present, better], better) == (
        "250 samples/s instead of 100 with batch_size=32, num_workers=0: 2.5 times."
    )
    assert "as good as any" in conclusion(LOADER, [present, better], present)
    stream = BenchedLoader("train:make", PRESENT, "Photos", "torch", False, True)
    assert conclusion(stream, [present, better], better).endswith("(get_worker_info()).")
