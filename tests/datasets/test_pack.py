from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from stoker.datasets.map import MapDataset
from stoker.datasets.pack import PackDataset, best_fit
from stoker.errors import StateFormatError, StateMismatchError
from stoker.testing.streams import SOURCES, Numbers, StreamSuite, comparable

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies


def document(number: int) -> np.ndarray[Any, Any]:
    """Of 0 to 10 tokens, no two alike."""
    return np.arange(number * 7 % 11, dtype=np.int32) + 100 * number


def documents(n: int) -> Any:
    """A stream of documents, in two shards."""
    return MapDataset(Numbers(0, n, num_shards=2), document)


def by_index(n: int, **arguments: Any) -> PackDataset:
    lengths = [len(document(number)) for number in range(n)]
    return PackDataset([document(number) for number in range(n)], 16, lengths, **arguments)


@pytest.mark.parametrize("window", [1, 4, 100])
class TestResume(StreamSuite):
    shards_keep_samples = False  # what stands together in a row depends on the shard

    @pytest.fixture
    def make(self, window: int) -> Any:
        return lambda: PackDataset(documents(30), 16, window=window)


class TestResumeOfPieces(StreamSuite):
    shards_keep_samples = False

    @pytest.fixture
    def make(self) -> Any:
        return lambda: PackDataset(documents(20), 4, window=3, too_long="split")


@pytest.mark.parametrize("kind", SOURCES)
class TestResumeOfEverySource(StreamSuite):
    @pytest.fixture
    def make(self, kind: str) -> Any:
        return lambda: PackDataset(MapDataset(SOURCES[kind](20), document), 10, window=4)


def test_a_row_says_where_documents_begin_and_end() -> None:
    row, rest = PackDataset([[1, 2, 3], [], [4, 5, 6, 7, 8], [9]], 7, [3, 0, 5, 1], padding=-1)
    assert {name: values.tolist() for name, values in row.items()} == {
        "tokens": [1, 2, 3, -1, -1, -1, -1],
        "positions": [0, 1, 2, 0, 0, 0, 0],
        "segment_ids": [1, 1, 1, 0, 0, 0, 0],
    }
    assert {name: values.tolist() for name, values in rest.items()} == {
        "tokens": [4, 5, 6, 7, 8, 9, -1],
        "positions": [0, 1, 2, 3, 4, 0, 0],
        "segment_ids": [1, 1, 1, 1, 1, 2, 0],
    }
    assert all(values.dtype == np.int64 for values in row.values())


def test_a_document_too_long_is_split_where_asked() -> None:
    rows = list(PackDataset([[1, 2, 3, 4, 5, 6, 7, 8], [9]], 3, [8, 1], too_long="split"))
    assert [row["tokens"].tolist() for row in rows] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [row["positions"].tolist() for row in rows] == [[0, 1, 2], [0, 1, 2], [0, 1, 0]]
    assert [row["segment_ids"].tolist() for row in rows] == [[1, 1, 1], [1, 1, 1], [1, 1, 2]]


@hypothesis.given(
    lengths=st.lists(st.integers(0, 30), max_size=40), length=st.integers(1, 12), window=st.integers(1, 50)
)
def test_no_token_is_lost_whatever_the_lengths(lengths: list[int], length: int, window: int) -> None:
    starts = np.cumsum([1, *lengths])
    source = [np.arange(start, start + size) for start, size in zip(starts[:-1], lengths, strict=True)]
    packed = PackDataset(source, length, lengths, window, too_long="split")
    rows = [packed[row] for row in range(len(packed))]
    tokens = np.concatenate([row["tokens"][row["segment_ids"] > 0] for row in rows] or [np.zeros(0, int)])
    assert sorted(tokens) == list(range(1, sum(lengths) + 1))
    for row in rows:
        filled = int((row["segment_ids"] > 0).sum())
        assert filled and not row["segment_ids"][filled:].any() and not row["tokens"][filled:].any()
        begins = np.flatnonzero(row["positions"][:filled] == 0)
        segments = np.split(np.arange(filled), begins[1:])
        for number, segment in enumerate(segments, 1):
            assert set(row["segment_ids"][segment]) == {number}
            assert row["positions"][segment].tolist() == list(range(len(segment)))
            assert set(np.diff(row["tokens"][segment])) <= {1}
    stream = PackDataset(MapDataset(Numbers(len(source)), source.__getitem__), length, window=window, too_long="split")
    assert list(map(comparable, stream)) == list(map(comparable, rows))


@hypothesis.given(sizes=st.lists(st.integers(1, 9), max_size=60), room=st.integers(9, 20))
def test_best_fit_leaves_no_two_rows_that_fit_together(sizes: list[int], room: int) -> None:
    rows = best_fit(sizes, room)
    assert sorted(place for row in rows for place in row) == list(range(len(sizes)))
    filled = sorted(sum(sizes[place] for place in row) for row in rows)
    assert all(fill <= room for fill in filled)
    assert len(rows) < 2 or filled[0] + filled[1] > room
    assert rows == sorted(map(sorted, rows))


def test_best_fit_takes_the_fullest_row_that_has_room() -> None:
    assert best_fit([5, 7, 3, 4, 1], 10) == [[0, 3, 4], [1, 2]]  # 7 and 3; 5 and 4, and there the 1
    assert best_fit([], 10) == []


def test_padding_is_small_beside_one_document_a_row() -> None:
    lengths = np.random.RandomState(0).lognormal(5.0, 1.0, 20_000).clip(1, 2048).astype(np.int64)
    packed = PackDataset([None] * len(lengths), 2048, lengths)
    naive = 1 - lengths.sum() / (len(lengths) * 2048)
    assert naive > 0.85
    assert packed.padding_share == 1 - lengths.sum() / (len(packed) * 2048)
    assert packed.padding_share < 0.01


