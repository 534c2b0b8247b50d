from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.parquet import groups as groups_module
from stoker.sources.parquet.dataset import ParquetDataset
from stoker.testing.datasets import DatasetSuite
from tests.sources.parquet.tables import arrow, numbers_of, parquet, write_numbered


class TestDecodedCache(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        paths = write_numbered(tmp_path, [5, 1, 8])
        return lambda: ParquetDataset(paths, decoded_cache=tmp_path / "decoded")

    def delete(self, dataset: ParquetDataset) -> str:
        for path in dataset.files:
            os.unlink(path)
        folder = dataset._groups._decoded_files.folder  # type: ignore[union-attr]
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        return os.path.dirname(dataset.files[0])


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that are decoded in this process from now on."""
    found: list[int] = []
    read = groups_module._OpenFile.read

    def counted(self: Any, group: int, columns: list[str]) -> Any:
        found.append(group)
        return read(self, group, columns)

    monkeypatch.setattr(groups_module._OpenFile, "read", counted)
    return found


def test_each_group_is_decoded_once_on_a_machine(tmp_path: Path, decodings: list[int]) -> None:
    paths = write_numbered(tmp_path, [9])
    for _ in range(3):  # as three processes would
        dataset = ParquetDataset(paths, decoded_cache=tmp_path / "decoded")
        assert numbers_of(dataset[index] for index in (8, 0, 4, 7, 3, 1)) == [8, 0, 4, 7, 3, 1]
    assert sorted(decodings) == [0, 1, 2]
    assert len(os.listdir(tmp_path / "decoded")) == 3
    assert len(pickle.dumps(dataset)) < 3000


def test_shuffled_rows_are_those_of_the_files(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [50, 30])
    dataset = ParquetDataset(paths, decoded_cache=tmp_path / "decoded", columns=["number", "text"])
    with DataLoader(dataset, batch_size=8, shuffle=True, seed=1, num_workers=2, output="numpy") as loader:
        batches = [*loader, *loader]
    numbers = np.concatenate([batch["number"] for batch in batches])
    assert (np.bincount(numbers) == 2).all() and len(numbers) == 160
    assert all(text == f"row {number}" for batch in batches
               for number, text in zip(batch["number"], batch["text"], strict=True))  # fmt: skip
    assert not [name for name in os.listdir(tmp_path / "decoded") if "partial" in name]


def test_values_of_all_types_are_the_same(tmp_path: Path) -> None:
    table = arrow.table({
        "float": arrow.array([1.5, None, 2.5, 3.0]),
        "bool": arrow.array([True, False, None, True]),
        "word": arrow.array(["a", None, "b", "a"]).dictionary_encode(),
        "list": arrow.array([[1, 2], [], None, [3]], arrow.list_(arrow.int16())),
        "matrix": arrow.array([[1.0, 2.0]] * 4, arrow.list_(arrow.float32(), 2)),
        "deep": arrow.array([{"x": [1], "y": b"b"}, None, {"x": [], "y": b""}, {"x": None, "y": None}]),
        "time": arrow.array([1, 2, None, 4], arrow.timestamp("ns")),
    })  # fmt: skip
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    plain = ParquetDataset(tmp_path / "a.parquet")
    kept = ParquetDataset(tmp_path / "a.parquet", decoded_cache=tmp_path / "decoded")
    for index in range(4):
        assert repr(kept[index]) == repr(plain[index])
        assert kept[index]["matrix"].flags.writeable and kept[index]["matrix"].dtype == np.float32


def test_dictionaries_that_differ_within_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_numbered(tmp_path, [2])
    chunks = [arrow.array(words).dictionary_encode() for words in (["a", "b"], ["c", "a"])]
    table = arrow.table({"number": arrow.chunked_array(chunks)})
    monkeypatch.setattr(groups_module._OpenFile, "read", lambda *_: table)
    dataset = ParquetDataset(paths, columns=["number"], decoded_cache=tmp_path / "decoded")
    group = dataset._groups.decoded(0)
    assert group.is_mapped and [group.row(row)["number"] for row in range(4)] == ["a", "b", "c", "a"]


def test_changed_file_has_groups_of_its_own(tmp_path: Path, decodings: list[int]) -> None:
    path = tmp_path / "a.parquet"
    for begin in (0, 7):
        parquet.write_table(arrow.table({"number": range(begin, begin + 3)}), path)
        os.utime(path, ns=(1, begin + 1))
        assert ParquetDataset(path, decoded_cache=tmp_path / "d")[2]["number"] == begin + 2
    assert len(decodings) == 2 and len(os.listdir(tmp_path / "d")) == 2


def test_other_columns_have_groups_of_their_own(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [3])
    for columns in (["number"], ["text", "number"], ["number", "text"]):
        dataset = ParquetDataset(paths, columns=columns, decoded_cache=tmp_path / "d")
        assert list(dataset[1]) == columns
    assert len(os.listdir(tmp_path / "d")) == 3


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-9], lambda data: b"x" * len(data)])
def test_damaged_file_is_made_anew(damage: Any, tmp_path: Path, decodings: list[int]) -> None:
    paths = write_numbered(tmp_path, [3])
    assert ParquetDataset(paths, decoded_cache=tmp_path / "d")[1]["number"] == 1
    (file,) = (tmp_path / "d").iterdir()
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(damage(data))
    assert ParquetDataset(paths, decoded_cache=tmp_path / "d")[1]["number"] == 1
    assert len(decodings) == 2 and file.read_bytes() == data


def test_full_disk_warns_once_and_memory_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ParquetDataset(write_numbered(tmp_path, [9]), decoded_cache=tmp_path / "d")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(StokerWarning, match=rf"to {tmp_path}/d \(No space left on device\)") as caught:
        assert numbers_of(dataset[index] for index in range(9)) == list(range(9))
    assert len(caught) == 1 and not os.listdir(tmp_path / "d")


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [3])
    script = """
import os, signal, sys
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
from stoker import ParquetDataset
ParquetDataset(sys.argv[1], decoded_cache=sys.argv[2])[0]
"""
    ended = subprocess.run([sys.executable, "-c", script, paths[0], str(tmp_path / "d")], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "d").iterdir()
    assert ParquetDataset(paths, decoded_cache=tmp_path / "d")[2]["number"] == 2
    assert left.exists(), "its writer may be at work"
    os.utime(left, (1, 1))
    assert ParquetDataset(paths, decoded_cache=tmp_path / "d")[1]["number"] == 1
    assert [path.suffix for path in (tmp_path / "d").iterdir()] == [".arrow"]


def test_process_without_descriptors_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_numbered(tmp_path, [3])
    assert ParquetDataset(paths, decoded_cache=tmp_path / "d")[1]["number"] == 1
    (file,) = (tmp_path / "d").iterdir()
    made = file.stat().st_ino

    def exhausted(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(arrow, "memory_map", exhausted)
    monkeypatch.setattr(os, "fsync", exhausted)
    assert ParquetDataset(paths, decoded_cache=tmp_path / "d")[1]["number"] == 1
    assert [entry.stat().st_ino for entry in (tmp_path / "d").iterdir()] == [made]


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [3])
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        ParquetDataset(paths, decoded_cache=tmp_path / "file")


def test_maps_beyond_the_bound_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "MOST_MAPPED", 2)
    dataset = ParquetDataset(write_numbered(tmp_path, [9]), decoded_cache=tmp_path / "d")
    assert [numbers_of([dataset[index]]) for index in (0, 3, 6, 1, 8)] == [[0], [3], [6], [1], [8]]
    assert list(dataset._groups._process.get().groups) == [0, 2]
