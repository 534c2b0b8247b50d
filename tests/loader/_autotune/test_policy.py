"""`num_workers="auto"`: what is decided from what was measured, and loaders that go from workers to the trainer."""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
import os
import pickle
import select
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import get_worker_info
from stoker._core.machine import cpus
from stoker._core.machine.cpus import Cpus
from stoker._engine.process import linux
from stoker.loader._autotune import controller
from stoker.loader._autotune.controller import dataset_copy
from stoker.loader._autotune.policy import CHEAP, NEAR, Choice, Trial
from stoker.loader.record import record_of

Took = Callable[[int, int], tuple[float, float]]
"""(number of workers, batch) → (seconds of the loop's own, seconds of waiting)."""


def played(trial: Trial, took: Took, most: int = 5000) -> list[int]:
    """Who made each batch until it was decided."""
    makers: list[int] = []
    while trial.choice is None:
        assert len(makers) < most, "no end"
        makers.append(trial.workers)
        trial.delivered(trial.turn, *took(trial.workers, len(makers)))
    return makers


def of(own: float, cost: float, hand_over: float = 0.0004) -> Took:
    """A machine where workers do not disturb the trainer."""

    def took(workers: int, batch: int) -> tuple[float, float]:
        if not workers:
            return own, cost
        return own + hand_over, max(0.0, (cost + hand_over) / workers - own - hand_over)

    return took


def decided(trial: Trial) -> Choice:
    assert trial.choice is not None
    return trial.choice


# Decisions


@pytest.mark.parametrize("most", [1, 2, 4, 64])
def test_cheap_batches_are_made_by_the_trainer(most: int) -> None:
    trial = Trial(most, near=True)
    makers = played(trial, of(0.0, 0.0002))
    assert decided(trial).number == 0
    assert makers[0] == most
    assert set(decided(trial).seconds) >= {0, most}


@pytest.mark.parametrize("most", [2, 8])
def test_slow_batches_are_tried_with_all_workers_only(most: int) -> None:
    trial = Trial(most, near=True)
    makers = played(trial, of(0.001, 60.0), most=80)
    assert set(makers) == {most}
    assert decided(trial).number == most


@pytest.mark.parametrize(("cost", "number"), [(0.09, {1, 2}), (0.18, {2, 3}), (0.48, {5, 6}), (1.5, {16})])
def test_slow_batches_get_as_many_workers_as_keep_up(cost: float, number: set[int]) -> None:
    trial = Trial(16, near=True)
    makers = played(trial, of(0.1, cost))
    assert decided(trial).number in number
    assert 0 not in makers, "the loop would stand still"
    assert decided(trial).waiting < 0.2


def test_busy_gpu_keeps_one_worker_for_cheap_batches() -> None:
    trial = Trial(8, near=True)
    played(trial, of(0.5, 0.001))
    assert decided(trial).number == 1


def test_workers_that_disturb_each_other_are_fewer() -> None:
    trial = Trial(2, near=True)
    played(trial, lambda workers, batch: (0.0002, {0: 0.021, 1: 0.002, 2: 0.003}[workers]))
    assert decided(trial).number == 1


def test_smallest_of_equal_worker_counts_is_chosen() -> None:
    trial = Trial(4, near=True)
    played(trial, lambda workers, batch: (0.0, 0.00101 if workers % 2 == 0 else 0.001))
    assert decided(trial).number == 0
    trial = Trial(4, near=False)
    makers = played(trial, lambda workers, batch: (0.0, 0.001))
    assert decided(trial).number == 1
    assert 0 not in makers


def test_close_worker_counts_are_measured_longer() -> None:
    def took(workers: int, batch: int) -> tuple[float, float]:
        if workers == 2:
            return 0.0, 0.0022 if batch < 150 else 0.0019  # as long as one, as it seemed first
        return 0.0, {0: 0.02, 1: 0.0022}[workers]

    trial = Trial(2, near=True)
    makers = played(trial, took)
    assert decided(trial).number == 2
    assert 0 not in makers[150:], "it was not close"
    turns = [len(list(turn)) for _, turn in itertools.groupby(makers)]
    assert max(turns[-4:]) > 2 * max(turns[3:-4])


