from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ShardError, ShardIndexError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.tar.dataset import TarDataset
from stoker.testing.datasets import DatasetSuite
from tests.sources.tar.shards import numbered, numbers_of, write_numbered, write_shard


class TestTarDataset(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        paths = write_numbered(tmp_path, [5, 1, 8], size=5000)
        return lambda: TarDataset(paths)

    def delete(self, dataset: TarDataset) -> str:
        for path in dataset.shards:
            os.unlink(path)
        return os.path.dirname(dataset.shards[0])


def test_sample_has_a_key_a_shard_and_its_members(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", [("f/1.cls", b"7"), ("f/1.seg.bin", b"x"), ("f/1.txt", b"\xc3\xa9")])
    dataset = TarDataset(path)
    assert dataset[0] == {"__key__": "f/1", "__url__": path, "cls": 7, "seg.bin": b"x", "txt": "é"}
    assert TarDataset(path, decode=False)[0]["cls"] == b"7"
    assert TarDataset(path, transform=lambda sample: sample["cls"] + 1)[0] == 8


def test_samples_are_those_of_all_shards(tmp_path: Path) -> None:
    dataset = TarDataset(write_numbered(tmp_path, [3, 0, 4, 1]))
    assert len(dataset) == 8
    assert numbers_of(dataset[index] for index in range(-8, 8)) == [*range(8), *range(8)]
    assert dataset.describe(3) == f"sample 3: {tmp_path}/s002.tar, byte 0, key '00003'"


def test_describe_needs_no_readable_shard(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [3])
    dataset = TarDataset(paths)
    os.unlink(paths[0])
    assert dataset.describe(1) == f"sample 1: {paths[0]}, byte 2048"


def test_large_and_empty_members_are_read(tmp_path: Path) -> None:
    sizes = [0, 1, 511, 512, 40_000, 300_000]
    path = write_shard(tmp_path / "a.tar", [(f"{size}.bin", b"x" * size) for size in sizes])
    assert [len(sample["bin"]) for sample in TarDataset(path)] == sizes


def test_shard_that_changes_while_it_is_used_is_an_error(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [3])
    dataset = TarDataset(path)
    copy = pickle.loads(pickle.dumps(dataset))
    write_shard(Path(path), numbered(range(5, 9)))
    with pytest.raises(ShardIndexError, match=r"s000\.tar, byte 0: the shard was changed since"):
        copy[0]


def test_shard_that_is_cut_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [3], size=5000)
    dataset = TarDataset(path)
    assert dataset[0]["txt"] == "0"
    os.truncate(path, 9000)
    with pytest.raises(ShardError, match=r"s000\.tar ends at byte 9000, within sample 1"):
        dataset[1]


def test_error_names_the_sample_in_a_worker(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", b"no number"), ("2.cls", b"3")])
    loader = DataLoader(TarDataset(path), batch_size=1, num_workers=1, on_error="skip", collate_fn=list)
    with pytest.warns(StokerWarning) as warned:
        assert [batch[0]["cls"] for batch in loader if batch] == [1, 3]
    message = str(warned[0].message)
    assert "a.tar, byte 1024, key '1'" in message
    assert "the member 'cls' (9 bytes) of the sample '1' cannot be decoded" in message


def test_shuffled_epochs_resume_with_other_workers(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [20, 20, 20])

    def numbers(loader: Any, most: int = 100) -> list[int]:
        found: list[int] = []
        for batch, _ in zip(loader, range(most), strict=False):
            found += numbers_of(batch)
        return found

    options: Any = {"batch_size": 4, "shuffle": True, "seed": 3, "collate_fn": list}
    whole = numbers(DataLoader(TarDataset(paths), **options))
    assert sorted(whole) == list(range(60)) and whole != list(range(60))
    with DataLoader(TarDataset(paths), num_workers=2, **options) as loader:
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        state = loader.state_dict()
    with DataLoader(TarDataset(paths), num_workers=1, **options) as loader:
        loader.load_state_dict(state)
        assert numbers(loader) == whole[24:]
