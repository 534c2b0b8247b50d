"""Iterating over a loader's sampler gives the loader's epochs; `set_epoch` of either sets both."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker import DataLoader

SOME = settings(max_examples=max(20, settings().max_examples // 3))
N = 23

ORDERS: dict[str, Any] = {
    "shuffle": lambda: {"shuffle": True, "batch_size": 4},
    "ascending": lambda: {"batch_size": 4},
    "drop_last": lambda: {"shuffle": True, "batch_size": 4, "drop_last": True},
    "weighted": lambda: {"sampler": stoker.WeightedRandomSampler(np.arange(N) + 1.0, N), "batch_size": 4},
    "subset": lambda: {"sampler": stoker.SubsetRandomSampler(range(3, N)), "batch_size": 4},
    "bucket": lambda: {"batch_sampler": stoker.BucketBatchSampler(list(range(1, N + 1)), batch_size=4)},
    "stratified": lambda: {"batch_sampler": stoker.StratifiedBatchSampler([i % 3 for i in range(N)], batch_size=6)},
    "endless": lambda: {"shuffle": True, "batch_size": 4, "batches_per_epoch": 7},
}
EACH = pytest.mark.parametrize("order", ORDERS)


def loader_of(order: str, **how: Any) -> DataLoader[Any]:
    return DataLoader(range(N), seed=3, output="numpy", **ORDERS[order](), **how)


def lists(batches: Any) -> list[list[int]]:
    return [list(map(int, batch)) for batch in batches]


class Skip:
    """A batch sampler around another, as `accelerate.skip_first_batches` makes one."""

    def __init__(self, batch_sampler: Any, skip_batches: int) -> None:
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(self.batch_sampler):
            if number >= self.skip_batches:
                yield batch


@EACH
def test_each_pass_is_an_epoch(order: str) -> None:
    loader = loader_of(order)
    epochs = [lists(loader) for _ in range(3)]
    walked = loader_of(order)
    assert [lists(walked.batch_sampler) for _ in range(3)] == epochs
    assert lists(walked) == epochs[0]  # others' passes are not the loader's
    assert lists(walked.batch_sampler) == epochs[1]
    assert len(walked.batch_sampler) == len(walked) or order == "endless"


@EACH
def test_loader_around_batch_sampler_resumes_in_the_set_epoch(order: str) -> None:
    """What the Trainer of Hugging Face does to resume: skips in another loader, and then goes on with ours."""
    loader = loader_of(order)
    epochs = [lists(loader) for _ in range(4)]
    again = loader_of(order)
    rest = Skip(again.batch_sampler, 2)
    rest.batch_sampler.set_epoch(2)
    assert lists(rest) == epochs[2][2:]
    again.set_epoch(3)
    assert lists(again) == epochs[3]


@EACH
@pytest.mark.parametrize("mode", ["pad", "drop", "exact"])
def test_a_rank_walks_its_share(order: str, mode: Any) -> None:
    for rank in range(3):
        loader = loader_of(order, distributed=mode, num_replicas=3, rank=rank)
        epochs = [lists(loader) for _ in range(2)]
        walked = loader_of(order, distributed=mode, num_replicas=3, rank=rank)
        assert [lists(walked.batch_sampler) for _ in range(2)] == epochs
        if not isinstance(walked.batch_sampler, (stoker.BucketBatchSampler, stoker.StratifiedBatchSampler)):
            assert len(walked.batch_sampler) == len(epochs[0])


def test_single_samples_are_walked_by_the_sampler() -> None:
    loader = DataLoader(range(N), None, shuffle=True, seed=1)
    epochs = [list(map(int, loader)) for _ in range(2)]
    loader.set_epoch(0)
    assert [list(loader.sampler) for _ in range(2)] == epochs


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
@SOME
@given(calls=st.lists(st.integers(0, 4), max_size=5))
def test_set_epoch_of_the_sampler_sets_the_loaders(name: str, calls: list[int]) -> None:
    loader = loader_of("shuffle")
    epochs = [lists(loader) for _ in range(6)]
    told = loader_of("shuffle")
    for number in calls:
        getattr(told, name).set_epoch(number)
        assert told.state_dict()["epoch"] == number
        assert lists(told) == epochs[number]
        assert told.state_dict()["epoch"] == number + 1
    assert lists(told) == epochs[calls[-1] + 1 if calls else 0]


class TestSeveralPassesInAnEpochOfTheirs:
    """As Lightning's `CombinedLoader` makes them of the shorter loaders: it sets the epoch only for the longest."""

    def test_no_pass_comes_again(self) -> None:
        loader, told = loader_of("shuffle"), loader_of("shuffle")
        epochs = [lists(loader) for _ in range(9)]
        passes = []
        for number in range(3):
            told.batch_sampler.set_epoch(number)
            passes += [lists(told) for _ in range(3)]
        assert passes == epochs

    def test_set_epoch_same_rewinds_and_lower_restarts(self) -> None:
        """The same number again goes back in the epoch, and a lower number begins anew."""
        loader, told = loader_of("shuffle"), loader_of("shuffle")
        epochs = [lists(loader) for _ in range(9)]
        for number, expected in ((0, 0), (1, 3), (1, 3), (2, 6), (0, 0), (1, 3)):
            told.batch_sampler.set_epoch(number)
            assert [lists(told) for _ in range(3)] == epochs[expected : expected + 3]

    def test_a_resumed_run_goes_on_counting(self) -> None:
        loader, told = loader_of("shuffle"), loader_of("shuffle")
        epochs = [lists(loader) for _ in range(7)]
        for number, count in ((0, 3), (1, 1)):
            told.batch_sampler.set_epoch(number)
            assert len([lists(told) for _ in range(count)]) == count
        next(iter(told))
        again = loader_of("shuffle")
        again.load_state_dict(told.state_dict())
        again.batch_sampler.set_epoch(1)
        assert [lists(again), lists(again)] == [epochs[4][1:], epochs[5]]
        again.batch_sampler.set_epoch(2)
        assert lists(again) == epochs[6]


