from __future__ import annotations

import datetime
import decimal
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.sources.parquet.dataset import ParquetDataset
from stoker.sources.parquet.values import SampleOrigin, reader_of
from stoker.testing.streams import comparable
from tests.sources.parquet.tables import arrow, write

f32, i16 = arrow.float32(), arrow.int16()

CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "integers": (arrow.int8(), [1, -2, 3], [1, -2, 3]),
    "integers and nulls": (arrow.int64(), [1, None, 2**60 + 1], [1, None, 2**60 + 1]),
    "floats": (f32, [0.5, None, float("inf")], [0.5, None, float("inf")]),
    "booleans": (arrow.bool_(), [True, False, True], [True, False, True]),
    "texts": (arrow.string(), ["a", None, "ß"], ["a", None, "ß"]),
    "bytes": (arrow.binary(), [b"\0", b"", None], [b"\0", b"", None]),
    "large texts": (arrow.large_string(), ["a", None, "ß"], ["a", None, "ß"]),
    "large bytes": (arrow.large_binary(), [b"\0", b"", None], [b"\0", b"", None]),
    "empty texts": (arrow.string(), ["", "", None], ["", "", None]),
    "fixed bytes": (arrow.binary(2), [b"ab", None, b"cd"], [b"ab", None, b"cd"]),
    "dates": (arrow.date32(), [datetime.date(2020, 1, 2), None], [datetime.date(2020, 1, 2), None]),
    "microseconds": (
        arrow.timestamp("us"),
        [datetime.datetime(2020, 1, 2), None],
        [datetime.datetime(2020, 1, 2), None],
    ),
    "nanoseconds": (arrow.timestamp("ns"), [1, None], [np.datetime64(1, "ns"), None]),
    "decimals": (arrow.decimal128(5, 2), [decimal.Decimal("1.25"), None], [decimal.Decimal("1.25"), None]),
    "lists": (arrow.list_(i16), [[1, 2], [], None], [np.array([1, 2], "i2"), np.array([], "i2"), None]),
    "lists with nulls": (arrow.list_(i16), [[1, None], [3], None], [[1, None], np.array([3], "i2"), None]),
    "lists of booleans": (arrow.list_(arrow.bool_()), [[True], [False]], [np.array([True]), np.array([False])]),
    "lists of texts": (arrow.list_(arrow.string()), [["a", None], []], [["a", None], []]),
    "lists of lists": (arrow.list_(arrow.list_(i16)), [[[1], []]], [[np.array([1], "i2"), np.array([], "i2")]]),
    "fixed lists": (arrow.list_(f32, 2), [[1, 2], [3, 4]], [np.array([1, 2], "f4"), np.array([3, 4], "f4")]),
    "fixed lists with nulls": (
        arrow.list_(f32, 2),
        [None, [3, 4], [None, 1.0]],
        [None, np.array([3, 4], "f4"), [None, 1.0]],
    ),
    "matrices": (
        arrow.list_(arrow.list_(i16, 2), 1),
        [[[1, 2]], [[3, 4]]],
        [np.array([[1, 2]], "i2"), np.array([[3, 4]], "i2")],
    ),
    "matrices with nulls": (arrow.list_(arrow.list_(i16, 2), 1), [None, [[3, 4]]], [None, np.array([[3, 4]], "i2")]),
    "lists of fixed lists": (
        arrow.list_(arrow.list_(i16, 2)),
        [[[1, 2], [3, 4]], []],
        [np.array([[1, 2], [3, 4]], "i2"), np.empty((0, 2), "i2")],
    ),
    "structs": (
        arrow.struct({"a": i16, "b": arrow.list_(f32)}),
        [{"a": 1, "b": [2]}, None],
        [{"a": 1, "b": np.array([2], "f4")}, None],
    ),
    "structs of nulls": (arrow.struct({"a": i16}), [{"a": None}], [{"a": None}]),
    "lists of structs": (arrow.list_(arrow.struct({"a": i16})), [[{"a": 1}], None], [[{"a": 1}], None]),
    "maps": (arrow.map_(arrow.string(), i16), [[("a", 1)], None], [[("a", 1)], None]),
    "nulls": (arrow.null(), [None, None], [None, None]),
}


