from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import pytest

from stoker.datasets.base import IterableDataset, is_stream
from stoker.datasets.map import MapDataset
from stoker.datasets.stream import Stream
from stoker.testing.streams import SOURCES, Numbers, StreamSuite


def tenfold(number: int) -> int:
    return 10 * number


class Fetching:
    """A dataset that fetches a batch at once, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return range(5)[index]

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked += 1
        return indices


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: MapDataset(kind(6), tenfold) for kind in SOURCES.values()),
        lambda: MapDataset(MapDataset(Numbers(6, num_shards=3), tenfold), str),
    ],
    ids=[*SOURCES, "nested"],
)
class TestMapStreams(StreamSuite):
    pass


def test_samples_by_index_pass_through_the_function() -> None:
    dataset: MapDataset[int] = MapDataset(range(4), tenfold)
    assert (len(dataset), [dataset[i] for i in range(-4, 4)]) == (4, [0, 10, 20, 30, 0, 10, 20, 30])
    assert (dataset.dataset, dataset.fn) == (range(4), tenfold)
    assert not is_stream(dataset)


def test_over_a_stream_it_is_a_stream() -> None:
    dataset: MapDataset[int] = MapDataset(Numbers(4), tenfold)
    assert isinstance(dataset, MapDataset) and isinstance(dataset, Stream) and isinstance(dataset, IterableDataset)
    assert (list(dataset), len(dataset)) == ([0, 10, 20, 30], 4)  # type: ignore[call-overload]


def test_mapped_stream_is_a_stream_to_torch() -> None:
    torch_data = pytest.importorskip("torch.utils.data")

    class Theirs(torch_data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(range(3))

    dataset: Any = MapDataset(Theirs(), tenfold)
    assert isinstance(dataset, torch_data.IterableDataset)
    assert list(dataset) == [0, 10, 20]
    assert not isinstance(MapDataset([1], tenfold), torch_data.IterableDataset)


@pytest.mark.parametrize("source", [[1, 2], Numbers(1, 3)], ids=["index", "stream"])
def test_copies_and_pickles_stay_what_they_are(source: Any) -> None:
    dataset: Any = MapDataset(source, lambda number: number + 1)
    for twin in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(cloudpickle.dumps(dataset))):
        assert type(twin) is type(dataset)
        assert len(twin) == 2
        assert (list(twin) if is_stream(twin) else [twin[0], twin[1]]) == [2, 3]


def test_a_batch_is_fetched_at_once_where_the_source_can() -> None:
    source = Fetching()
    dataset: Any = MapDataset(source, tenfold)
    assert dataset.__getitems__([3, 1]) == [30, 10]
    assert source.asked == 1
    assert not hasattr(MapDataset(range(3), tenfold), "__getitems__")


def test_the_state_is_the_sources_own() -> None:
    """So that whatever a loader knows about the source's states holds for the map's."""
    dataset: Any = MapDataset(Numbers(5), tenfold)
    next(iter(dataset))
    assert dataset.state_dict() == {"given": 1}


def test_a_sample_that_fails_is_passed_over() -> None:
    samples = iter(MapDataset(Numbers(4), lambda number: 12 // (number - 1)))  # type: ignore[call-overload]
    assert next(samples) == -12
    with pytest.raises(ZeroDivisionError):
        next(samples)
    assert list(samples) == [12, 6]


def test_the_epoch_is_passed_on() -> None:
    source = Numbers(3)
    for dataset in (MapDataset(source, tenfold), MapDataset(MapDataset(range(3), tenfold), tenfold)):
        dataset.set_epoch(4)
    assert source.epoch == 4


def test_shards_are_those_of_the_source() -> None:
    dataset: Any = MapDataset(Numbers(7, num_shards=3), tenfold)
    assert dataset.num_shards == 3
    assert list(dataset.shard(num_shards=3, index=1)) == [10, 40]
    assert MapDataset(SOURCES["plain"](3), tenfold).num_shards == 1  # type: ignore[attr-defined]


def test_bad_input_is_refused() -> None:
    with pytest.raises(TypeError, match="fn is a list, which cannot be called"):
        MapDataset(tenfold, [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a generator, which is not a dataset.*from_iterable"):
        MapDataset((i for i in range(3)), tenfold)


def test_a_subclass_by_index_is_no_stream() -> None:
    class Own(MapDataset[int]):
        def __init__(self, source: Any) -> None:
            super().__init__(source, tenfold)

    assert Own([1])[0] == 10
    with pytest.raises(TypeError, match="Own was given a stream"):
        Own(Numbers(2))


def test_map_that_raises_stopiteration_ends_no_stream() -> None:
    samples = iter(MapDataset(Numbers(3), lambda number: next(iter([0][number % 2 :]))))  # type: ignore[call-overload]
    assert next(samples) == 0
    with pytest.raises(RuntimeError, match="fn of a MapDataset raised StopIteration, which would end the stream"):
        next(samples)
    assert list(samples) == [0]
