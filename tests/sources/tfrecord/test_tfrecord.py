from __future__ import annotations

import gzip
import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import CompressedFileError, FileChangedError, MissingExtraError, RecordError, ShardError
from stoker.loader.dataloader import DataLoader
from stoker.sources.tfrecord.dataset import TFRecordDataset
from stoker.sources.tfrecord.records import ExampleDecoder
from stoker.sources.tfrecord.stream import TFRecordStream
from stoker.testing.datasets import DatasetSuite
from stoker.testing.streams import StreamSuite, comparable, through_json
from tests.sources.tfrecord.records import WRITTEN_BY_TFRECORD, example, field, framed, masked, varint, written

pytest.importorskip("google_crc32c")

INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
decode = ExampleDecoder(None, ())


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [example({"id": [number], "data": [b"x" * number]}) for number in range(first, first + count)]


class TestRecordsByIndex(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        for number in range(3):
            written(tmp_path / f"{number}.tfrecord", numbered(5, 5 * number))
        return lambda: TFRecordDataset(tmp_path / "*.tfrecord", scalars=["id"])

    def delete(self, dataset: TFRecordDataset) -> str:
        for path in dataset.files:
            os.unlink(path)
        return os.path.dirname(dataset.files[0])


class TestStreamInWorkers(DatasetSuite):
    births = ("fork",)

    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        for number in range(3):
            written(tmp_path / f"{number}.tfrecord", numbered(5, 5 * number))
        return lambda: TFRecordStream(tmp_path / "*.tfrecord", scalars=["id"])

    def delete(self, dataset: TFRecordStream) -> str:
        for path in dataset.files:
            os.unlink(path)
        return os.path.dirname(dataset.files[0])


class TestRecordsInSequence(StreamSuite):
    @pytest.fixture(params=["plain", "gzip"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        for number in range(3):
            path = written(tmp_path / f"{number}.tfrecord", numbered(5, 5 * number))
            if request.param == "gzip":
                path.write_bytes(gzip.compress(path.read_bytes()))
        return lambda: TFRecordStream(tmp_path / "*.tfrecord")


def test_a_file_of_the_tfrecord_package_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(WRITTEN_BY_TFRECORD)
    dataset = TFRecordDataset(path)
    expected = {
        "label": np.array([3]),
        "ids": np.array([1, -1, 2**62, 300] * 8),
        "emb": np.array([0.5, -1.25], np.float32),
        "image": [b"\x00\xff jpeg"],
        "words": [b"a", "zwölf".encode()],
        "none": np.empty(0, np.int64),
    }
    assert comparable(dict(sorted(dataset[0].items()))) == comparable(dict(sorted(expected.items())))
    assert comparable(dataset[1]) == comparable({"label": np.array([-7])})
    assert [comparable(sample) for sample in TFRecordStream(path)] == [comparable(dataset[0]), comparable(dataset[1])]
    assert TFRecordDataset(path, columns=["label"], scalars=["label"])[1] == {"label": -7}
    assert TFRecordDataset(path, decode=False, transform=len)[1] < 30
    assert dataset.describe(0) == f"sample 0: the record at byte 0 of {path}"


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(
            st.lists(INTEGERS, max_size=40),
            st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
            st.lists(st.binary(max_size=5), min_size=1, max_size=5),
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_features_come_back(features: dict[str, Any], packed: bool) -> None:
    found = decode(example(features, packed))
    assert {name: list(values) for name, values in found.items()} == features


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_features_or_an_error(data: bytes) -> None:
    for damaged in (data, field(1, data), field(1, field(1, data))):
        try:
            decode(damaged)
        except RecordError as error:
            assert "no tf.train.Example" in str(error)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (example({"a": [1]})[:-1], "cut off"),
        (b"\x0b", "wire type 3"),
        (b"\xff" * 11, "more than 64 bits"),
        (field(2, b""), "a SequenceExample"),
        (field(1, field(1, field(2, field(3, field(1, b"\x80" * 20))))), "an integer is cut off"),
        (field(1, field(1, field(2, field(3, field(1, b"\x80" * 20 + b"\x01"))))), "more than 64 bits"),
        (field(1, field(1, field(2, field(2, field(1, b"123"))))), "buffer size must be a multiple"),
    ],
)
def test_damaged_examples_are_named(data: bytes, match: str) -> None:
    with pytest.raises(RecordError, match=f"no tf.train.Example .*{match}"):
        decode(data)


def test_unknown_fields_are_left_out() -> None:
    more = varint(9 << 3) + varint(300) + varint(10 << 3 | 1) + bytes(8) + varint(11 << 3 | 5) + bytes(4)
    assert decode(more + example({"a": [b"x"]}) + more) == {"a": [b"x"]}


def test_missing_features_and_scalars_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a", [example({"a": [1, 2], "b": [b"x"]})])
    with pytest.raises(RecordError, match=r"the record at byte 0 of .*a: an Example without the feature 'c'"):
        TFRecordDataset(path, columns=["c"])[0]
    for name, number in (("a", 2), ("c", 0)):
        with pytest.raises(RecordError, match=rf"the record at byte 0 of .*: the feature '{name}' has {number} values"):
            next(iter(TFRecordStream(path, scalars=[name])))
    for options, error, match in [
        ({"columns": "a"}, TypeError, "columns is a text"),
        ({"columns": []}, ValueError, "columns is an empty list"),
        ({"columns": ["a"], "scalars": ["b"]}, ValueError, "scalars names 'b', which columns does not"),
        ({"scalars": ["b"], "decode": False}, ValueError, "but decode=False"),
        ({"transform": 3}, TypeError, "transform is a int"),
    ]:
        with pytest.raises(error, match=match):
            TFRecordDataset(path, **options)


def test_a_damaged_record_is_named_and_the_next_follows(tmp_path: Path) -> None:
    path, good = written(tmp_path / "a", numbered(3)), written(tmp_path / "b", numbered(1, 9))
    data = bytearray(path.read_bytes())
    second = len(framed(numbered(1)[0]))
    data[second + 20] ^= 1
    path.write_bytes(data)
    dataset = TFRecordDataset([path, good], scalars=["id"])
    message = rf"a: the checksum of the record at byte {second} is wrong"
    with pytest.raises(ShardError, match=message):
        dataset[1]
    assert [dataset[index]["id"] for index in (0, 2, 3)] == [0, 2, 9]
    stream = TFRecordStream([path, good], scalars=["id"])
    records = iter(stream)
    assert next(records)["id"] == 0
    with pytest.raises(ShardError, match=message):
        next(records)
    resumed = TFRecordStream([path, good], scalars=["id"])
    resumed.load_state_dict(through_json(stream.state_dict()))
    assert [record["id"] for record in records] == [record["id"] for record in resumed] == [2, 9]
    assert len(list(TFRecordStream([path, good], decode=False, check=False))) == 4


@pytest.mark.parametrize("damage", ["length", "truncated", "no tfrecord"])
def test_a_file_that_cannot_be_read_further_is_named(damage: str, tmp_path: Path) -> None:
    path, good = written(tmp_path / "a", numbered(3)), written(tmp_path / "b", numbered(1, 9))
    data = bytearray(path.read_bytes())
    second = len(framed(numbered(1)[0]))
    match = rf"a, byte {second}: the checksum of a record's length is wrong"
    if damage == "length":
        data[second] ^= 1
    elif damage == "truncated":
        data = data[:-3]
        match = r"a ends within the record at byte \d+"
    else:
        data = bytearray(b"some other file, of text")
        match = "a, byte 0: the checksum of a record's length is wrong"
    path.write_bytes(data)
    with pytest.raises(ShardError, match=match):
        TFRecordDataset([path, good])
    records, found = iter(TFRecordStream([path, good], scalars=["id"])), []
    with pytest.raises(ShardError, match=match):
        for record in records:
            found.append(record["id"])
    assert found == {"length": [0], "truncated": [0, 1], "no tfrecord": []}[damage]
    assert [record["id"] for record in records] == [9]


def test_large_records_are_indexed_without_reading_them(tmp_path: Path) -> None:
    length = struct.pack("<Q", 1 << 33)
    path = tmp_path / "a"
    path.write_bytes(length + masked(length))
    os.truncate(path, 12 + (1 << 33) + 4)  # a hole
    with open(path, "ab") as file:
        file.write(framed(b"small"))
    dataset = TFRecordDataset(path, decode=False)
    assert len(dataset) == 2 and dataset[1] == b"small"


def test_compressed_and_changed_files(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(framed(b"a")))
    with pytest.raises(CompressedFileError, match=r"compressed with gzip.*stoker\.TFRecordStream"):
        TFRecordDataset(path)
    assert list(TFRecordStream(path, decode=False)) == [b"a"]
    written(path, [b"a", b"b"])
    dataset = TFRecordDataset(path, decode=False)
    written(path, [b"longer", b"b"])
    with pytest.raises(FileChangedError, match="was changed since the dataset was made"):
        dataset[1]
    assert TFRecordDataset(path, decode=False)[0] == b"longer"
    path.rename(tmp_path / "a.tfrecord")
    for _ in range(2):
        assert len(TFRecordDataset(tmp_path / "a.tf*", decode=False)) == 2, "the index is no data"


def test_without_checksums_no_package_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a", numbered(2))
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    for kind in (TFRecordDataset, TFRecordStream):
        with pytest.raises(MissingExtraError, match=r"stoker\[tfrecord\], or pass check=False"):
            kind(path)
    assert TFRecordDataset(path, check=False, scalars=["id"])[1]["id"] == 1
    assert len(list(TFRecordStream(path, check=False))) == 2


def test_a_stream_goes_to_workers_and_the_error_policy(tmp_path: Path) -> None:
    files = [written(tmp_path / name, [*numbered(2), b"\xff", *numbered(1, 2)]) for name in ("a", "b")]
    stream = TFRecordStream(files, scalars=["id"], columns=["id"])
    loader = DataLoader(stream, batch_size=4, num_workers=2, on_error="skip", output="numpy")
    with pytest.warns(UserWarning, match=r"the record at byte \d+ of .*no tf\.train\.Example"):
        assert sorted(np.concatenate([batch["id"] for batch in loader]).tolist()) == [0, 0, 1, 1, 2, 2]
