"""Shards without the end mark of a tar file: `tarfile` and GNU tar read their members to the last."""

from __future__ import annotations

import json
import os
import tarfile
import warnings
from pathlib import Path

import pytest

from stoker.errors import ShardError, ShardIndexError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.per_process import Once
from stoker.sources.tar.dataset import TarDataset
from stoker.sources.tar.index import index_shards
from stoker.sources.tar.stream import TarStream
from tests.sources.object_servers import Bucket
from tests.sources.tar.shards import numbered, numbers_of, write_numbered, write_shard

SAID = "ends behind a member, without the end mark"


def cut(path: str, members: int | None = None) -> None:
    """Cuts a shard behind its last member, or behind the first ones."""
    with tarfile.open(path) as shard:
        ends = [member.offset_data + (member.size + 511 & -512) for member in shard]
    os.truncate(path, ends[-1 if members is None else members - 1])


def test_last_sample_is_given_with_one_warning(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [4, 3, 2])
    for path in paths:
        cut(path)
    stream = TarStream(paths)
    with pytest.warns(StokerWarning, match=SAID) as warned:
        assert numbers_of(stream) == list(range(9)) == numbers_of(stream)
    assert len(warned) == 1 and "s000.tar" in str(warned[0].message)
    with pytest.warns(StokerWarning, match=rf"s000\.tar \(and 2 more shards\) {SAID}") as warned:
        dataset = TarDataset(paths)
    assert len(warned) == 1
    assert numbers_of(dataset[index] for index in range(9)) == list(range(9))  # type: ignore[misc]
    with pytest.warns(StokerWarning, match=SAID):
        index_shards(paths[0], overwrite=True)


def test_shares_of_a_shard_hold_each_sample_once(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [20])
    cut(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StokerWarning)
        with DataLoader(TarStream(path), batch_size=5, num_workers=2, collate_fn=list) as loader:
            for _ in range(2):
                assert sorted(number for batch in loader for number in numbers_of(batch)) == list(range(20))


def test_shard_is_truncated_if_an_index_says_so(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [4])
    index_shards(path)
    cut(path, members=6)
    iterator = iter(TarStream(path))
    assert numbers_of([next(iterator), next(iterator)]) == [0, 1]
    with pytest.raises(ShardError, match=r"ends at byte 6144 without an end mark, but its index is of .* 4 samples"):
        next(iterator)
    assert list(iterator) == []
    with pytest.raises(ShardIndexError, match="does not belong"):
        TarDataset(path)
    os.unlink(f"{path}.index")
    Path(f"{path}.idx").write_bytes(b"".join(place.to_bytes(8, "little") for place in (0, 2048, 4096, 6144, 8192)))
    with pytest.raises(ShardError, match=r"without an end mark, and its index does not fit: .*tar\.idx"):
        list(TarStream(path))
    os.unlink(f"{path}.idx")
    listed = {"shardlist": [{"url": "s000.tar", "nsamples": 4}]}
    (tmp_path / "all.json").write_text(json.dumps(listed))
    with pytest.raises(ShardError, match="behind 3 samples and without an end mark, but the wids index names 4"):
        TarDataset(tmp_path / "all.json")


def test_shard_that_ends_within_a_member_is_truncated(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", numbered(range(3)))
    os.truncate(path, 5 * 1024 + 512)
    with pytest.raises(ShardError, match="ends at byte 5632, but 10 bytes were expected"):
        list(TarStream(path))
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as shard:
        shard.addfile(tarfile.TarInfo("é" * 120 + ".txt"))
    os.truncate(path, 1024)  # its pax header alone
    with pytest.raises(ShardError, match="the shard is truncated"):
        list(TarStream(path))


def test_shard_of_a_store_without_an_end_mark(bucket: Bucket, tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [3])
    cut(path)
    with pytest.warns(StokerWarning, match=SAID):
        assert numbers_of(TarStream(bucket.upload(Path(path)))) == [0, 1, 2]


def test_children_know_of_the_first_call() -> None:
    once = Once()
    if (child := os.fork()) == 0:
        os._exit(0 if once.is_first() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not once.is_first()
