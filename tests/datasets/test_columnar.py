from __future__ import annotations

import pickle
import subprocess
import sys
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.datasets.columnar import _BLOCK, _CHUNK, Columns, columns


class Sample(NamedTuple):
    path: str
    label: int


PAIRS = [("a.jpg", 3), ("", -1), ("größe/日本.png", 2**63 - 1), ("z" * 300, -(2**63))]
ARRAYS = [(np.array([1.5, 2], np.float32), np.uint8(7)), (np.array([-1, 0], np.float32), np.uint8(255))]
KINDS: dict[str, list[Any]] = {
    "tuples": PAIRS,
    "tuples of one": [("a",), ("b",)],
    "named tuples": [Sample(*pair) for pair in PAIRS],
    "dicts": [{"path": path, 7: label} for path, label in PAIRS],
    "strings": ["", "x", "é"],
    "bytes": [b"", b"\0\xff", b"long" * 100],
    "ints": [5, -5, 0],
    "floats": [0.1, -0.0, float("inf")],
    "bools": [True, False],
    "everything": [(True, 1, 1.5, "s", b"b"), (False, 2, -2.5, "", b"")],
    "with None": [(None, 1.5, None), ("a", None, None), (None, None, None)],
    "None first": [None, None, 3],
    "only None": [None, None],
    "surrogates": ["ok", "\udcff.jpg"],
    "nothing": [],
}


def types(row: Any) -> Any:
    if isinstance(row, dict):
        return {key: type(value) for key, value in row.items()}
    return [type(row), *map(type, row)] if isinstance(row, tuple) else type(row)


@pytest.mark.parametrize("name", KINDS)
def test_rows_come_back_equal_and_of_the_same_kind(name: str) -> None:
    rows = KINDS[name]
    kept = columns(iter(rows))
    assert len(kept) == len(rows)
    for again in (list(kept), [kept[i] for i in range(len(rows))], kept.__getitems__(range(len(rows)))):
        assert again == rows
        assert list(map(types, again)) == list(map(types, rows))
    assert kept == rows == kept


values = st.one_of(
    st.lists(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1) | st.none(), st.floats(allow_nan=False))),
    st.lists(st.fixed_dictionaries({"a": st.binary(), "b": st.booleans() | st.none()})),
    st.lists(st.text(st.characters(codec=None)) | st.none()),
)


@given(rows=values, index=st.integers(-8, 8), cut=st.slices(8))
def test_columns_behave_as_a_list(rows: list[Any], index: int, cut: slice) -> None:
    kept = columns(rows)
    assert kept == rows
    assert kept[cut] == rows[cut]
    assert kept[cut][::-1] == rows[cut][::-1]
    assert kept[cut].__getitems__(range(len(rows[cut]))) == rows[cut]
    try:
        expected = rows[index]
    except IndexError:
        with pytest.raises(IndexError):
            kept[index]
        with pytest.raises(IndexError):
            kept.__getitems__([index])
    else:
        assert kept[index] == expected
        assert kept.__getitems__([index, index]) == [expected, expected]


def test_many_rows_cross_chunks_and_blocks() -> None:
    rows = [(f"ü{i}" if i % 1000 == 7 else str(i), i if i > _CHUNK + 3 else None) for i in range(2 * _CHUNK + 5)]
    kept = columns(rows)
    assert kept == rows
    assert list(kept) == rows
    part = kept[-1 : -3 * _BLOCK : -2]
    assert list(part) == rows[-1 : -3 * _BLOCK : -2]
    assert part.__getitems__([0, -1, 2]) == [rows[-1], list(part)[-1], rows[-5]]


def test_columns_are_a_sequence() -> None:
    kept = columns("abca")
    assert kept.index("c") == 2
    assert kept.count("a") == 2
    assert "b" in kept
    assert "z" not in kept
    assert list(reversed(kept)) == ["a", "c", "b", "a"]
    assert kept[np.int64(1)] == "b"
    with pytest.raises(IndexError, match="row 4 is out of range for 4 rows"):
        kept[4]
    with pytest.raises(IndexError, match="row -5 is out of range for 4 rows"):
        kept[-5]