class TestResumed:
    """A loaded state, and then `set_epoch`, as training loops and frameworks call it before each epoch."""

    @pytest.fixture(autouse=True)
    def undisturbed(self) -> None:
        loader = loader_of("shuffle")
        self.epochs = [lists(loader) for _ in range(4)]

    def at(self, epoch: int, batches: int, **how: Any) -> DataLoader[Any]:
        loader = loader_of("shuffle")
        loader.set_epoch(epoch)
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        again = loader_of("shuffle", **how)
        again.load_state_dict(loader.state_dict())
        return again

    def test_set_epoch_of_the_resumed_epoch_continues_it(self) -> None:
        loader = self.at(1, 2)
        loader.set_epoch(1)
        assert loader.state_dict()["batches"] == 2
        assert lists(loader) == self.epochs[1][2:]
        assert lists(loader) == self.epochs[2]

    @pytest.mark.parametrize("batches", [2, 6])
    def test_set_epoch_of_another_epoch_begins_at_its_start(self, batches: int) -> None:
        loader = self.at(1, batches)
        loader.set_epoch(2)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (2, 0)
        assert lists(loader) == self.epochs[2]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_set_epoch_after_iter_begins_that_epoch(self, workers: int) -> None:
        """Lightning calls `iter()`, and then `set_epoch` of the sampler."""
        loader = self.at(1, 6, num_workers=workers)
        batches = iter(loader)
        loader.sampler.set_epoch(2)
        assert lists([next(batches)]) == self.epochs[2][:1]
        assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (2, 1)
        assert lists(batches) == self.epochs[2][1:]
        assert lists(loader) == self.epochs[3]

    def test_set_epoch_may_count_from_the_start_of_the_run(self) -> None:
        """Lightning's Fabric tells the sampler 0, 1, … whatever was loaded."""
        loader = self.at(1, 2)
        rests = []
        for number in range(3):
            loader.sampler.set_epoch(number)
            rests.append(lists(loader))
        assert rests == [self.epochs[1][2:], *self.epochs[2:4]]
        loader.set_epoch(1)  # says which one is meant, and ends that
        assert lists(loader) == self.epochs[1]
        loader.sampler.set_epoch(0)
        assert lists(loader) == self.epochs[0]

    def test_an_epoch_that_is_set_during_another_one_is_the_next(self) -> None:
        loader = loader_of("shuffle")
        batches = iter(loader)
        next(batches)
        loader.set_epoch(3)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (0, 1)
        assert lists(batches) == self.epochs[0][1:]
        assert loader.state_dict()["epoch"] == 3
        assert lists(loader) == self.epochs[3]


