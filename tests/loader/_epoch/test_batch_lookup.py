"""`batch_indices` gives what the loader delivers, for every kind of order, epoch, batch and rank."""

from __future__ import annotations

from typing import Any

import pytest

from stoker import BucketBatchSampler, DataLoader, RandomSampler, WeightedRandomSampler, from_iterable
from stoker.errors import SamplerError
from tests.loader._state.edits import edited

SAMPLES = list(range(103))


def make(**arguments: Any) -> DataLoader[Any]:
    return DataLoader(SAMPLES, **{"batch_size": 8, "output": "numpy", **arguments})


def delivered(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() if batch.ndim else [int(batch)] for batch in map(_array, loader)]


def _array(batch: Any) -> Any:
    import numpy as np

    return np.asarray(batch)


ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffled": {"shuffle": True, "seed": 3},
    "dropped": {"shuffle": True, "seed": 3, "drop_last": True},
    "single": {"shuffle": True, "seed": 3, "batch_size": None},
    "pieces": {"shuffle": True, "seed": 3, "batches_per_epoch": 5},
    "weighted": {"sampler": WeightedRandomSampler([1.0 + n for n in SAMPLES], 60), "seed": 1},
    "buckets": {"batch_sampler": BucketBatchSampler([1 + n for n in SAMPLES], 8), "batch_size": 1, "seed": 1},
    "workers": {"shuffle": True, "seed": 3, "num_workers": 2},
}


@pytest.mark.parametrize("order", ORDERS)
def test_each_batch_of_three_epochs(order: str) -> None:
    loader, other = make(**ORDERS[order]), make(**ORDERS[order])
    if order == "sequential":
        loader, other = make(seed=0), make(seed=0)
    for epoch in range(3):
        batches = delivered(loader)
        assert [other.batch_indices(epoch, k) for k in range(len(batches))] == batches
        assert loader.batch_indices(epoch, len(batches) - 1) == batches[-1]
        with pytest.raises(IndexError, match=f"epoch {epoch} has no batch {len(batches)}"):
            other.batch_indices(epoch, len(batches))


@pytest.mark.parametrize("mode", ["pad", "drop", "exact"])
def test_each_rank_of_a_job(mode: Any) -> None:
    ranks = [make(shuffle=True, distributed=mode, num_replicas=3, rank=rank) for rank in range(3)]
    for rank, loader in enumerate(ranks):
        batches = delivered(loader)
        for asked in ranks:
            assert [asked.batch_indices(0, k, rank=rank) for k in range(len(batches))] == batches
    with pytest.raises(ValueError, match="rank is 3, and there are 3 ranks"):
        ranks[0].batch_indices(0, 0, rank=3)


def test_epoch_that_goes_on_with_fewer_ranks() -> None:
    before = [make(shuffle=True, distributed="exact", num_replicas=2, rank=rank, batch_size=4) for rank in range(2)]
    iterators = [iter(loader) for loader in before]
    for _ in range(3):
        for iterator in iterators:
            next(iterator)
    alone = make(shuffle=True, distributed="exact", num_replicas=1, rank=0, batch_size=8)
    alone.load_state_dict(before[0].state_dict())
    expected = [alone.batch_indices(0, k) for k in range(3, 13)]
    assert expected == delivered(alone)
    assert [alone.batch_indices(0, k) for k in range(3, 13)] == expected


def test_batches_of_a_run_with_another_batch_size_are_refused() -> None:
    before = [make(shuffle=True, distributed="exact", num_replicas=2, rank=rank, batch_size=4) for rank in range(2)]
    next(iter(before[0]))
    state = edited(before[0].state_dict(), position=24)
    alone = make(shuffle=True, distributed="exact", num_replicas=1, rank=0, batch_size=8)
    alone.load_state_dict(state)
    with pytest.raises(SamplerError, match="another number of ranks or another batch size"):
        alone.batch_indices(0, 0)


def test_without_a_seed_the_latest_epoch_is_known() -> None:
    loader = make(shuffle=True)
    with pytest.raises(SamplerError, match=r"its seed is drawn when it begins \(none is known"):
        loader.batch_indices(0, 0)
    for epoch in range(2):
        batches = delivered(loader)
        assert [loader.batch_indices(epoch, k) for k in range(len(batches))] == batches
    with pytest.raises(SamplerError, match=r"epoch 1 is known now"):
        loader.batch_indices(0, 0)
    resumed = make(shuffle=True)
    iterator = iter(loader)
    next(iterator)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.batch_indices(2, 1) == next(iterator).tolist()


def test_nothing_is_drawn_or_started(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(shuffle=True, seed=3, num_workers=2)
    monkeypatch.setattr(loader, "_get_iterator", lambda: pytest.fail("an iterator was made"))
    state = loader.state_dict()
    loader.batch_indices(7, 7)
    assert loader.state_dict() == state


def test_an_order_that_must_be_walked_is_refused() -> None:
    import numpy as np

    walked = make(sampler=RandomSampler(SAMPLES, generator=np.random.default_rng(0)))
    with pytest.raises(SamplerError, match="the order of RandomSampler can only be iterated"):
        walked.batch_indices(0, 0)
    stream = DataLoader(from_iterable(lambda: iter(SAMPLES)), batch_size=8)
    with pytest.raises(SamplerError, match="the batches of a stream"):
        stream.batch_indices(0, 0)


@pytest.mark.parametrize(("epoch", "k"), [(-1, 0), (0, -1)])
def test_numbers_are_counted_from_zero(epoch: int, k: int) -> None:
    with pytest.raises(ValueError, match="non-negative integer"):
        make(seed=0).batch_indices(epoch, k)


def test_a_late_batch_of_many_samples_takes_a_moment() -> None:
    loader = DataLoader(range(10**10), batch_size=256, shuffle=True, seed=1)
    indices = loader.batch_indices(41, 39_000_000)
    assert len(set(indices)) == 256 and max(indices) < 10**10