def test_equality_is_by_rows() -> None:
    kept = columns([(1, "a"), (2, "b")])
    assert kept == ((1, "a"), (2, "b"))
    assert kept == columns([(1.0, "a"), (2.0, "b")])
    assert kept != [(1, "a")]
    assert kept != [(1, "a"), (2, "c")]
    assert kept != {(1, "a"), (2, "b")}
    assert columns([{"a": 1}]) != [{"b": 1}]
    with pytest.raises(TypeError, match="unhashable"):
        hash(kept)


def test_columns_fetch_many_rows_at_once() -> None:
    kept = columns([(str(i), i) for i in range(100)])
    expected = [("5", 5), ("99", 99), ("5", 5)]
    assert kept.__getitems__([5, -1, 5]) == expected
    assert kept.__getitems__(np.array([5, 99, 5], np.uint64)) == expected
    assert kept.__getitems__([]) == []
    with pytest.raises(IndexError, match="row 100 is out of range for 100 rows"):
        kept.__getitems__([1, 100])
    with pytest.raises(TypeError, match="indices must be integers, not float64"):
        kept.__getitems__([1.0])


def test_numpy_numbers_and_arrays_keep_dtype_and_shape() -> None:
    when = np.array(["2020-01-01", "2021-06-30"], "M8[D]")
    rows = [
        (*row, day, np.array(i, ">i2"), None if i else row[0])
        for i, (row, day) in enumerate(zip(ARRAYS, when, strict=True))
    ]
    kept = columns(rows)
    for again in (list(kept), [kept[0], kept[1]]):
        for ours, row in zip(again, rows, strict=True):
            for mine, value in zip(ours, row, strict=True):
                assert type(mine) is type(value)
                if value is not None:
                    assert (mine.dtype, mine.shape) == (value.dtype, value.shape)
                    assert np.array_equal(mine, value)
    assert kept == rows
    assert kept != rows[::-1]


def test_arrays_that_are_given_out_may_be_changed() -> None:
    kept = columns([np.zeros(3), np.ones(3)])
    kept[0][:] = 9
    kept.__getitems__([0])[0][:] = 9
    next(iter(kept))[:] = 9
    assert kept[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", 1), ("b", 2.0)], r"row 1, column 1: found float 2\.0, expected int64 as in earlier rows"),
        ([("a", 1), ("b", True)], r"row 1, column 1: found bool True, expected int64"),
        ([("a", 1), (None, 1), (b"b", 2)], r"row 2, column 0: found bytes b'b', expected str"),
        ([("a", 1), ("b", 2**63)], r"row 1, column 1: 9223372036854775808 is not a 64-bit integer"),
        ([2**64], r"row 0, the only column: 18446744073709551616 is not a 64-bit integer"),
        (
            [Sample("a", 1), Sample("b", None), Sample("c", "x")],
            r"row 2, column 'label': found str 'x', expected int64",
        ),
        ([{"a": 1}, {"a": "x"}], r"row 1, key 'a': found str 'x', expected int64"),
        ([("a", 1), ("b",)], r"row 1 has 1 columns, expected 2 as in row 0"),
        ([("a", 1), ["b", 2]], r"row 1 has list, expected tuple as in row 0"),
        ([("a", 1), Sample("b", 2)], r"row 1 has Sample, expected tuple as in row 0"),
        ([{"a": 1}, {"b": 1}], r"row 1 has the keys \['b'\], expected \['a'\]"),
        ([{"a": 1}, ("b",)], r"row 1 has tuple, expected dict"),
        ([1, (1,)], r"row 1, the only column: found tuple \(1,\), expected int64"),
        ([np.float32(1), np.float64(1)], r"row 1, the only column: found float64 .*, expected float32"),
        (
            [np.zeros(3), np.zeros(4)],
            r"found an array of float64 and shape \(4,\), expected an array of float64 and sh",
        ),
        ([np.zeros(3), np.zeros(3, int)], r"row 1, the only column: found an array of int64 and shape \(3,\)"),
        ([()], "row 0 is an empty tuple"),
        ([{}], "row 0 is an empty dict"),
    ],
)
def test_rows_that_are_not_alike_are_named(rows: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        columns(rows)


def test_the_row_is_counted_across_chunks() -> None:
    rows: list[Any] = [(i, None) for i in range(_CHUNK + 10)]
    with pytest.raises(ValueError, match=f"row {_CHUNK + 10}, column 0: found str"):
        columns([*rows, ("x", None)])
    with pytest.raises(ValueError, match=f"row {_CHUNK + 10} has 3 columns, expected 2"):
        columns([*rows, (1, None, 2)])
    with pytest.raises(TypeError, match=f"row {_CHUNK + 10}, column 1: .*Path"):
        columns([*rows, (1, Path("x"))])


class Number(int):
    pass


@pytest.mark.parametrize("value", [Path("a"), [1], {1}, Number(1), np.str_("a"), np.array(["a"]), np.array([None])])
def test_rows_that_arrays_cannot_hold_are_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"row 1, column 1: .* cannot be kept in an array"):
        columns([("a", None), ("b", value)])


