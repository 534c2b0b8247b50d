from __future__ import annotations

import itertools
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stoker.datasets.base import IterableDataset, is_stream
from stoker.datasets.chain import ChainDataset
from stoker.datasets.iterable import from_iterable
from stoker.datasets.map import MapDataset
from stoker.datasets.mix import MixDataset
from stoker.sources.sql.stream import SQLStream
from stoker.testing.streams import SOURCES, KeepsState, Numbers, StreamSuite

STOPS: Any = ["first", "drop", "repeat"]


def by_index(lengths: list[int]) -> list[Any]:
    return [[(source, nth) for nth in range(length)] for source, length in enumerate(lengths)]


def walked(dataset: Any) -> list[Any]:
    return list(dataset) if is_stream(dataset) else [dataset[i] for i in range(len(dataset))]


def as_streams(datasets: list[Any]) -> list[Any]:
    return [from_iterable(list, dataset) for dataset in datasets]


class _Labelled:
    """A dataset by index whose samples say which one they are of, and which they are."""

    def __init__(self, source: int, length: int) -> None:
        self._source = source
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self._source, range(self._length)[index]


@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda kind=kind, stop=stop: MixDataset([kind(7), Numbers(100, 103), "abcd"], [3, 1, 2], stop)
            for kind, stop in zip(SOURCES.values(), [*STOPS, "repeat"], strict=True)
        ),
        lambda: MixDataset([KeepsState(2), Numbers(9)], [1, 1], "repeat"),
        lambda: MixDataset([MixDataset([Numbers(9), Numbers(7)], [2, 1]), Numbers(20, 28)], [1, 1], "drop"),
    ],
    ids=[*SOURCES, "repeats", "nested"],
)
class TestMixedStreams(StreamSuite):
    pass


@pytest.mark.parametrize(
    "make", [lambda: MixDataset([Numbers(12, num_shards=3), list(range(50, 60))], [1, 1], "drop")], ids=[""]
)
class TestShardedMix(StreamSuite):
    pass


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("lengths", [[5, 5], [12, 3], [1, 9, 4], [7], [2, 30, 1, 1, 8]])
def test_streams_are_mixed_as_those_by_index(lengths: list[int], stop: Any) -> None:
    weights = [3, 1, 0.5, 2, 2][: len(lengths)]
    dataset: Any = MixDataset(by_index(lengths), weights, stop)
    stream: Any = MixDataset(as_streams(by_index(lengths)), weights, stop)
    assert is_stream(stream) and not is_stream(dataset)
    assert walked(stream) == walked(dataset)
    sized: Any = MixDataset([Numbers(length) for length in lengths], weights, stop)
    assert len(sized) == len(dataset) == len(walked(sized))
    assert [dataset[i] for i in range(-len(dataset), 0)] == walked(dataset)
    with pytest.raises(IndexError, match=f"index {len(dataset)} is outside"):
        dataset[len(dataset)]


def test_each_source_is_walked_in_its_order() -> None:
    samples = walked(MixDataset(by_index([40, 30, 9]), [4, 3, 1]))
    for source in range(3):
        numbers = [nth for of, nth in samples if of == source]
        assert numbers == list(range(len(numbers)))


def test_proportions_are_exact_until_the_first_ends() -> None:
    dataset: MixDataset[Any] = MixDataset([_Labelled(source, 10**9) for source in range(3)], [0.7, 0.2, 0.1])
    counts = Counter(dataset[i][0] for i in range(1000))
    assert counts == {0: 700, 1: 200, 2: 100}
    assert len(dataset) == pytest.approx(10**9 / 0.7, abs=2)


def test_dropped_sources_leave_the_rest_in_their_proportions() -> None:
    dataset: MixDataset[Any] = MixDataset(by_index([10, 600, 150]), [8, 3, 1], "drop")
    samples = walked(dataset)
    assert sorted(samples) == sorted(itertools.chain.from_iterable(by_index([10, 600, 150])))
    assert Counter(source for source, _ in samples[15:415]) == {1: 300, 2: 100}
    assert {source for source, _ in samples[-100:]} == {1}


def test_repeated_sources_start_again_until_the_longest_ends() -> None:
    dataset: MixDataset[Any] = MixDataset(by_index([3, 8]), [1, 1], "repeat")
    samples = walked(dataset)
    assert [nth for source, nth in samples if source == 0] == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert [nth for source, nth in samples if source == 1] == list(range(8))


def test_far_positions_of_long_datasets_are_known_at_once() -> None:
    dataset: MixDataset[int] = MixDataset([range(10**15), range(10**16)], [1, 9], "drop")
    assert len(dataset) == 11 * 10**15
    assert {dataset[i] for i in range(10**14, 10**14 + 10)} == {10**13, *range(9 * 10**13, 9 * 10**13 + 9)}
    assert dataset[-1] == 10**16 - 1


