"""The search on loaders that are formulas: it finds the cheapest setting near the best, in few trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stoker.diagnostics.settings.setting_trial import LoaderSetting, SettingTrial
from stoker.diagnostics.settings.tuning import SearchSpace, SettingSearch, grid, numbers_of_workers

Model = Callable[[LoaderSetting], SettingTrial]


def loop(cost: float, step: float, cpus: int, on_cpu: float = 1.0) -> Model:
    """A loop of batches of 10 samples that cost `cost` seconds, a part of it on the CPU, with a step of `step`."""

    def measured(setting: LoaderSetting) -> SettingTrial:
        hands = setting.workers * setting.threads
        period = cost + step if not hands else max(step, cost / hands, cost * on_cpu / cpus)
        busy = min(cpus, cost * on_cpu / period)
        return SettingTrial(setting, 10 / period, 0.01, 1 - step / period, cpus=busy, memory=1 << 20)

    return measured


def searched(space: SearchSpace, model: Model) -> SettingSearch:
    search = SettingSearch(space)
    plan = search.plan()
    setting = next(plan, None)
    while setting is not None:
        try:
            setting = plan.send(model(setting))
        except StopIteration:
            break
    return search


def best(search: SettingSearch) -> LoaderSetting:
    found = search.best()
    assert found is not None
    return found.setting


PRESENT = LoaderSetting(0, None, 1, 10)


@pytest.mark.parametrize(
    ("cost", "step", "workers"),
    [
        (0.100, 0.020, 5),  # 4 are too few, 8 too many: the middle is tried
        (0.100, 0.050, 2),
        (0.008, 0.010, 1),
        (1.0, 0.020, 16),  # all CPUs, and more would not help
    ],
)
def test_fewest_workers_that_are_as_fast_as_any(cost: float, step: float, workers: int) -> None:
    found = best(searched(SearchSpace(PRESENT, 16), loop(cost, step, 16)))
    assert found.workers in ({5, 6} if workers == 5 else {workers})
    assert found.prefetch == 2 and found.batch_size == 10


def test_a_loop_that_does_not_wait_is_left_alone() -> None:
    search = searched(SearchSpace(PRESENT, 16), loop(0.0001, 0.1, 16))
    assert list(search.known) == [PRESENT]


def test_too_many_workers_are_found_out() -> None:
    present = LoaderSetting(16, 2, 1, 10)
    search = searched(SearchSpace(present, 16), loop(0.030, 0.020, 16))
    assert best(search).workers == 2
    assert all(setting.workers <= 16 for setting in search.known)


def test_samples_that_wait_get_more_workers_than_cpus() -> None:
    model = loop(1.0, 0.001, 2, on_cpu=0.01)
    assert best(searched(SearchSpace(PRESENT, 2), model)).workers == 8
    assert best(searched(SearchSpace(PRESENT, 2, most=3), model)).workers <= 3
    assert best(searched(SearchSpace(PRESENT, 4, most=3), model)).workers == 3


def test_busy_cpus_get_no_more_workers_than_there_are() -> None:
    search = searched(SearchSpace(PRESENT, 16), loop(1.0, 0.001, 16))
    assert max(setting.workers for setting in search.known) == 16


def test_threads_take_the_place_of_workers_where_samples_wait() -> None:
    found = best(searched(SearchSpace(PRESENT, 2, threads=True), loop(1.0, 0.001, 2, on_cpu=0.01)))
    assert (found.workers, found.threads, found.prefetch) == (2, 16, None)
    computes = best(searched(SearchSpace(PRESENT, 2, threads=True), loop(1.0, 0.001, 2)))
    assert (computes.workers, computes.threads) == (2, 1)


def test_prefetching_stays_as_it_is_unless_it_gains() -> None:
    def bursts(setting: LoaderSetting) -> SettingTrial:
        trial = loop(0.1, 0.001, 4)(setting)
        return replace(trial, rate=trial.rate * (1.2 if setting.prefetch == 4 else 1.0))

    assert best(searched(SearchSpace(PRESENT, 4), bursts)).prefetch == 4
    assert best(searched(SearchSpace(LoaderSetting(4, 3, 1, 10), 4), loop(0.1, 0.001, 4))).prefetch == 3


def test_workers_are_kept_where_their_start_takes_too_long() -> None:
    def short_epochs(setting: LoaderSetting) -> SettingTrial:
        trial = loop(0.1, 0.001, 4)(setting)
        pays = setting.workers > 0 and not setting.persistent
        return replace(trial, rate=trial.rate / 2 if pays else trial.rate, starts=0.5 if pays else 0.0)

    found = best(searched(SearchSpace(PRESENT, 4), short_epochs))
    assert found.persistent and found.workers == 4


def test_larger_settings_are_not_tried_after_a_failure() -> None:
    def short_of_memory(setting: LoaderSetting) -> SettingTrial:
        if setting.workers > 3:
            return SettingTrial(setting, failure="12 MiB of memory were left")
        return loop(0.1, 0.001, 16)(setting)

    search = searched(SearchSpace(PRESENT, 16), short_of_memory)
    assert best(search).workers == 3
    assert max(setting.workers for setting in search.known) == 4


def test_batch_sizes_are_tried_if_they_are_asked_for() -> None:
    def larger_is_faster(setting: LoaderSetting) -> SettingTrial:
        trial = loop(0.1, 0.001, 4)(setting)
        return replace(trial, rate=trial.rate * (setting.batch_size or 1))

    assert best(searched(SearchSpace(PRESENT, 4, batch_sizes=(10, 20, 40)), larger_is_faster)).batch_size == 40


def test_those_near_the_best_are_measured_again() -> None:
    search = searched(SearchSpace(PRESENT, 16), loop(0.100, 0.020, 16))
    often = {setting for setting, trials in search.known.items() if len(trials) == 3}
    assert len(often) >= 2 and best(search) in often


def test_few_trials_are_enough() -> None:
    assert sum(map(len, searched(SearchSpace(PRESENT, 64), loop(0.1, 0.02, 64)).known.values())) <= 20


def test_own_setting_that_fails_ends_the_search() -> None:
    search = searched(SearchSpace(PRESENT, 4), lambda setting: SettingTrial(setting, failure="no such label"))
    assert search.best() is None and list(search.known) == [PRESENT]


def test_settings_with_repeated_samples_are_not_taken() -> None:
    def stream(setting: LoaderSetting) -> SettingTrial:
        return replace(loop(0.1, 0.001, 4)(setting), epoch=100 * max(1, setting.workers))

    search = searched(SearchSpace(LoaderSetting(4, 2, 1, 10), 4), stream)
    assert best(search).workers in (0, 1)
    assert {trial.failure is None for trial in search.trials() if trial.setting.workers > 1} == {False}


@pytest.mark.parametrize(
    ("cpus", "most", "numbers"),
    [(1, None, [0, 1, 2, 4]), (2, None, [0, 1, 2, 4, 8]), (6, None, [0, 1, 2, 4, 6, 12, 24]), (6, 5, [0, 1, 2, 4, 5])],
)
def test_numbers_of_workers(cpus: int, most: int | None, numbers: list[int]) -> None:
    assert numbers_of_workers(cpus, most) == numbers


def test_grid_has_each_pair() -> None:
    settings = grid(PRESENT, (0, 2), (8, 16))
    assert [(one.batch_size, one.workers, one.prefetch) for one in settings] == [
        (8, 0, None),
        (8, 2, 2),
        (16, 0, None),
        (16, 2, 2),
    ]
    assert grid(PRESENT, (1,), ())[0].batch_size == 10
