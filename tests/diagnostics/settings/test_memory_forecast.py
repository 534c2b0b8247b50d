"""The memory of a setting follows from the trials, and is rather too high than too low."""

from __future__ import annotations

from stoker.diagnostics.settings.setting_trial import LoaderSetting, SettingTrial
from stoker.diagnostics.settings.tuning import forecast


def trial(workers: int, memory: int, prefetch: int | None = 2, batch_size: int | None = None) -> SettingTrial:
    return SettingTrial(LoaderSetting(workers, prefetch if workers else None, 1, batch_size), 1.0, memory=memory)


def test_nothing_is_known_at_first() -> None:
    assert forecast([], LoaderSetting(4, 2)) is None
    assert forecast([trial(0, 0)], LoaderSetting(4, 2)) is None


def test_first_worker_is_taken_to_be_as_large_as_all() -> None:
    assert forecast([trial(0, 100)], LoaderSetting(4, 2)) == 500
    assert forecast([trial(0, 100), trial(1, 130)], LoaderSetting(4, 2)) == 220
    assert forecast([trial(0, 100), trial(1, 130), trial(2, 180)], LoaderSetting(4, 2)) == 260


def test_deeper_settings_take_more() -> None:
    known = [trial(0, 100, batch_size=8), trial(2, 180, batch_size=8)]
    assert forecast(known, LoaderSetting(2, 2, 1, 8)) == 180
    assert forecast(known, LoaderSetting(2, 4, 1, 8)) == 260
    assert forecast(known, LoaderSetting(2, 2, 8, 8)) == 260
    assert forecast(known, LoaderSetting(2, 2, 1, 16)) == 260


def test_smaller_settings_take_what_was_measured() -> None:
    assert forecast([trial(4, 500), trial(8, 900)], LoaderSetting(2, 2)) == 500
