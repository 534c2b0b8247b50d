from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import FileChangedError, MissingColumnError, ParquetFileError, SchemaMismatchError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.parquet import groups as groups_module
from stoker.sources.parquet.dataset import ParquetDataset
from stoker.testing.datasets import DatasetSuite
from tests.sources.parquet.tables import arrow, numbers_of, parquet, write, write_numbered


class TestParquetDataset(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        paths = write_numbered(tmp_path, [5, 1, 8])
        return lambda: ParquetDataset(paths)

    def delete(self, dataset: ParquetDataset) -> str:
        for path in dataset.files:
            os.unlink(path)
        return os.path.dirname(dataset.files[0])


def test_rows_are_those_of_all_files_in_order(tmp_path: Path) -> None:
    write_numbered(tmp_path, [4, 0, 7])
    dataset = ParquetDataset(f"{tmp_path}/f{{000..002}}.parquet")
    assert len(dataset) == 11
    assert numbers_of(dataset[index] for index in range(-11, 11)) == [*range(11), *range(11)]
    sample = dataset[5]
    assert list(sample) == ["number", "text", "vector"] and type(sample["number"]) is int
    assert sample["text"] == "row 5" and sample["vector"].dtype == np.float32
    assert dataset.row_group_sizes == [3, 1, 0, 3, 3, 1]
    assert dataset.describe(-1) == f"sample 10: {tmp_path}/f002.parquet, row group 2, row 0"


def test_columns_are_chosen_and_transformed(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [4])
    dataset = ParquetDataset(paths, columns=["text", "number"])
    assert list(dataset[1].items()) == [("text", "row 1"), ("number", 1)]
    assert dataset.columns == ["text", "number"]
    assert ParquetDataset(paths, transform=lambda row: row["number"] + 1)[3] == 4


def test_reading_starts_no_thread(tmp_path: Path) -> None:
    """In a fresh process, since pools of pyarrow's stay once they are started."""
    write_numbered(tmp_path, [100])
    script = """
import os, sys
import pyarrow.parquet
from stoker import ParquetDataset
before = len(os.listdir("/proc/self/task"))
dataset = ParquetDataset(sys.argv[1])
assert [dataset[index]["number"] for index in range(100)] == list(range(100))
assert len(os.listdir("/proc/self/task")) == before
"""
    subprocess.run([sys.executable, "-c", script, f"{tmp_path}/f000.parquet"], check=True, timeout=60)


def test_forked_workers_read_after_the_trainer_used_threads(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [40])
    assert parquet.read_table(paths[0], use_threads=True).num_rows == 40  # starts the pools of pyarrow
    dataset = ParquetDataset(paths)
    assert dataset[7]["number"] == 7
    with DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork", collate_fn=list) as loader:
        assert [number for batch in loader for number in numbers_of(batch)] == list(range(40))


def test_group_is_decoded_once_while_it_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ParquetDataset(write_numbered(tmp_path, [9]))
    read: list[int] = []
    reads = dataset._groups.read

    def counted(number: int) -> Any:
        read.append(number)
        return reads(number)

    monkeypatch.setattr(dataset._groups, "read", counted)
    for index in (0, 8, 1, 7, 2, 3):
        assert dataset[index]["number"] == index
    assert read == [0, 2, 1]
    monkeypatch.setattr(groups_module, "CACHED_BYTES", 2 * dataset._groups.decoded(0).nbytes)
    twin = pickle.loads(pickle.dumps(ParquetDataset(dataset.files)))
    reads, read = twin._groups.read, []
    monkeypatch.setattr(twin._groups, "read", counted)
    for index in (0, 3, 0, 6, 0, 3):  # the group used longest ago is dropped
        assert twin[index]["number"] == index
    assert read == [0, 1, 2, 1]
    monkeypatch.setattr(groups_module, "CACHED_BYTES", 0)
    assert numbers_of(twin[index] for index in (0, 1, 8, 7, 0)) == [0, 1, 8, 7, 0]
    assert read == [0, 1, 2, 1, 2, 0]


def test_files_beyond_the_limit_are_opened_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "MOST_OPEN", 2)
    dataset = ParquetDataset(write_numbered(tmp_path, [2] * 5))
    before = len(os.listdir("/proc/self/fd"))
    assert numbers_of(dataset[index] for index in range(10)) == list(range(10))
    assert len(os.listdir("/proc/self/fd")) == before + 2


