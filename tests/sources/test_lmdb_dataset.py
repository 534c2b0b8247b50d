from __future__ import annotations

import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import DataFileError, MissingKeyError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.lmdb_dataset import LMDBDataset
from stoker.testing.datasets import DatasetSuite

lmdb = pytest.importorskip("lmdb")


def written(path: Path, records: dict[bytes, bytes], *, subdir: bool = True, database: bytes | None = None) -> Path:
    environment = lmdb.open(str(path), map_size=1 << 26, subdir=subdir, max_dbs=2)
    with environment.begin(write=True, db=None if database is None else environment.open_db(database)) as transaction:
        for key, value in records.items():
            transaction.put(key, value)
    environment.close()
    return path


def numbered(count: int) -> dict[bytes, bytes]:
    return {b"%05d" % number: b"%d" % number * 100 for number in range(count)}


class TestLMDBDataset(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        path = written(tmp_path / "db", numbered(14))
        return lambda: LMDBDataset(path)

    def delete(self, dataset: LMDBDataset) -> str:
        shutil.rmtree(dataset.path)
        return dataset.path


@pytest.mark.parametrize("subdir", [True, False])
def test_values_come_in_the_order_of_their_keys(subdir: bool, tmp_path: Path) -> None:
    path = written(tmp_path / "db", {b"b": b"2", b"a": b"1", b"c": b""}, subdir=subdir)
    dataset = LMDBDataset(path)
    assert [dataset[index] for index in range(len(dataset))] == [b"1", b"2", b""]
    assert dataset.describe(-1) == f"sample 2: key b'c' of {path}"
    assert LMDBDataset(path, transform=int)[1] == 2


def test_given_keys_are_the_samples(tmp_path: Path) -> None:
    path = written(tmp_path / "db", {b"b": b"2", "é".encode(): b"1"})
    dataset = LMDBDataset(path, keys=["é", b"b", "é"])
    assert [dataset[index] for index in range(3)] == [b"1", b"2", b"1"]


def test_named_database_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "db", {b"a": b"1"}, database=b"train")
    assert LMDBDataset(path, database="train")[0] == b"1"
    with pytest.raises(DataFileError, match="in the database 'test'"):
        LMDBDataset(path, database="test")


def test_names_of_databases_are_no_samples_without_a_word(tmp_path: Path) -> None:
    path = written(tmp_path / "db", {b"k": b"v"}, database=b"train")
    written(path, {b"k": b"w"}, database=b"val")
    with pytest.raises(
        DataFileError, match=r"names of other databases, and no values: 'train', 'val'.*database='train'"
    ):
        LMDBDataset(path)
    assert LMDBDataset(path, database="val")[0] == b"w"
    written(path, {b"plain": b"x" * 48})  # as long as the value of a name
    with pytest.warns(StokerWarning, match="are 'train', 'val', which are the names of other databases"):
        dataset = LMDBDataset(path)
    assert [len(dataset[index]) for index in range(3)] == [48, 48, 48]  # as the library gives them
    assert LMDBDataset(path, keys=["plain"])[0] == b"x" * 48
    path = written(tmp_path / "plain", dict.fromkeys([b"%d" % number for number in range(100)], b"x" * 48))
    assert len(LMDBDataset(path)) == 100


def test_two_datasets_share_one_environment(tmp_path: Path) -> None:
    path = written(tmp_path / "db", numbered(4))
    os.symlink(path, tmp_path / "link")
    first, second = LMDBDataset(path), LMDBDataset(tmp_path / "link", keys=[b"00003"])
    assert first[3] == second[0]
    del first
    assert second[0] == b"3" * 100


def test_threads_that_open_at_once_share_one_environment(tmp_path: Path) -> None:
    path = written(tmp_path / "db", numbered(8))
    for _ in range(20):
        dataset, together = LMDBDataset(path, keys=list(numbered(8))), threading.Barrier(8)

        def first(index: int, dataset: LMDBDataset = dataset, together: threading.Barrier = together) -> bytes:
            together.wait(10)
            return dataset[index]

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(first, range(8))) == list(numbered(8).values())
        del dataset, first


def test_folder_without_write_permission_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "db", numbered(2))
    os.unlink(path / "lock.mdb")
    assert LMDBDataset(path)[1] == b"1" * 100
    assert not (path / "lock.mdb").exists()


def test_pickled_values_stay_bytes(tmp_path: Path) -> None:
    path = written(tmp_path / "db", {b"a": pickle.dumps([1, 2])})
    assert LMDBDataset(path)[0] == pickle.dumps([1, 2])
    assert LMDBDataset(path, transform=pickle.loads)[0] == [1, 2]


def test_many_keys_take_little_memory_and_time_to_send(tmp_path: Path) -> None:
    path = written(tmp_path / "db", {b"%08d" % number: b"x" for number in range(100_001)})
    dataset = LMDBDataset(path)
    assert len(dataset) == 100_001
    assert len(pickle.dumps(dataset)) < 100_001 * 17
    assert dataset.describe(100_000).startswith("sample 100000: key b'00100000'")


def test_missing_key_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "db", numbered(3))
    loader = DataLoader(LMDBDataset(path, keys=["00000", "no", "00002"]), 1, num_workers=1, on_error="skip")
    with pytest.warns(StokerWarning, match="key b'no' is not in .*db"):
        assert [batch for batch in loader if batch] == [[b"0" * 100], [b"2" * 100]]
    with pytest.raises(MissingKeyError):
        LMDBDataset(path, keys=["no"])[0]


def test_bad_places_and_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no .*nothing\. An LMDB is"):
        LMDBDataset(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"data\.mdb"):
        LMDBDataset(tmp_path)
    (tmp_path / "text").write_text("no database " * 1000)
    with pytest.raises(DataFileError, match=r"text cannot be read: .*Is it an LMDB"):
        LMDBDataset(tmp_path / "text")
    path = written(tmp_path / "db", numbered(2))
    with pytest.raises(TypeError, match="keys should be bytes or str, but got int"):
        LMDBDataset(path, keys=[1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="transform is a int"):
        LMDBDataset(path, transform=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there are no keys"):
        LMDBDataset(path, keys=[])
    with pytest.raises(ValueError, match="there are no keys"):
        LMDBDataset(written(tmp_path / "empty", {}))
