"""Hive partitions: `pyarrow.dataset` is the measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.datasets.base import IterableDataset
from stoker.errors import MissingColumnError, SchemaMismatchError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.parquet.dataset import ParquetDataset
from stoker.sources.parquet.stream import ParquetStream
from tests.sources.object_servers import Bucket
from tests.sources.parquet.tables import arrow, write

NULL = "__HIVE_DEFAULT_PARTITION__"


def write_tree(root: Path, *folders: str) -> str:
    """A file of one row in each folder, and the pattern of all files."""
    for number, folder in enumerate(folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
        write(root / folder / f"{number}.parquet", arrow.table({"x": [number]}))
    return f"{root}/**/*.parquet"


def test_values_are_those_of_pyarrow(tmp_path: Path) -> None:
    hive = pytest.importorskip("pyarrow.dataset")
    trees = [
        *(["a=1", "a=02"], ["a=-1", "a=+2"], ["a=0x1F", "a=2"], ["a=2147483647"], ["a=2147483648"], ["a=1.5"], ["a="]),
        *(["a=1", "a=x"], ["a=1", f"a={NULL}"], ["a=x", f"a={NULL}"], ["a=b%20c%2Fd%3De"], ["k%20y=1"], ["a=%zz+"]),
        *(["a=1/b=2", "a=2"], ["a=1/b=x", "z"], ["a=1/a=2"], ["a=b=c"], ["a=1/x/b=2"], ["b=2/a=1", "a=2/b=1"], ["=3"]),
    ]
    for number, folders in enumerate(trees):
        pattern = write_tree(tmp_path / str(number), *folders)
        dataset, stream = ParquetDataset(pattern), ParquetStream(pattern)
        table = hive.dataset(dataset.files, partition_base_dir=str(tmp_path / str(number)), partitioning="hive")
        expected = repr(table.to_table(use_threads=False).to_pylist())
        assert repr([dataset[index] for index in range(len(dataset))]) == expected, folders
        assert repr(list(stream)) == expected, folders
        assert dataset.columns == stream.columns == table.schema.names
    assert ParquetDataset(write_tree(tmp_path / "null", f"a={NULL}"))[0] == {"x": 0, "a": None}


def test_folders_below_the_fixed_part_count(tmp_path: Path) -> None:
    write_tree(tmp_path / "r=0", "a=1/b=2", "a=1/b=3")
    at = f"{tmp_path}/r=0"
    (one, _) = ParquetDataset(f"{at}/*/*/*.parquet").files
    for places, columns in (
        (f"{at}/*/b=?/*.parquet", ["a", "b"]),
        (f"{at}/a=1/**/*.parquet", ["b"]),
        (f"{at}/a=1/b=2/*.parquet", []),
        (f"{at}/a=1/b={{2,3}}/*.parquet", ["b"]),
        (f"file://{at}/*/*/*.parquet", ["a", "b"]),
        (one, []),
        ([one], ["r", "a", "b"]),
        ([f"{at}/*/*/*.parquet", f"{at}/a=1/b=2/*.parquet"], ["a", "b"]),
    ):
        assert ParquetDataset(places).columns == ["x", *columns], places


def test_columns_choose_partitions(tmp_path: Path) -> None:
    pattern = write_tree(tmp_path, "a=1/b=2", "a=3/b=4")
    assert list(ParquetDataset(pattern, columns=["b", "x"])[1].items()) == [("b", 4), ("x", 1)]
    assert list(ParquetStream(pattern, columns=["a"])) == [{"a": 1}, {"a": 3}]
    decoded = f"{tmp_path}/decoded"
    for columns in (["a"], ["x", "b"], None):
        plain, mapped = ParquetDataset(pattern, columns=columns), ParquetDataset(pattern, decoded_cache=decoded)
        expected = [dict(plain[index]) for index in range(2)]
        for _ in range(2):  # the second time, from the files that the first one wrote
            found = [mapped[index] for index in range(2)]
            assert [{name: row[name] for name in plain.columns} for row in found] == expected
    assert ParquetDataset(pattern, partitioning=None)[0] == {"x": 0}
    assert list(ParquetStream(pattern, partitioning=None)) == [{"x": 0}, {"x": 1}]
    with pytest.raises(MissingColumnError, match="did you mean 'a'"):
        ParquetDataset(pattern, columns=["aa"])
    with pytest.raises(ValueError, match="partitioning is 'directory', expected \"hive\" or None"):
        ParquetDataset(pattern, partitioning="directory")  # type: ignore[arg-type]
    write_tree(tmp_path / "bytes", "a=%FF")
    with pytest.raises(ValueError, match=r"'a=%FF' looks like a partition, .* is no UTF-8"):
        ParquetDataset(f"{tmp_path}/bytes/*/*.parquet")


def test_column_of_the_file_must_be_equal(tmp_path: Path) -> None:
    equal: list[tuple[Any, list[Any]]] = [
        *((arrow.int32(), [1, 1]), (arrow.string(), ["1", "1"]), (arrow.float64(), [1.0, 1.0])),
        *((arrow.bool_(), [True, True]), (arrow.dictionary(arrow.int8(), arrow.string()), ["1", "1"])),
    ]
    other: list[tuple[Any, list[Any]]] = [
        *((arrow.int64(), [1, 5]), (arrow.string(), ["x", "x"]), (arrow.int8(), [None, 1])),
        *((arrow.list_(arrow.int8()), [[1], [1]]), (arrow.null(), [None, None])),
    ]
    for number, (kind, values) in enumerate(equal + other):
        path = tmp_path / f"{number}" / "a=1"
        path.mkdir(parents=True)
        write(path / "f.parquet", arrow.table({"a": arrow.array(values, kind), "x": [0, 1]}))
        dataset, stream = ParquetDataset(f"{path.parent}/*/*"), ParquetStream(f"{path.parent}/*/*")
        assert dataset.columns == ["a", "x"]
        if number < len(equal):
            assert [dataset[0]["a"], dataset[1]["a"]] == values == [row["a"] for row in stream]
            continue
        for read in (lambda dataset=dataset: dataset[0], lambda stream=stream: next(iter(stream))):
            with pytest.raises(SchemaMismatchError, match=r"f\.parquet has a column 'a' of its own, .* says a=1"):
                read()
        assert ParquetDataset(f"{path.parent}/*/*", columns=["x"])[1] == {"x": 1}
        assert len(list(ParquetStream(f"{path.parent}/*/*", partitioning=None))) == 2


def test_stream_goes_on_behind_an_unequal_column(tmp_path: Path) -> None:
    for label in (1, 2):
        (tmp_path / f"a={label}").mkdir()
        write(tmp_path / f"a={label}" / "f.parquet", arrow.table({"a": [2, 2]}), group=1)
    with pytest.warns(StokerWarning):
        rows = list(DataLoader(ParquetStream(f"{tmp_path}/*/*"), batch_size=None, on_error="skip"))
    assert rows == [{"a": 2}, {"a": 2}]


def test_partitions_of_a_store(bucket: Bucket, tmp_path: Path) -> None:
    write_tree(tmp_path, "d/a=1", "d/a=2%2F3")
    for path in tmp_path.rglob("*.parquet"):
        bucket.put(str(path.relative_to(tmp_path)), path.read_bytes())
    expected = [{"x": 0, "a": "1"}, {"x": 1, "a": "2/3"}]
    assert list(ParquetStream(bucket.url("d/**/*.parquet"))) == expected
    dataset = ParquetDataset(bucket.url("d/a={1,2%2F3}/*.parquet"))
    assert [dataset[index] for index in range(2)] == expected
    assert ParquetDataset(bucket.url("d/a=1/0.parquet"))[0] == {"x": 0}


def test_workers_give_partitions(tmp_path: Path) -> None:
    pattern = write_tree(tmp_path, *(f"label={number}" for number in range(6)))
    for source in (ParquetDataset(pattern), ParquetStream(pattern)):
        for workers in (0, 2):
            loader = DataLoader(source, batch_size=2, num_workers=workers, output="numpy")
            batches = list(loader)
            assert sorted(label for batch in batches for label in batch["label"].tolist()) == list(range(6))
            assert isinstance(source, IterableDataset) or batches[0]["label"].tolist() == [0, 1]