@pytest.mark.parametrize("case", CASES)
def test_values_of_each_type(tmp_path: Path, case: str) -> None:
    kind, given, expected = CASES[case]
    dataset = ParquetDataset(write(tmp_path / "a.parquet", arrow.table({"x": arrow.array(given, kind)})))
    assert [comparable(dataset[row]["x"]) for row in range(len(dataset))] == [comparable(value) for value in expected]


@pytest.mark.parametrize("case", CASES)
def test_values_of_a_slice(case: str) -> None:
    kind, given, expected = CASES[case]
    array = arrow.array([*given, *given], kind)
    read = reader_of(arrow, array[1 : 1 + len(given)])
    found = [comparable(read(row)) for row in range(len(given))]
    assert found == [comparable(value) for value in [*expected, *expected][1 : 1 + len(given)]]


def test_dictionary_columns_give_values(tmp_path: Path) -> None:
    kind = arrow.dictionary(arrow.int8(), arrow.string())
    values = ["b", "a", None, "b", "a", "c"]
    dataset = ParquetDataset(write(tmp_path / "a.parquet", arrow.table({"x": arrow.array(values, kind)}), group=4))
    assert [dataset[row]["x"] for row in range(6)] == values


def test_tensors_have_their_shape(tmp_path: Path) -> None:
    kind = arrow.fixed_shape_tensor(arrow.uint8(), (2, 3))
    storage = arrow.array([list(range(6)), list(range(6, 12))], arrow.list_(arrow.uint8(), 6))
    table = arrow.table({"x": arrow.ExtensionArray.from_storage(kind, storage)})
    dataset = ParquetDataset(write(tmp_path / "a.parquet", table))
    assert np.array_equal(dataset[1]["x"], np.arange(6, 12, dtype=np.uint8).reshape(2, 3))


@pytest.mark.skipif(not hasattr(arrow, "uuid"), reason="this pyarrow has no UUIDs")
def test_uuids_are_those_of_pyarrow(tmp_path: Path) -> None:
    data = [bytes(range(16)), None, bytes(16)]
    ids = arrow.ExtensionArray.from_storage(arrow.uuid(), arrow.array(data, arrow.binary(16)))
    flags = arrow.ExtensionArray.from_storage(arrow.bool8(), arrow.array([2, None, 0], arrow.int8()))
    lists = arrow.ListArray.from_arrays(arrow.array([0, 1, 1, 3], arrow.int32()), ids)
    table = arrow.table({"id": ids, "flag": flags, "ids": lists})
    dataset = ParquetDataset(write(tmp_path / "a.parquet", table))
    assert [dataset[row] for row in range(3)] == table.to_pylist()
    assert isinstance(dataset[0]["id"], uuid.UUID) and dataset[0]["flag"] is True


def test_arrays_are_the_samples_own(tmp_path: Path) -> None:
    table = arrow.table({"x": [[1, 2]], "y": arrow.array([[1.0, 2.0]], arrow.list_(arrow.float64(), 2))})
    dataset = ParquetDataset(write(tmp_path / "a.parquet", table))
    for array in dataset[0].values():
        array += 1
    assert [array.tolist() for array in dataset[0].values()] == [[1, 2], [1.0, 2.0]]


def test_groups_of_several_chunks_are_read() -> None:
    from stoker.sources.parquet.values import DecodedGroup

    table = arrow.table({"x": arrow.chunked_array([[1, 2], [], [3]])})
    group = DecodedGroup(arrow, table, ["x"], lambda row: SampleOrigin("", row))
    assert [group.row(row) for row in range(3)] == [{"x": 1}, {"x": 2}, {"x": 3}]