def test_rows_by_index_equal_the_rows_of_the_stream() -> None:
    packed = by_index(30, window=4)
    expected = list(map(comparable, PackDataset(documents(30), 16, window=4)))
    assert len(packed) == len(expected)
    for row in [5, 0, len(packed) - 1, 3]:
        assert comparable(packed[row]) == expected[row] == comparable(packed[row - len(packed)])
    for row in (len(packed), -len(packed) - 1):
        with pytest.raises(IndexError, match=f"index {row} is outside of a dataset of {len(packed)} samples"):
            packed[row]
    assert not hasattr(packed, "__getitems__")
    assert list(map(comparable, pickle.loads(pickle.dumps(packed)))) == expected


def test_batched_source_gets_the_documents_of_a_row_at_once() -> None:
    class Gathers:
        asked: list[list[int]] = []  # noqa: RUF012

        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("asked one by one")

        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.asked.append(indices)
            return [document(index) for index in indices]

    packed = PackDataset(Gathers(), 16, [len(document(number)) for number in range(30)])
    assert list(map(comparable, packed.__getitems__([2, 0]))) == [comparable(by_index(30)[row]) for row in (2, 0)]
    assert len(Gathers.asked) == 2 and all(len(asked) > 1 for asked in Gathers.asked)


def test_documents_may_be_in_a_field_and_of_any_kind() -> None:
    samples = [{"text": [1, 2]}, {"text": np.array([3], np.uint16)}, {"text": range(4, 6)}]
    (row,) = PackDataset(samples, 5, [2, 1, 2], key="text")
    assert row["tokens"].tolist() == [1, 2, 3, 4, 5]
    (row,) = PackDataset(MapDataset(Numbers(3), samples.__getitem__), 5, key="text")
    assert row["tokens"].tolist() == [1, 2, 3, 4, 5]
    torch = pytest.importorskip("torch")
    (row,) = PackDataset([torch.tensor([1, 2])], 3, [2])
    assert row["tokens"].tolist() == [1, 2, 0]


def test_nothing_to_pack() -> None:
    assert list(PackDataset([], 5, [])) == []
    empty = PackDataset([[], []], 5, [0, 0])
    assert (list(empty), len(empty), empty.padding_share) == ([], 0, 1.0)
    assert list(PackDataset(MapDataset(Numbers(3), lambda number: []), 5)) == []


def test_a_streams_document_that_is_refused_is_passed_over() -> None:
    texts = [[1], [2, 3, 4], [5], [1.5], [6], [[7]], [8]]
    rows = iter(PackDataset(MapDataset(Numbers(7), texts.__getitem__), 2, window=4))
    with pytest.raises(ValueError, match="document 1 has 3 tokens, but a row has 2: pass too_long='split'"):
        next(rows)
    with pytest.raises(TypeError, match="document 3 is of float64, expected integers"):
        next(rows)
    assert next(rows)["tokens"].tolist() == [1, 5]
    with pytest.raises(ValueError, match=r"document 5 has shape \(1, 1\), expected one dimension"):
        next(rows)
    assert [row["tokens"].tolist() for row in rows] == [[6, 8]]


def test_packed_stream_has_no_length() -> None:
    with pytest.raises(TypeError, match="known only at its end"):
        len(PackDataset(Numbers(3), 4))


def test_lengths_that_are_not_the_documents_are_found_out() -> None:
    packed = PackDataset([[1, 2], [3]], 4, [2, 2])
    with pytest.raises(ValueError, match="document 1 has 1 tokens, but lengths says 2"):
        packed[0]


def test_states_of_another_packing_are_refused() -> None:
    dataset = PackDataset(documents(10), 16)
    next(iter(dataset))
    state = dataset.state_dict()
    other = PackDataset(documents(10), 16, window=5)
    other.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"of another order, .*'window': 1024.*: here is .*'window': 5"):
        iter(other)
    dataset.load_state_dict(state | {"given": -1})
    with pytest.raises(StateFormatError, match="a state with a count 'given' was expected"):
        iter(dataset)


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="PackDataset was given a int, which is not a dataset"):
        PackDataset(3, 4)
    with pytest.raises(ValueError, match="needs lengths="):
        PackDataset([[1]], 4)
    with pytest.raises(ValueError, match="lengths= is for a dataset by index"):
        PackDataset(documents(3), 4, [1, 2, 3])
    with pytest.raises(ValueError, match=r"lengths has shape \(2,\), expected \(1,\)"):
        PackDataset([[1]], 4, [1, 2])
    with pytest.raises(TypeError, match="lengths is of float64, expected integers"):
        PackDataset([[1]], 4, [1.0])
    with pytest.raises(ValueError, match=r"lengths\[1\] is -2, expected at least 0"):
        PackDataset([[1], [2]], 4, [1, -2])
    with pytest.raises(ValueError, match="document 1 has 5 tokens, but a row has 4"):
        PackDataset([[1], [1] * 5], 4, [1, 5])
    with pytest.raises(ValueError, match="length is 0, expected at least 1"):
        PackDataset([[1]], 0, [1])
    with pytest.raises(TypeError, match=r"window is 1\.5, expected an integer"):
        PackDataset([[1]], 4, [1], window=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too_long is 'cut', expected 'error' or 'split'"):
        PackDataset([[1]], 4, [1], too_long="cut")  # type: ignore[arg-type]
