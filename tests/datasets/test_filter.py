from __future__ import annotations

import pytest

from stoker.datasets.map import FilterDataset, MapDataset
from stoker.testing.streams import SOURCES, Numbers, StreamSuite


def is_even(number: int) -> bool:
    return number % 2 == 0


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: FilterDataset(kind(9), is_even) for kind in SOURCES.values()),
        lambda: FilterDataset(MapDataset(Numbers(9, num_shards=2), abs), is_even),
        lambda: FilterDataset(Numbers(9), lambda number: number in (2, 3)),
    ],
    ids=[*SOURCES, "nested", "ends on others"],
)
class TestFilters(StreamSuite):
    pass


def test_filter_leaves_out_rejected_samples() -> None:
    dataset: FilterDataset[int] = FilterDataset(Numbers(7, num_shards=2), is_even)
    assert list(dataset) == [0, 2, 4, 6]
    assert list(dataset.shard(num_shards=2, index=0)) == [0, 2, 4, 6]
    assert list(dataset.shard(num_shards=2, index=1)) == []
    assert dataset.num_shards == 2


def test_resumed_filter_skips_rejected_samples() -> None:
    asked = []

    def keep(number: int) -> bool:
        asked.append(number)
        return number > 3

    dataset: FilterDataset[int] = FilterDataset(Numbers(7), keep)
    next(iter(dataset))
    dataset.load_state_dict(dataset.state_dict())
    del asked[:]
    assert list(dataset) == [5, 6]
    assert asked == [5, 6]


def test_the_length_is_not_known() -> None:
    with pytest.raises(TypeError):
        len(FilterDataset(Numbers(3), is_even))  # type: ignore[arg-type]


def test_the_epoch_is_passed_on() -> None:
    source = Numbers(3)
    FilterDataset(source, is_even).set_epoch(5)
    assert source.epoch == 5


def test_bad_input_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a dataset by index.*Subset\(dataset.*from_iterable\(lambda: dataset\)"):
        FilterDataset([1, 2], is_even)
    with pytest.raises(TypeError, match="keep is a list, which cannot be called"):
        FilterDataset(Numbers(3), [True])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a generator, which is not a dataset"):
        FilterDataset((i for i in range(3)), is_even)


def test_filter_that_raises_stopiteration_ends_no_stream() -> None:
    samples = iter(FilterDataset(Numbers(3), lambda number: next(iter([1][number % 2 :]))))
    assert next(samples) == 0
    with pytest.raises(RuntimeError, match="keep of a FilterDataset raised StopIteration, which would end the stream"):
        next(samples)
    assert list(samples) == [2]