def test_shuffle_by_row_groups_resumes(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [20, 20, 20], group=5)

    def loader(workers: int) -> Any:
        dataset = ParquetDataset(paths)
        sampler = RowGroupSampler(dataset.row_group_sizes, groups_at_once=2)
        return DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers, seed=1, collate_fn=list)

    whole = [number for batch in loader(0) for number in numbers_of(batch)]
    assert sorted(whole) == list(range(60))
    with loader(2) as first:
        batches = iter(first)
        for _ in range(6):
            next(batches)
        state = first.state_dict()
    with loader(1) as second:
        second.load_state_dict(state)
        assert [number for batch in second for number in numbers_of(batch)] == whole[24:]


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.parquet"):
        ParquetDataset(tmp_path / "no.parquet")


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"number,text\n1,a\n" * 10, b"PAR1" + bytes(50) + b"\xff\xff\0\0PAR1"]
)
def test_file_that_is_not_parquet_is_named(tmp_path: Path, content: bytes) -> None:
    good, bad = write_numbered(tmp_path, [2])[0], tmp_path / "bad.parquet"
    bad.write_bytes(content)
    with pytest.raises(ParquetFileError, match=rf"bad\.parquet \({len(content)} bytes\): its footer cannot be read"):
        ParquetDataset([good, str(bad)])


def test_truncated_file_is_named(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [50])
    os.truncate(path, 900)
    with pytest.raises(ParquetFileError, match=r"f000\.parquet \(900 bytes\).*copied completely"):
        ParquetDataset(path)


def test_damaged_row_group_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", arrow.table({"x": [f"{number:050}" for number in range(9)]}))
    begin = parquet.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(b"\xff" * 20)
    dataset = ParquetDataset(path)
    assert dataset[0] == {"x": f"{0:050}"}
    with pytest.raises(ParquetFileError, match=r"a\.parquet \([\d,]+ bytes\): row group 1 cannot be read"):
        dataset[4]
    assert dataset[8] == {"x": f"{8:050}"}


def test_missing_column_names_similar_ones(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [2])
    with pytest.raises(
        MissingColumnError, match=r"f000\.parquet has no column 'nubmer': did you mean 'number'\?"
    ) as caught:
        ParquetDataset(path, columns=["nubmer"])
    assert isinstance(caught.value, KeyError) and isinstance(caught.value, ValueError)
    with pytest.raises(MissingColumnError, match="its columns are 'number', 'text', 'vector'"):
        ParquetDataset(path, columns=["zzz"])


def test_files_of_different_schemas_are_named(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", arrow.table({"x": [1], "y": ["a"]}))
    other = write(tmp_path / "b.parquet", arrow.table({"x": [1.5], "y": ["b"]}))
    less = write(tmp_path / "c.parquet", arrow.table({"y": ["c"]}))
    more = write(tmp_path / "d.parquet", arrow.table({"y": ["d"], "z": [1], "x": [1]}))
    with pytest.raises(
        SchemaMismatchError, match=r"'x' is of type double in .*b\.parquet, and of type int64 in .*a\.pa"
    ):
        ParquetDataset([first, other])
    with pytest.raises(SchemaMismatchError, match=r"c\.parquet has no column 'x', which .*a\.parquet has"):
        ParquetDataset([first, less])
    with pytest.raises(SchemaMismatchError, match=r"d\.parquet has a column 'z', which .*a\.parquet does not have"):
        ParquetDataset([first, more])
    dataset = ParquetDataset([first, other, less, more], columns=["y"])
    assert [dataset[index]["y"] for index in range(4)] == ["a", "b", "c", "d"]


def test_column_without_values_fits_every_type(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", arrow.table({"x": arrow.array([None], arrow.null())}))
    dataset = ParquetDataset([first, write(tmp_path / "b.parquet", arrow.table({"x": ["b"]}))])
    assert [dataset[0], dataset[1]] == [{"x": None}, {"x": "b"}]


def test_files_without_rows_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no row in 2 Parquet files: .*f000\.parquet"):
        ParquetDataset(write_numbered(tmp_path, [0, 0]))


def test_file_changed_since_its_footer_was_read_is_an_error(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [3])
    dataset = ParquetDataset(path)
    write_numbered(tmp_path, [30])
    with pytest.raises(FileChangedError, match=r"f000\.parquet was changed since the dataset was made"):
        dataset[0]


def test_error_names_the_row_in_a_worker(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [8])
    dataset = ParquetDataset(paths, transform=lambda row: 12 // (row["number"] - 4))
    loader = DataLoader(dataset, batch_size=1, num_workers=1, on_error="skip", collate_fn=list)
    with pytest.warns(StokerWarning) as warned:
        assert [batch[0] for batch in loader if batch] == [-3, -4, -6, -12, 12, 6, 4]
    assert f"{paths[0]}, row group 1, row 1" in str(warned[0].message)


def test_arguments_are_checked(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [2])
    with pytest.raises(TypeError, match=r"columns is a text, 'number', expected a list of names: \['number'\]"):
        ParquetDataset(path, columns="number")
    with pytest.raises(ValueError, match="columns is an empty list"):
        ParquetDataset(path, columns=[])
    with pytest.raises(TypeError, match="transform is a int"):
        ParquetDataset(path, transform=3)  # type: ignore[arg-type]


def test_missing_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_numbered(tmp_path, [2])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'stoker\[parquet\]'"):
        ParquetDataset(path)
