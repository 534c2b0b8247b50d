from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ParquetFileError, StateFormatError, StateMismatchError
from stoker.loader.dataloader import DataLoader
from stoker.sources.parquet import stream as stream_module
from stoker.sources.parquet.stream import ParquetStream
from stoker.testing.datasets import DatasetSuite
from stoker.testing.streams import StreamSuite
from tests.sources.parquet.tables import numbers_of, parquet, write_numbered


class TestParquetStream(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        paths = write_numbered(tmp_path, [5, 1, 8])
        return lambda: ParquetStream(paths)

    def delete(self, dataset: ParquetStream) -> str:
        for path in dataset.files:
            os.unlink(path)
        return os.path.dirname(dataset.files[0])


class TestResumedParquetStream(StreamSuite):
    @pytest.fixture(params=["rows", "transformed", "cut row groups"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(stream_module, "PIECES", 9 if request.param == "cut row groups" else 1)
        paths = write_numbered(tmp_path, [4, 0, 5])
        transform = str if request.param == "transformed" else None
        return lambda: ParquetStream(paths, columns=["text", "number"], transform=transform)


def test_rows_come_in_order(tmp_path: Path) -> None:
    stream = ParquetStream(write_numbered(tmp_path, [4, 0, 7]), columns=["number"])
    assert list(stream) == [{"number": number} for number in range(11)]
    assert stream.num_shards == 36 and stream.columns == ["number"] and len(stream.files) == 3


@pytest.mark.parametrize("shares", [1, 2, 3, 5, 32])
@pytest.mark.parametrize("counts", [[1], [100], [4, 0, 7], [300]])
def test_shares_hold_each_row_once(tmp_path: Path, shares: int, counts: list[int]) -> None:
    stream = ParquetStream(write_numbered(tmp_path, counts, group=5))
    parts = [numbers_of(stream.shard(shares, index)) for index in range(shares)]
    assert all(part == sorted(part) for part in parts)
    assert sorted(number for part in parts for number in part) == list(range(sum(counts)))


def test_one_row_group_is_shared_out_fairly(tmp_path: Path) -> None:
    stream = ParquetStream(write_numbered(tmp_path, [320], group=320))
    assert [len(numbers_of(stream.shard(8, index))) for index in range(8)] == [40] * 8
    with DataLoader(stream, batch_size=4, num_workers=2, collate_fn=list) as loader:  # and no worker reads all
        assert sorted(number for batch in loader for number in numbers_of(batch)) == list(range(320))


@pytest.mark.parametrize("shares", [2, 4])
def test_shares_decode_row_groups_of_their_own(tmp_path: Path, shares: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ParquetStream(write_numbered(tmp_path, [80], group=10))
    decoded: list[int] = []
    reads = stream._source.groups.read
    monkeypatch.setattr(stream._source.groups, "read", lambda number: (decoded.append(number), reads(number))[1])
    for index in range(shares):
        assert len(numbers_of(stream.shard(shares, index))) == 80 // shares
    assert sorted(decoded) == list(range(8))


@pytest.mark.parametrize("workers", [1, 2])
def test_state_is_loaded_with_other_workers(tmp_path: Path, workers: int) -> None:
    paths = write_numbered(tmp_path, [30, 30], group=7)

    def loader(number: int) -> Any:
        return DataLoader(ParquetStream(paths), batch_size=4, num_workers=number, seed=1, collate_fn=list)

    with loader(workers) as first:
        batches = iter(first)
        given = [number for _ in range(6) for number in numbers_of(next(batches))]
        state = first.state_dict()
    with loader(3 - workers) as second:
        second.load_state_dict(state)
        rest = [number for batch in second for number in numbers_of(batch)]
    assert sorted(given + rest) == list(range(60))


def test_damaged_row_group_is_raised_once_and_the_next_follows(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [9])
    begin = parquet.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(b"\xff" * 20)
    found, errors = _all(ParquetStream(path))
    assert found == [0, 1, 2, 6, 7, 8]
    assert [type(error) for error in errors] == [ParquetFileError]


def test_missing_file_is_raised_once_and_the_next_follows(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [4, 8, 4])
    stream = ParquetStream(paths)
    os.unlink(paths[1])
    found, errors = _all(stream)
    assert found == [0, 1, 2, 3, 12, 13, 14, 15]
    assert [type(error) for error in errors] == [FileNotFoundError] and paths[1] in str(errors[0])


def test_state_after_a_missing_file_leaves_it_out(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [2, 8, 4])
    stream = ParquetStream(paths)
    twin = pickle.loads(pickle.dumps(stream))
    os.unlink(paths[1])
    iterator = iter(stream)
    assert numbers_of([next(iterator), next(iterator)]) == [0, 1]
    with pytest.raises(FileNotFoundError):
        next(iterator)
    assert next(iterator)["number"] == 10
    twin.load_state_dict(stream.state_dict())
    assert numbers_of(twin) == [11, 12, 13]


def test_state_of_another_file_is_refused(tmp_path: Path) -> None:
    stream = ParquetStream(write_numbered(tmp_path, [6]))
    next(iter(stream))
    state = stream.state_dict()
    other = ParquetStream(write_numbered(tmp_path, [4, 1], group=4))
    other.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"row 1 of 3 in row group 0 of .*f000\.parquet, which has 4 rows"):
        iter(other)
    state["shards"]["0/1"] |= {"done": "0", "begun": [[0, "x"]]}
    other.load_state_dict(state)
    with pytest.raises(StateFormatError, match="a row and a number of rows"):
        iter(other)


def test_random_transforms_repeat_with_the_seed(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [12])

    def drawn(workers: int) -> list[float]:
        stream = ParquetStream(paths, transform=lambda row: (row["number"], random.random()))
        with DataLoader(stream, batch_size=3, num_workers=workers, seed=4, collate_fn=list) as loader:
            return [pair for batch in loader for pair in batch]

    assert drawn(0) == drawn(1)


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="transform is a int"):
        ParquetStream(write_numbered(tmp_path, [1]), transform=3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        ParquetStream(tmp_path / "no.parquet")


def _all(stream: ParquetStream) -> tuple[list[int], list[Exception]]:
    """The numbers of all rows, and the errors between them."""
    iterator, found, errors = iter(stream), [], []
    while True:
        try:
            found.append(next(iterator)["number"])
        except StopIteration:
            return found, errors
        except OSError as error:
            errors.append(error)