def test_pauses_and_bursts_do_not_deceive() -> None:
    def took(workers: int, batch: int) -> tuple[float, float]:
        own = 30.0 if batch % 37 == 0 else 0.0001  # it saves
        if workers:  # batches come four at a time
            return own, 0.004 if batch % 4 == 0 else 0.0
        return own, 2.0 if batch % 29 == 0 else 0.0005  # another process had the CPU

    trial = Trial(2, near=True)
    played(trial, took)
    assert decided(trial).number == 0
    assert decided(trial).seconds[2] == pytest.approx(0.0011, rel=0.1)


def test_workers_that_are_still_cold_are_not_taken_for_slow() -> None:
    def took(workers: int, batch: int) -> tuple[float, float]:
        return (0.0, 0.08 if batch < 20 else 0.04 if batch < 40 else 0.002) if workers else (0.0, 0.0002)

    trial = Trial(2, near=True)
    played(trial, took)
    assert decided(trial).number == 0


def test_one_cpu_gives_one_worker() -> None:
    trial = Trial(1, near=False)
    assert set(played(trial, of(0.0, 0.001))) == {1}
    assert decided(trial).number == 1


def test_batches_that_may_take_long_are_not_made_by_the_trainer() -> None:
    cost = 1.5 * NEAR
    assert cost < CHEAP
    trial = Trial(4, near=True)
    assert 0 not in played(trial, of(0.0, cost))
    assert decided(trial).number == 4


def test_batches_requested_in_an_earlier_turn_are_not_measured() -> None:
    trial = Trial(2, near=True)
    first = trial.turn
    trial.interrupted()
    for _ in range(1000):
        trial.delivered(first, 0.0, 0.001)
    assert trial.choice is None
    assert trial.workers == 2
    trial.delivered(trial.turn, 0.0, 0.001)


def test_dataset_that_raises_in_the_trainer_moves_to_workers() -> None:
    trial = Trial(2, near=True)
    while trial.workers:
        trial.delivered(trial.turn, 0.0, 0.001)
    trial.without_near("a batch raised ValueError there: no")
    assert 0 not in played(trial, of(0.0, 0.001))
    assert decided(trial).number in (1, 2)
    assert decided(trial).text.endswith(" (not tried without workers: a batch raised ValueError there: no)")


def waits(own: float, cost: float, computing: float, most: int = 2) -> Trial:
    """Played with samples that wait, but for `computing` seconds of the CPUs' time in each batch."""
    used = 0.0

    def took(workers: int, batch: int) -> tuple[float, float]:
        nonlocal used
        used += computing
        return of(own, cost)(workers, batch)

    trial = Trial(most, near=True, beyond=lambda most: 4 * most)
    trial.busy = lambda: {7: used}
    played(trial, took)
    return trial


@pytest.mark.parametrize("most", [1, 2, 8])
def test_idle_cpus_allow_more_workers_than_cpus(most: int) -> None:
    choice = decided(waits(0.001, 0.2 * most, 0.001, most))
    assert choice.number == 4 * most
    assert set(choice.seconds) == {most, 4 * most}
    told = f"beyond {most} for as many CPUs, which had time left while samples waited, because the training loop took"
    assert choice.text.startswith(told)
    assert choice.waiting > 0.2


@pytest.mark.parametrize(("computing", "number"), [(0.19, 4), (0.13, 6), (0.0, 8)])
def test_extra_workers_are_limited_by_busy_cpus(computing: float, number: int) -> None:
    assert decided(waits(0.0, 0.4, computing)).number == number


def test_workers_that_compute_are_no_more_than_cpus() -> None:
    trial = waits(0.001, 0.4, 0.3)
    assert decided(trial).number == 2 and set(decided(trial).seconds) == {2}
    pids, seconds = itertools.count(), itertools.count()
    for busy in (dict, lambda: {next(pids): 0.0}, lambda: {7: -next(seconds)}):
        trial = Trial(2, near=True, beyond=lambda most: 4 * most)
        trial.busy = busy  # unknown; one worker was replaced; threads of workers have ended
        assert set(played(trial, of(0.001, 0.4))) == {2} and decided(trial).number == 2