@pytest.mark.parametrize("row", [["a", 1], OrderedDict(a=1)])
def test_mixed_kinds_of_rows_are_a_type_error(row: Any) -> None:
    with pytest.raises(TypeError, match=r"row 0, the only column: .* cannot be kept in an array"):
        columns([row])


def test_named_tuples_of_a_local_class_keep_their_class() -> None:
    Point = namedtuple("Point", "x y")
    assert type(columns([Point(1, 2)])[0]) is Point


@pytest.mark.parametrize("name", KINDS)
def test_pickled_arrays_travel_out_of_band(name: str) -> None:
    kept = columns(KINDS[name])
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(kept, protocol=5, buffer_callback=buffers.append)
    assert sum(len(buffer.raw()) for buffer in buffers) == kept.nbytes
    read_only = [bytes(buffer.raw()) for buffer in buffers]
    again: Columns[Any] = pickle.loads(data, buffers=read_only)
    assert again == KINDS[name]
    assert list(again) == KINDS[name]
    assert pickle.loads(pickle.dumps(kept))[::-1] == KINDS[name][::-1]


@pytest.mark.parametrize("name", KINDS)
def test_slice_is_pickled_with_its_own_rows_only(name: str) -> None:
    rows = [*KINDS[name]] * 100
    for cut in (slice(0, 10), slice(120, 140), slice(-7, None), slice(5, 5), slice(3, 90, 4), slice(None, None, -1)):
        part = columns(rows)[cut]
        again = pickle.loads(pickle.dumps(part))
        assert list(again) == list(part) == rows[cut] and again[1:] == rows[cut][1:]
    whole = len(pickle.dumps(columns(rows)))
    assert len(pickle.dumps(columns(rows)[len(rows) // 2 :])) < 0.6 * whole + 1000


def test_slices_of_one_table_share_it_in_a_pickle() -> None:
    kept = columns([(number, str(number)) for number in range(10_000)])
    assert len(pickle.dumps((kept, kept[:], kept[::2]))) < 1.1 * len(pickle.dumps(kept))


def test_memory_is_less_than_half_of_the_lists() -> None:
    rows = [(f"/data/train/class_{i % 100:03d}/image_{i:07d}.jpeg", i % 100) for i in range(20_000)]
    size = sys.getsizeof(rows) + sum(sys.getsizeof(row) + sys.getsizeof(row[0]) for row in rows)
    assert columns(rows).nbytes < 0.5 * size


def test_the_summary_names_rows_and_columns() -> None:
    assert repr(columns([Sample("ab", 1)])) == "<Columns: 1 rows, (\"column 'path'\", \"column 'label'\"), 26 bytes>"


def test_torch_is_not_loaded() -> None:
    program = "import sys; from stoker import columns; columns([('a', 1)])[0]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_large_rows_are_not_held_beside_what_is_built() -> None:
    alive: set[int] = set()
    most = 0

    def rows() -> Iterator[Any]:
        nonlocal most
        for number in range(40):
            row = np.full(1 << 20, number, np.uint8)
            alive.add(number)
            weakref.finalize(row, alive.discard, number)
            most = max(most, len(alive))
            yield row, number

    assert [int(row[0]) for row, _ in columns(rows())] == [*range(40)]
    assert most < 10


def test_arrays_without_numbers_are_rows() -> None:
    kept = columns([(np.zeros((0, 3), np.float32), 7), (np.zeros((0, 3), np.float32), 8), (None, 9)])
    assert [(array if array is None else (array.shape, array.dtype), label) for array, label in kept] == [
        (((0, 3), np.float32), 7),
        (((0, 3), np.float32), 8),
        (None, 9),
    ]
    assert len(kept.__getitems__([1, 0, 1])) == 3
