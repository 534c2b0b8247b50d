from __future__ import annotations

import numpy as np
import pytest

from stoker.samplers.row_groups import RowGroupSampler


@pytest.mark.parametrize("sizes", [[1], [5, 0, 3, 7, 0], [0, 4], [100] * 50, list(range(30))])
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_epoch_holds_each_index_once(sizes: list[int], at_once: int) -> None:
    sampler = RowGroupSampler(sizes, at_once, np.random.default_rng(0))
    assert len(sampler) == sum(sizes)
    assert sorted(sampler) == sorted(sampler) == list(range(sum(sizes)))


@pytest.mark.parametrize("at_once", [1, 3])
def test_rows_of_a_few_groups_are_shuffled_together(at_once: int) -> None:
    sizes = [50] * 20
    order = RowGroupSampler(sizes, at_once).order(7)
    groups = order.take(np.arange(1000)) // 50
    seen = [set(groups[begin : begin + 50 * at_once].tolist()) for begin in range(0, 1000, 50 * at_once)]
    assert {len(block) for block in seen[:-1]} == {at_once}
    assert sum(map(len, seen)) == 20  # no group is in two blocks
    assert [next(iter(block)) for block in seen] != sorted(next(iter(block)) for block in seen)
    if at_once == 3:
        assert np.count_nonzero(np.diff(groups)) > 500  # mixed within the block


def test_orders_are_functions_of_the_key() -> None:
    sampler = RowGroupSampler([3, 9, 4, 8], 2)
    whole = sampler.order(5).take(np.arange(24))
    assert (
        whole.tolist() == sampler.order(5).take(np.arange(24)).tolist() != sampler.order(6).take(np.arange(24)).tolist()
    )
    places = np.array([23, 0, 11, 11])
    assert sampler.order(5).take(places).tolist() == whole[places].tolist()


@pytest.mark.parametrize("sizes", [[], [0, 0], [3, -1], [[1, 2]]])
def test_sizes_without_rows_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="sizes should be numbers of rows"):
        RowGroupSampler(sizes)


def test_groups_at_once_are_positive() -> None:
    with pytest.raises(ValueError, match="groups_at_once should be a positive integer"):
        RowGroupSampler([1], 0)


def test_orders_never_change() -> None:
    sampler = RowGroupSampler([3, 2, 4, 1], 2)
    assert sampler.order(5).take(np.arange(10)).tolist() == [9, 3, 4, 8, 7, 5, 2, 6, 1, 0]
    assert sampler.order(2**64 - 1).take(np.arange(10)).tolist() == [4, 3, 9, 5, 0, 1, 7, 8, 2, 6]
