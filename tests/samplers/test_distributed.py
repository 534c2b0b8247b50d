from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from stoker.samplers import DistributedSampler

SHARES = list(itertools.product([0, 1, 2, 9, 10, 11, 100], [1, 2, 3, 10, 25]))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_distributed_order_equals_torchs_for_all_ranks(shuffle: bool, drop_last: bool) -> None:
    theirs = pytest.importorskip("torch.utils.data").DistributedSampler
    for n, replicas in SHARES:
        for rank in {0, replicas // 2, replicas - 1}:
            arguments = range(n), replicas, rank, shuffle, 17, drop_last
            mine, other = DistributedSampler(*arguments), theirs(*arguments)
            assert (len(mine), mine.num_samples, mine.total_size) == (len(other), other.num_samples, other.total_size)
            for epoch in (0, 1, 5):
                mine.set_epoch(epoch)
                other.set_epoch(epoch)
                assert list(mine) == list(other), (arguments, epoch)


@pytest.mark.usefixtures("torch_not_wanted")
@pytest.mark.parametrize(("n", "replicas"), [(10, 5), (11, 3), (2, 7), (100, 4)])
def test_without_torch_the_ranks_share_one_order(n: int, replicas: int) -> None:
    for epoch in range(3):
        ranks = [DistributedSampler(range(n), replicas, rank, seed=3) for rank in range(replicas)]
        for sampler in ranks:
            sampler.set_epoch(epoch)
        indices = [index for group in zip(*ranks, strict=True) for index in group]
        assert sorted(indices[:n]) == list(range(n))
        assert indices[n:] == (indices[:n] * replicas)[: len(indices) - n]


@pytest.mark.usefixtures("torch_not_wanted")
def test_without_torch_the_order_never_changes() -> None:
    sampler = DistributedSampler(range(10), 1, 0, seed=1)
    assert list(sampler) == [6, 4, 7, 8, 9, 3, 0, 2, 1, 5]
    sampler.set_epoch(1)
    assert list(sampler) == [6, 1, 2, 7, 3, 5, 8, 4, 9, 0]
    assert sampler.epoch == 1


def test_the_order_is_fixed_when_the_iteration_begins() -> None:
    sampler = DistributedSampler(range(50), 2, 0)
    first = list(sampler)
    begun = iter(sampler)
    sampler.set_epoch(1)
    assert list(begun) == first != list(sampler)


@pytest.mark.parametrize(("drop_last", "before", "after"), [(False, 10, 13), (True, 10, 7)])
def test_a_dataset_whose_length_changes_is_refused(drop_last: bool, before: int, after: int) -> None:
    data = list(range(before))
    sampler = DistributedSampler(data, 2, 0, drop_last=drop_last)
    data[:] = range(after)
    with pytest.raises(AssertionError, match=rf"Number of indices \({after}\) does not match total_size \(10\)"):
        list(sampler)


@pytest.mark.parametrize("rank", [2, 5, -1])
def test_bad_rank(rank: int) -> None:
    with pytest.raises(ValueError, match=rf"Invalid rank {rank}, rank should be in the interval \[0, 1\]"):
        DistributedSampler(range(4), 2, rank)


def test_without_a_process_group_the_error_is_torchs() -> None:
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        DistributedSampler(range(4))
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        DistributedSampler(range(4), num_replicas=2)


@pytest.mark.usefixtures("torch_not_wanted")
def test_without_torch_ranks_must_be_given() -> None:
    with pytest.raises(RuntimeError, match="Requires distributed package to be available: give num_replicas and rank"):
        DistributedSampler(range(4))


@pytest.mark.skipif(sys.platform != "linux", reason="torch ships gloo with a file store there")
def test_ranks_come_from_the_process_group(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        sampler = DistributedSampler(range(4))
        assert (sampler.num_replicas, sampler.rank, len(sampler)) == (1, 0, 4)
    finally:
        distributed.destroy_process_group()