def test_extra_workers_stop_where_the_loop_does_not_wait() -> None:
    assert decided(waits(0.1, 0.4, 0.001)).number in (4, 5)
    assert decided(waits(0.1, 0.2, 0.001)).number in (1, 2), "the loop does not wait"


def test_extra_workers_without_gain_are_let_go() -> None:
    """All wait for the same thing."""
    for seconds in (0.2, 3 * NEAR):
        trial = Trial(2, near=False, beyond=lambda most: 4 * most)
        trial.busy = lambda: {7: 0.0}
        makers = played(trial, lambda workers, batch, seconds=seconds: (0.0, seconds / min(workers, 2)))  # type: ignore[misc]
        assert decided(trial).number == 2
        assert decided(trial).seconds[8] == pytest.approx(seconds / 2) and 8 in makers


@pytest.mark.parametrize(("there", "number"), [(2, 2), (5, 5), (8, 8)])
def test_decision_counts_the_workers_that_really_started(there: int, number: int) -> None:
    trial = Trial(2, near=True, beyond=lambda most: 4 * most)
    trial.busy = lambda: {7: 0.0}
    took = of(0.0, 0.4)

    def with_those(workers: int, batch: int) -> tuple[float, float]:
        trial.there_are(min(workers, there))
        return took(min(workers, there), batch)

    played(trial, with_those)
    assert decided(trial).number == number


def test_start_of_a_worker_is_not_measured() -> None:
    """Epochs are shorter than a turn, and begin without workers."""
    trial, used = Trial(2, near=True, beyond=lambda most: 4 * most), {7: 0.0}
    trial.busy = lambda: used
    for batch in range(60):
        if batch % 6 == 0:
            used = {}
            trial.interrupted()
        used = {7: 100.0}
        trial.delivered(trial.turn, *of(0.0, 0.4)(trial.workers, batch))
    assert trial.workers == 8


@pytest.mark.parametrize("own", [0.0, 0.002, 0.05])
@pytest.mark.parametrize("cost", [0.0001, 0.001, 0.004, 0.02])
@pytest.mark.parametrize("most", [1, 2, 5, 16])
def test_within_a_tenth_of_the_best(own: float, cost: float, most: int) -> None:
    took = of(own, cost)
    trial = Trial(most, near=True)
    played(trial, took)
    best = min(sum(took(number, 1)) for number in range(most + 1))
    chosen = sum(took(decided(trial).number, 1))
    assert chosen <= 1.1 * best or (decided(trial).number > 0 and cost + own <= 1.1 * best)


# Loaders, by a trial that goes to and fro