def test_dataset_gets_the_epoch_that_is_set() -> None:
    class Told(stoker.Dataset[Any]):
        stoker_protocol = True
        epoch = 0

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return self.epoch

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    loader = DataLoader(Told(), batch_size=2, output="numpy")
    loader.set_epoch(5)
    assert lists(loader) == [[5, 5]]
    batches = iter(loader)
    loader.set_epoch(9)
    assert lists(batches) == [[9, 9]]
    assert lists(loader) == [[10, 10]]


def test_pieces_before_those_of_a_state() -> None:
    """An epoch can be set that lies before where an endless order was resumed with smaller pieces."""
    small, large = (DataLoader(range(9), 1, shuffle=True, seed=2, batches_per_epoch=n, output="numpy") for n in (2, 50))
    for _ in range(3):
        list(small)
    large.load_state_dict(small.state_dict(), strict=False)
    large.set_epoch(0)
    assert len(list(large)) == 50


def test_a_loader_without_a_seed_lends_nothing() -> None:
    loader = DataLoader(range(N), 4, shuffle=True)
    loader.sampler.set_epoch(7)
    assert loader.state_dict()["epoch"] == 0
    assert len({tuple(map(tuple, lists(loader.batch_sampler))) for _ in range(3)}) == 3


def test_a_batch_sampler_hands_the_epoch_on() -> None:
    inner = stoker.DistributedSampler(range(N), 2, 0)
    stoker.BatchSampler(inner, 2, False).set_epoch(4)
    assert inner.epoch == 4
    stoker.BatchSampler(range(3), 2, False).set_epoch(4)  # one without is left alone


def test_a_sampler_that_takes_the_place_of_ours_is_walked() -> None:
    """Accelerate puts one that it can seed into our batch sampler."""
    loader = loader_of("shuffle")
    loader.batch_sampler.sampler = [3, 1, 2]
    assert lists(loader.batch_sampler) == lists(loader) == [[3, 1, 2]]
    assert len(loader.batch_sampler) == 1


def test_foreign_generator_is_ignored_when_a_seed_is_set() -> None:
    """Accelerate gives one to each sampler that has none, where there are several ranks."""
    torch = pytest.importorskip("torch")
    loader = loader_of("shuffle")
    loader.sampler.generator = torch.Generator().manual_seed(5)
    assert lists(loader.batch_sampler) == lists(loader) == lists(loader_of("shuffle"))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copies_count_for_themselves(copied: Any) -> None:
    loader = loader_of("shuffle")
    epochs = [lists(loader) for _ in range(4)]
    other = copied(loader)
    assert lists(other) == lists(copied(loader))
    other.set_epoch(2)
    assert lists(other) == epochs[2]
    loader.set_epoch(1)
    assert lists(other) == epochs[3]
    assert lists(loader) == epochs[1]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copys_sampler_sets_the_copys_epoch(copied: Any) -> None:
    loader = loader_of("shuffle")
    epochs = [lists(loader) for _ in range(2)]
    other = copied(loader)
    other.sampler.set_epoch(1)
    assert lists(other) == epochs[1]
    assert loader.state_dict()["epoch"] == 2


def test_loader_and_sampler_are_freed_without_gc() -> None:
    loader = loader_of("shuffle")
    gone, sampler = weakref.ref(loader), weakref.ref(loader.batch_sampler)
    gc.disable()
    try:
        del loader
        assert gone() is None
        assert sampler() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("number", [-1, 1.5, "3", None])
def test_no_number_of_an_epoch(number: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        loader_of("shuffle").set_epoch(number)
