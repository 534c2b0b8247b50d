"""All ranks take equally many steps, and each sample comes once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import BucketBatchSampler, DataLoader, IterableDataset, in_step


@given(
    n=st.integers(0, 60),
    size=st.integers(1, 7),
    ranks=st.integers(1, 6),
    mode=st.sampled_from(["exact", "pad", "drop"]),
)
def test_equally_many_steps(n: int, size: int, ranks: int, mode: Any) -> None:
    if mode == "drop" and n < ranks:
        return
    steps, seen = set(), []
    for rank in range(ranks):
        loader: Any = DataLoader(
            range(n), size, distributed=mode, rank=rank, num_replicas=ranks, output="numpy", shuffle=bool(n)
        )
        batches = list(in_step(loader))
        steps.add(len(batches))
        seen += [int(index) for batch in batches if batch is not None for index in batch]
        assert [batch is None for batch in batches] == sorted(batch is None for batch in batches)
    assert len(steps) == 1
    if mode == "exact":
        assert sorted(seen) == list(range(n))


def test_batches_that_are_shared_out_whole() -> None:
    lengths = [5] * 50
    steps = []
    for rank in range(3):
        batches = BucketBatchSampler(lengths, batch_size=10)
        loader: Any = DataLoader(
            range(50), batch_sampler=batches, distributed="exact", rank=rank, num_replicas=3, seed=1, output="numpy"
        )
        steps.append([None if batch is None else len(batch) for batch in in_step(loader)])
    assert steps == [[10, 10], [10, 10], [10, None]]


def test_a_loader_that_is_not_shared_out_has_its_own_batches() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(5))

    for dataset in (range(5), Stream()):
        assert [len(batch) for batch in in_step(DataLoader(dataset, batch_size=2, output="numpy"))] == [2, 2, 1]


def test_a_generator_on_a_device_is_refused() -> None:
    class OnADevice:
        class device:
            type = "cuda"

    with pytest.raises(ValueError, match="drawn on the CPU"):
        DataLoader(range(5), shuffle=True, generator=OnADevice())


@pytest.mark.parametrize("how", [{}, {"batches_per_epoch": 5}], ids=str)
def test_after_a_state_as_many_steps_as_are_left(how: Any) -> None:
    def made(rank: int) -> Any:
        return DataLoader(
            range(19), 2, distributed="exact", rank=rank, num_replicas=2, seed=1, output="numpy", shuffle=True, **how
        )

    loader = made(0)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state, left = loader.state_dict(), []
    for rank in range(2):
        loader = made(rank)
        loader.load_state_dict(state)
        left.append([None if batch is None else len(batch) for batch in in_step(loader)])
    assert list(map(len, left)) == [2, 2] and None not in left[0]


def places_of(n: int, ranks: int, size: int = 1, state: Any = None, **how: Any) -> list[list[Any]]:
    """Returns epoch, batches and position in each step of each rank, and after it."""
    told = []
    for rank in range(ranks):
        loader: Any = DataLoader(range(n), size, distributed="exact", rank=rank, num_replicas=ranks, seed=1, **how)
        if state is not None:
            loader.load_state_dict(state)
        states = [loader.state_dict() for _ in in_step(loader)]
        told.append([(each["epoch"], each["batches"], each["position"]) for each in [*states, loader.state_dict()]])
    return told


def test_all_ranks_have_one_state_in_each_step() -> None:
    expected = [(0, 1, 4), (0, 2, 8), (0, 3, 10), (1, 0, 0)]
    assert places_of(10, 4) == [expected] * 4
    for n, ranks, size in ((7, 3, 2), (1, 3, 1), (9, 2, 4), (25, 6, 2)):
        told = places_of(n, ranks, size, num_workers=1, worker_method="thread", shuffle=True)
        assert told == told[:1] * ranks, (n, ranks, size)


def test_rank_that_left_at_a_step_of_others_resumes_with_them() -> None:
    """The state of a step in which a rank has no batch: nothing of that epoch is left on any rank."""
    loaders: list[Any] = [
        DataLoader(range(10), 1, distributed="exact", rank=rank, num_replicas=4, seed=1, output="numpy")
        for rank in range(4)
    ]
    for _, _ in zip(range(3), zip(*map(in_step, loaders), strict=True), strict=False):
        states = [loader.state_dict() for loader in loaders]
    assert states == states[:1] * 4
    for loader in loaders:
        loader.load_state_dict(states[0])
        assert list(loader) == []
        assert loader.state_dict()["epoch"] == 1
    assert places_of(10, 4, state=states[0]) == [[(1, 0, 0)]] * 4