class ToAndFro(Trial):
    """Every third batch another one, and at last `last`."""

    last = 0
    course = (2, 0, 1, 0, 2, 0)

    def delivered(self, turn: int, own: float, waited: float) -> None:
        self._count = getattr(self, "_count", 0) + 1
        if self._count % 3 == 0 and self.choice is None:
            self.turn += 1
            self.workers = min(self.course[self._count // 3 % len(self.course)], self.most)
            if self._count == 3 * len(self.course):
                self.workers = min(self.last, self.most)
                self.choice = Choice(self.workers, self.most, {0: 0.001, 1: 0.002, 2: 0.003}, 0.5)

    def without_near(self, reason: str) -> None:
        self.course = (2, 1, 2, 1, 2, 1)
        self.workers = self.most


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cpus(monkeypatch, 2)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def set_cpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(cpus, "cpus", lambda: Cpus(number, float(number), "a test"))


@pytest.fixture
def to_and_fro(monkeypatch: pytest.MonkeyPatch) -> type[ToAndFro]:
    monkeypatch.setattr(controller, "Trial", ToAndFro)
    monkeypatch.setattr(ToAndFro, "last", 0)
    return ToAndFro


class Made:
    """Samples that say which process made them."""

    def __init__(self, length: int = 48) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def plain(batches: Any) -> list[list[int]]:
    return [[int(number) for number in batch[0]] for batch in batches]


def here(batch: Any) -> bool:
    return int(batch[1][0]) == os.getpid()


SETTINGS: list[dict[str, Any]] = [
    {},
    {"persistent_workers": True},
    {"in_order": False},
    {"worker_method": "thread"},
    {"prefetch_factor": 5},
    {"multiprocessing_context": "spawn"},
]


@pytest.mark.parametrize("last", [0, 1, 2])
@pytest.mark.parametrize("settings", SETTINGS[:4], ids=str)
def test_the_batches_and_their_order_stay(settings: dict[str, Any], last: int, to_and_fro: Any, noisy: Any) -> None:
    to_and_fro.last = last
    given = {"batch_size": 2, "shuffle": True, "seed": 5, "output": "numpy"}
    if settings.get("worker_method") == "thread":
        noisy = Made  # global generators are left alone by threads
    serial = stoker.DataLoader(noisy(48), **given)
    loader = stoker.DataLoader(noisy(48), num_workers="auto", **given, **settings)
    with loader:
        for epoch in range(3):
            expected = [as_lists(batch) for batch in serial]
            got = [as_lists(batch) for batch in loader]
            if settings.get("in_order") is False:
                expected, got = sorted(expected), sorted(got)
            if noisy is Made:
                expected, got = [batch[0] for batch in expected], [batch[0] for batch in got]
            assert got == expected, epoch
    assert loader.num_workers == last


def as_lists(batch: Any) -> Any:
    return [np.asarray(leaf).tolist() for leaf in batch]


def test_batches_are_made_in_the_trainer_and_in_workers(to_and_fro: Any) -> None:
    loader = stoker.DataLoader(Made(96), 2, num_workers="auto", output="numpy")
    iterator = iter(loader)
    makers = [here(batch) for batch in iterator]
    assert set(makers) == {True, False}
    assert not makers[0]
    assert makers[-1]
    assert list(map(here, loader)) == [True] * 48


def test_workers_that_are_not_wanted_end_within_the_epoch(to_and_fro: Any) -> None:
    iterator = iter(stoker.DataLoader(Made(200), 2, num_workers="auto", output="numpy"))
    far = iterator._backend._far
    kept = [next(iterator) for _ in range(40)]
    assert iterator._backend._far is None
    assert far.is_closed
    assert cpus.taken() == 0
    assert plain(kept) == [[2 * n, 2 * n + 1] for n in range(40)], "what is held stays as it is"
    assert len(list(iterator)) == 60


@pytest.mark.parametrize(("settings", "last"), [({}, 1), ({"persistent_workers": True}, 0)], ids=str)
def test_a_state_is_right_wherever_it_is_taken(settings: Any, last: int, to_and_fro: Any, undisturbed: Any) -> None:
    to_and_fro.last = last

    def make() -> Any:
        return Lists(range(50), batch_size=2, shuffle=True, seed=3, num_workers="auto", output="numpy", **settings)

    runs = undisturbed(make)
    for epoch, count in [(0, 1), (0, 5), (0, 10), (0, 17), (0, 25), (1, 3)]:
        runs.goes_on(epoch, count)


class Lists(stoker.DataLoader[Any]):
    """Batches that can be compared; ends its workers when it is garbage."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield batch.tolist()


class Broken(Made):
    """Sample 13 is bad."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 13:
            raise KeyError("bad")
        return super().__getitem__(index)


def test_an_error_comes_once_and_in_its_place(to_and_fro: Any) -> None:
    to_and_fro.course = (2, 0, 0, 0, 0, 0)  # batch 6 is the trainer's
    iterator = iter(loader := stoker.DataLoader(Broken(), 2, num_workers="auto", output="numpy"))
    got = plain(next(iterator) for _ in range(6))
    with pytest.raises(KeyError, match="worker process"):  # asked for there as well
        next(iterator)
    got += plain(iterator)
    assert got == [[n, n + 1] for n in range(0, 48, 2) if n != 12]
    counts = loader.report().epoch
    assert (counts.delivered, counts.raised, counts.not_requested) == (46, 2, 0)


class Shy(Made):
    """Cannot be made in the trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.trainer = os.getpid()

    def __getitem__(self, index: int) -> tuple[int, int]:
        assert os.getpid() != self.trainer
        return super().__getitem__(index)


def test_dataset_that_needs_workers_keeps_them(to_and_fro: Any) -> None:
    to_and_fro.last = 2
    loader = stoker.DataLoader(Shy(), 2, num_workers="auto", output="numpy")
    assert plain(loader) == [[n, n + 1] for n in range(0, 48, 2)]
    assert loader.report().epoch.delivered == 48


class Opens(Made):
    """Opens its file at the first sample, and keeps it."""

    file: Any = None

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.file = self.file or object()
        return super().__getitem__(index)


def test_file_opened_in_a_trial_is_not_inherited_by_workers(to_and_fro: Any) -> None:
    to_and_fro.last = 2
    dataset = Opens()
    wrapped = stoker.Subset(stoker.ConcatDataset([stoker.Subset(dataset, range(48))]), range(48))
    loader = stoker.DataLoader(wrapped, 2, num_workers="auto", output="numpy")
    assert any(map(here, loader))
    assert dataset.file is None


def test_copies_are_shallow_or_none() -> None:
    class Closing(Made):
        def __del__(self) -> None:
            pass

    class Refuses(Made):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError

    class Alone(Made):
        def __copy__(self) -> Alone:
            return self

    rows = [1, 2]
    assert dataset_copy(rows) is rows
    assert dataset_copy(array := np.zeros(2)) is array
    assert dataset_copy(Refuses()) is None
    assert dataset_copy(stoker.Subset(Refuses(), [1])) is None
    assert dataset_copy(Closing()) is None
    assert dataset_copy(Alone()) is None
    holder: Any = Made()
    holder.parts = {"one": Made(), "other": 2}
    holder.row = [None, Made()]
    twin = dataset_copy(holder)
    assert twin.parts["one"] is not holder.parts["one"] and twin.parts["other"] == 2
    assert twin.row[0] is None and twin.row[1] is not holder.row[1]
    subset = stoker.Subset(Made(), rows)
    twin = dataset_copy(subset)
    assert twin is not subset
    assert twin.indices is rows


# What the loader is like before and after


def test_chosen_worker_count_is_logged_and_described(to_and_fro: Any, caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    loader = stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy", on_event=events.append)
    assert loader.num_workers == 2
    assert "2 at first" in loader.describe()
    with caplog.at_level(logging.INFO, "stoker"):
        list(loader)
    assert loader.num_workers == 0
    said = "1 ms with none, 2 ms with 1, 3 ms with 2"
    assert "0 of at most 2" in loader.describe()
    assert said in loader.describe()
    assert said in str(loader.report())
    assert said in caplog.text
    assert [event.kind for event in events] == ["auto"]
    assert events[0].details["number"] == 0


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_loader_is_rebuilt_from_its_attributes_afterwards(settings: dict[str, Any], to_and_fro: Any) -> None:
    if "multiprocessing_context" in settings:
        settings = {**settings, "worker_method": "thread"}  # nothing has to be sent
    with stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy", **settings) as loader:
        list(loader)
    assert loader.num_workers == 0
    names = inspect.signature(stoker.DataLoader).parameters.keys() - {"sampler", "batch_sampler", "batch_size"}
    again = stoker.DataLoader(**{name: getattr(loader, name) for name in names}, batch_sampler=loader.batch_sampler)
    assert plain(again) == plain(loader)


@pytest.mark.parametrize("last", [0, 1, 2])
def test_persistent_workers_are_as_many_as_were_found(last: int, to_and_fro: Any) -> None:
    to_and_fro.last = last
    with stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy", persistent_workers=True) as loader:
        first = iter(loader)
        list(first)
        second = iter(loader)
        assert (first is second) == (last == 2)
        assert {here(batch) for batch in second} == {last == 0}
        assert loader.num_workers == last
        third = iter(loader)
        assert (third is second) == (last > 0)
        list(third)


def together(samples: list[Any]) -> Any:
    return [np.array(field) for field in zip(*samples, strict=True)]


class Waits(Made):
    """As samples that come from afar."""

    seconds = 0.004

    def __getitem__(self, index: int) -> tuple[int, int]:
        time.sleep(self.seconds)
        assert get_worker_info().id < get_worker_info().num_workers
        return index, os.getpid()


@pytest.mark.parametrize(
    "settings",
    [SETTINGS[0], pytest.param(SETTINGS[1], marks=pytest.mark.long), {"collate_fn": together}],
    ids=["", "persistent", "whole batches"],
)
def test_samples_that_wait_get_more_workers_within_the_epoch(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux, "cpu_seconds_wanted", lambda pid: 0.0)  # where other tests run, they wait for CPUs too
    monkeypatch.setattr(Waits, "seconds", 0.016)  # a busy machine adds less to each than eight workers save
    loader = stoker.DataLoader(Waits(1600), 8, num_workers="auto", output="numpy", **settings)
    first = iter(loader)
    batches = list(first)
    assert plain(batches) == [[*range(n, n + 8)] for n in range(0, 1600, 8)]
    assert loader.num_workers > 2, loader.describe()
    assert f"{loader.num_workers} beyond 2 for as many CPUs" in loader.describe()
    makers = {int(pid) for batch in batches for pid in batch[1]}
    assert len(makers) >= loader.num_workers
    assert cpus.taken() == (2 if "persistent_workers" in settings else 0)
    with iter(loader) as again:
        assert len({int(pid) for _ in range(20) for pid in next(again)[1]}) > 2
        assert (again is first) == ("persistent_workers" in settings) or len(makers) > loader.num_workers
        assert len(again._backend._far.pids) == 1 + loader.num_workers


def test_iterator_dropped_while_measuring_leaves_nothing() -> None:
    loader = stoker.DataLoader(Waits(), 2, num_workers="auto", output="numpy")
    iterator = iter(loader)
    next(iterator)
    zygote = os.pidfd_open(iterator._backend._far.pids[0])
    try:
        del iterator
        assert select.select([zygote], [], [], 20)[0]
        assert record_of(loader).auto is not None and record_of(loader).auto._trial is not None
        assert record_of(loader).auto._trial.busy() == {}
    finally:
        os.close(zygote)


@pytest.mark.parametrize(("budget", "number"), [(None, 8), (1 << 30, 2)])
def test_each_worker_keeps_its_part_of_a_budget(
    budget: int | None, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    class Watched(Trial):
        def __init__(self, most: int, near: bool, ahead: int, beyond: Callable[[int], int]) -> None:
            super().__init__(most, near, ahead, beyond)
            found.append(beyond(most))

    monkeypatch.setattr(controller, "Trial", Watched)
    list(stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy", memory_budget=budget))
    assert found == [number]


def test_worker_count_set_by_the_user_is_kept(to_and_fro: Any) -> None:
    loader = stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy", prefetch_factor=3)
    list(loader)
    loader.num_workers = 1
    assert not any(map(here, loader))
    assert loader.prefetch_factor == 3
    assert loader.num_workers == 1
    assert "auto" not in loader.describe()


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copies_go_their_own_way(twin: Any, to_and_fro: Any) -> None:
    loader = stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy")
    other = twin(loader)
    list(loader)
    assert (loader.num_workers, other.num_workers) == (0, 2)
    list(other)
    assert other.num_workers == 0
    assert twin(other).num_workers == 0
    assert all(map(here, twin(other)))


class Stream(stoker.IterableDataset[int]):
    shards_itself = True

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        assert info is not None
        return iter(range(info.id, 40, info.num_workers))


def nothing(worker: int) -> None:
    pass


FIXED = [(Made(), {"worker_init_fn": nothing}), (Made(), {"seeding": "worker"}), (Stream(), {})]


@pytest.mark.parametrize(("dataset", "settings"), FIXED, ids=["worker_init_fn", "seeding", "stream"])
def test_worker_count_that_decides_batches_stays_the_machines(
    dataset: Any, settings: dict[str, Any], to_and_fro: Any
) -> None:
    """The machine's number of workers is kept where the batches depend on the number."""
    loader = stoker.DataLoader(dataset, 2, num_workers="auto", output="numpy", **settings)
    other = cpus.claim(2, 2)
    for _ in range(2):
        assert len(list(loader)) in (20, 24)
        assert loader.num_workers == 2
    assert "not measured" in loader.describe()
    other.release()
    assert cpus.taken() == 0


class Collator:
    """With a state, maybe."""

    def __call__(self, samples: list[Any]) -> Any:
        return list(zip(*samples, strict=True))


WITH_WORKERS: list[dict[str, Any]] = [
    {"timeout": 60},
    {"on_error": "skip"},
    {"stall_action": "raise"},
    {"memory_budget": 1 << 30},
    {"max_samples_per_worker": 1 << 30},
    {"collate_fn": Collator()},
]


@pytest.mark.parametrize("settings", WITH_WORKERS, ids=lambda settings: next(iter(settings)))
def test_features_that_need_workers_keep_them(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    class Watched(Trial):
        def __init__(self, most: int, near: bool, *more: int) -> None:
            super().__init__(most, near, *more)
            tried.append(near)

    monkeypatch.setattr(controller, "Trial", Watched)
    loader = stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy", **settings)
    assert not any(map(here, loader))
    assert tried == [False]


# Small machines, slow samples, several loaders


class Blocking:
    """A sample comes when a byte is written to the pipe, and names the process that read it."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[int, int]:
        assert os.read(self.pipe, 1)
        return index, os.getpid()


@pytest.mark.parametrize("number", [1, 2])
def test_a_minute_a_sample(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by a minute at each reading."""
    set_cpus(monkeypatch, number)
    monkeypatch.setattr(controller, "FOR_EACH_CPU", 1)  # else others read the bytes
    minutes = iter(range(10**6))
    clock = types.SimpleNamespace(perf_counter=lambda: 60.0 * next(minutes))
    monkeypatch.setattr("stoker.loader._autotune.backend.time", clock)
    reads, writes = os.pipe()
    try:
        # `timeout` keeps batches single: a worker with several ahead would read the bytes of the others
        loader = stoker.DataLoader(Blocking(reads), 1, num_workers="auto", output="numpy", timeout=60)
        iterator = iter(loader)
        batches = []
        os.write(writes, b"x" * 2 * number)  # else the one whose turn it is may find none
        for _ in range(64):
            os.write(writes, b"x")
            batches.append(next(iterator))
        assert next(iterator, None) is None
        assert sorted(plain(batches)) == [[n] for n in range(64)]
        assert not any(map(here, batches))
        assert loader.num_workers == number
    finally:
        os.close(reads)
        os.close(writes)


def test_half_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "cpus", lambda: Cpus(1, 0.5, "quota of 0.5 CPUs"))
    loader = stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy")
    assert loader.num_workers == 1
    for _ in range(5):
        assert plain(loader) == [[n, n + 1] for n in range(0, 48, 2)]
    assert loader.num_workers in (0, 1)


def test_loaders_that_are_open_at_once_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cpus(monkeypatch, 3)
    train = stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy", persistent_workers=True)
    held_out = stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy")
    with train:
        going = iter(train)
        next(going)
        other = iter(held_out)
        assert (train.num_workers, held_out.num_workers) == (3, 1)
        assert plain(other) == [[n, n + 1] for n in range(0, 48, 2)]
        del other
    assert cpus.taken() == 0
    with held_out, iter(held_out):
        assert held_out.num_workers == 3


def test_ranks_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cpus(monkeypatch, 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    loader = stoker.DataLoader(Made(), num_workers="auto")
    assert loader.num_workers == 2
    assert "shared by 4 ranks" in loader.describe()


@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize("stay", [False, True])
def test_worker_count_is_remeasured_when_the_loop_waits_longer(last: int, stay: bool, to_and_fro: Any) -> None:
    to_and_fro.last = last
    loader = stoker.DataLoader(Made(), 2, num_workers="auto", output="numpy", persistent_workers=stay)
    first = iter(loader)
    list(first)
    assert loader.num_workers == last
    epoch = record_of(loader).ledger.epoch
    object.__setattr__(record_of(loader).auto.choice, "waiting", 0.01)
    epoch.waited, epoch.asked, epoch.until = 9.0, 0.0, 10.0
    with loader, iter(loader) as again:
        assert loader.num_workers == 2
        assert again is not first and again._backend._trial is not None