def test_empty_sources_are_named() -> None:
    for stop in ("first", "repeat"):
        with pytest.raises(ValueError, match=r"dataset 1 of the mix \(list\) gave no sample"):
            MixDataset([[1], [], [2]], [1, 1, 1], stop)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"dataset 1 of the mix \(Numbers\) gave no sample"):
            list(MixDataset([[1], Numbers(0)], [1, 1], stop))  # type: ignore[arg-type, call-overload]
    assert sorted(walked(MixDataset([[1], [], [2]], [1, 1, 1], "drop"))) == [1, 2]
    assert sorted(walked(MixDataset([[1], Numbers(0), Numbers(2, 3)], [1, 1, 1], "drop"))) == [1, 2]
    assert walked(MixDataset([[], Numbers(0)], [1, 1], "drop")) == []


def test_a_stream_that_cannot_start_again_is_no_endless_loop() -> None:
    class Once(IterableDataset[int]):
        def __init__(self) -> None:
            self.numbers = iter(range(2))

        def __iter__(self) -> Any:
            return self.numbers

    samples = iter(MixDataset([Once(), Numbers(9)], [1, 1], "repeat"))  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"dataset 0 of the mix \(Once\) gave no sample"):
        list(samples)


def test_a_sample_that_fails_is_passed_over() -> None:
    failing: Any = MapDataset(Numbers(3), lambda number: 6 // (number - 1))
    samples = iter(MixDataset([failing, Numbers(10, 13)], [1, 1], "drop"))  # type: ignore[call-overload]
    found = []
    for _ in range(8):
        try:
            found.append(next(samples))
        except ZeroDivisionError:
            found.append("failed")
        except StopIteration:
            break
    assert sorted(map(str, found)) == sorted(map(str, [-6, 6, "failed", 10, 11, 12]))


def test_shards_are_mixes_of_shards() -> None:
    dataset: Any = MixDataset([Numbers(6, num_shards=3), Numbers(10, 14, num_shards=2), range(50, 58)], [1, 1, 1])
    assert dataset.num_shards == 2
    assert sorted(dataset.shard(num_shards=2, index=1)) == [1, 3, 11, 13, 51, 53]
    assert MixDataset([SOURCES["plain"](3), [1]], [1, 1]).num_shards == 1  # type: ignore[attr-defined]


def test_shards_that_would_lack_a_dataset_are_not_made(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("CREATE TABLE rows AS SELECT 1 AS id")
    rows = SQLStream("SELECT id FROM rows ORDER BY id", f"sqlite:///{tmp_path / 'rows.db'}")
    assert rows.num_shards == sys.maxsize
    for dataset in (rows, MapDataset(rows, str), ChainDataset([rows])):
        assert MixDataset([dataset, Numbers(4, num_shards=4)], [1, 1]).num_shards == 1  # type: ignore[attr-defined]


def test_the_epoch_is_passed_on() -> None:
    source = Numbers(3)
    MixDataset([source, [1]], [1, 1]).set_epoch(5)
    assert source.epoch == 5


def test_a_strangers_state_is_refused() -> None:
    dataset: Any = MixDataset([Numbers(3), Numbers(3)], [1, 1])
    next(iter(dataset))
    state = dataset.state_dict()
    for changed, message in [
        ({"datasets": state["datasets"][:1]}, "of 1 datasets, but there are 2"),
        ({"ended": [7]}, r"of a mix of 2 datasets names \[7\]"),
        ({"ended": None}, "names None"),
        ({"position": -1}, "a count 'position'"),
    ]:
        dataset.load_state_dict({**state, **changed})
        with pytest.raises(ValueError, match=message):
            iter(dataset)


def test_a_state_of_another_mix_is_refused() -> None:
    dataset: Any = MixDataset([Numbers(3), Numbers(3)], [1, 1])
    next(iter(dataset))
    state = dataset.state_dict()
    same: Any = MixDataset([Numbers(3), Numbers(3)], [0.5, 0.5])
    same.load_state_dict(state)
    assert list(same) == list(MixDataset([Numbers(3), Numbers(3)], [1, 1]))[1:]  # type: ignore[call-overload]
    for weights, stop in (([2, 1], "first"), ([1, 1], "drop")):
        other: Any = MixDataset([Numbers(3), Numbers(3)], weights, stop)  # type: ignore[arg-type]
        other.load_state_dict(state)
        with pytest.raises(ValueError, match="another order"):
            iter(other)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="2 datasets and 3 weights"):
        MixDataset([[1], [2]], [1, 2, 3])
    with pytest.raises(ValueError, match="0 datasets and 0 weights"):
        MixDataset([], [])
    with pytest.raises(ValueError, match=r"weights\[1\] is -1"):
        MixDataset([[1], [2]], [1, -1])
    with pytest.raises(ValueError, match="stop is 'never', expected 'first', 'drop' or 'repeat'"):
        MixDataset([[1]], [1], "never")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="datasets is a Numbers, expected a list"):
        MixDataset(Numbers(3), [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a set, which is not a dataset"):
        MixDataset([{1, 2}], [1])
