from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import DuplicateKeyError, ShardError, ShardIndexError
from stoker.sources.storage import LocalFile
from stoker.sources.tar import index as index_module
from stoker.sources.tar.dataset import TarDataset
from stoker.sources.tar.foreign_index import foreign_index
from stoker.sources.tar.index import index_shards, loaded, scanned
from tests.sources.tar.shards import numbered, numbers_of, write_numbered, write_shard


def begins_of(path: str) -> list[int]:
    """The byte at which each sample begins, and the end mark, by the standard library."""
    begins, key = [], None
    with tarfile.open(path) as shard:
        for member in shard:
            if member.isreg() and member.name.partition(".")[0] != key:
                key = member.name.partition(".")[0]
                begins.append(member.offset)
        return [*begins, shard.offset]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("size", [0, 10, 600, 20_000])
def test_offsets_are_those_of_tarfile(tmp_path: Path, format: int, size: int) -> None:
    members = numbered(range(20), size)
    if format != tarfile.USTAR_FORMAT:
        members += [("l" * 150 + ".txt", b"long")]
    path = write_shard(tmp_path / "a.tar", members, format)
    assert scanned(LocalFile(path), path).offsets.tolist() == begins_of(path)


def test_index_is_written_beside_each_shard(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [3, 5])
    assert index_shards(f"{tmp_path}/*.tar") == [f"{path}.index" for path in paths]
    for path in paths:
        made, again = loaded(f"{path}.index"), scanned(LocalFile(path), path)
        assert made.offsets.tolist() == again.offsets.tolist() == begins_of(path)
        assert made.checks is not None and again.checks is not None
        assert made.checks.tolist() == again.checks.tolist()
        assert (made.version, made.digest) == (LocalFile(path).version, again.digest)
    assert sorted(os.listdir(tmp_path)) == ["s000.tar", "s000.tar.index", "s001.tar", "s001.tar.index"]


def test_dataset_makes_the_index_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_numbered(tmp_path, [3, 5])
    assert numbers_of(TarDataset(paths)) == list(range(8))
    monkeypatch.setattr(index_module, "scanned", lambda *_: pytest.fail("scanned again"))
    assert numbers_of(TarDataset(paths)) == list(range(8))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_index_lives_in_memory_where_none_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    paths = write_numbered(tmp_path, [3])

    def refused(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(index_module.os, "replace", refused)
    assert len(TarDataset(paths)) == 3
    assert os.listdir(tmp_path) == ["s000.tar"], "a partial index was left"
    with pytest.raises(OSError, match=os.strerror(number)):
        index_shards(paths)


def test_changed_shard_is_an_error(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [3])
    index_shards(path)
    write_shard(Path(path), numbered(range(50, 60)))
    with pytest.raises(ShardIndexError, match=r"s000\.tar\.index does not belong to .*index_shards"):
        TarDataset(path)
    with pytest.raises(ShardIndexError):
        index_shards(path)
    index_shards(path, overwrite=True)
    assert numbers_of(TarDataset(path)) == list(range(50, 60))


def test_index_of_another_shard_is_an_error(tmp_path: Path) -> None:
    one, other = write_numbered(tmp_path, [4, 4])  # of one size
    index_shards([one, other])
    shutil.copy(f"{one}.index", f"{other}.index")
    with pytest.raises(ShardIndexError, match="and other members"):
        TarDataset(other)


def test_copied_shard_keeps_its_index(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [4])
    index_shards(path)
    os.utime(path, ns=(0, 0))  # as a copy without its times
    assert numbers_of(TarDataset(path)) == [0, 1, 2, 3]


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "json"])
def test_damaged_index_is_an_error_that_names_it(tmp_path: Path, damage: str) -> None:
    (path,) = write_numbered(tmp_path, [4])
    (index,) = index_shards(path)
    data = Path(index).read_bytes()
    others = {"cut": data[:-1], "empty": b"", "other": b'{"format": "stoker tar index 9"}\n', "json": b"\xff\xfe" * 50}
    Path(index).write_bytes(others[damage])
    with pytest.raises(ShardIndexError, match=r"s000\.tar\.index is not a whole index"):
        TarDataset(path)


def test_second_sample_of_a_key_is_an_error(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", [("a.txt", b""), ("b.txt", b""), ("a.cls", b"")])
    with pytest.raises(DuplicateKeyError, match="byte 1024: a second sample with the key 'a'"):
        TarDataset(path)
    assert os.listdir(tmp_path) == ["a.tar"]


def test_damaged_shard_is_not_indexed(tmp_path: Path) -> None:
    path = Path(write_shard(tmp_path / "a.tar", numbered(range(5))))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ShardError, match=r"a\.tar ends at byte 3000"):
        TarDataset(path)
    with pytest.raises(ValueError, match="no sample in 1 shards"):
        TarDataset(write_shard(tmp_path / "b.tar", []))


# Indexes of other libraries: the files that their programs write, made here from their documented layouts


def energon(path: str) -> None:
    Path(path + ".idx").write_bytes(b"".join(struct.pack("Q", begin) for begin in begins_of(path)))


def dali(path: str, version: str = "v1.2") -> None:
    samples: dict[str, list[str]] = {}
    with tarfile.open(path) as shard:
        for member in shard:
            if member.isreg():
                key, _, extension = member.name.partition(".")
                fields = [extension, member.offset_data, member.size] + ([member.name] if version == "v1.2" else [])
                samples.setdefault(key, []).append(" ".join(map(str, fields)))
    lines = [f"{version} {len(samples)}", *map(" ".join, samples.values())]
    Path(path.removesuffix(".tar") + ".idx").write_text("\n".join(lines) + "\n")


def webshart(path: str, size: str = "length") -> None:
    with tarfile.open(path) as shard:
        files = {member.name: {"offset": member.offset_data, size: member.size} for member in shard if member.isreg()}
    Path(path.removesuffix(".tar") + ".json").write_text(json.dumps({"files": files}))


FOREIGN = {
    "energon": energon,
    "dali": dali,
    "dali 1.1": lambda path: dali(path, "v1.1"),
    "webshart": webshart,
    "cheesechaser": lambda path: webshart(path, "size"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_index_of_another_library_is_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "a.tar")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as shard:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        shard.addfile(folder)
    members = [*numbered(range(6), 700), ("l" * 150 + ".txt", b"6"), *numbered([7])]
    write_shard(tmp_path / "b.tar", members, tarfile.PAX_FORMAT)
    Path(path).write_bytes(Path(path).read_bytes()[:512] + (tmp_path / "b.tar").read_bytes())
    FOREIGN[kind](path)
    monkeypatch.setattr(index_module, "scanned", lambda *_: pytest.fail("scanned in spite of the index"))
    dataset = TarDataset(path)
    assert numbers_of(dataset) == list(range(8)) and dataset[-2]["__key__"] == "l" * 150
    assert not os.path.exists(f"{path}.index")


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_index_of_another_shard_is_an_error(tmp_path: Path, kind: str) -> None:
    path = write_shard(tmp_path / "a.tar", numbered(range(6), 700))
    FOREIGN[kind](path)
    write_shard(Path(path), numbered(range(12), 100))
    with pytest.raises(ShardIndexError, match=r"a\.tar.*index_shards"):
        numbers_of(TarDataset(path))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tar.idx", b"123"),
        ("a.tar.idx", struct.pack("QQ", 0, 1 << 40)),
        ("a.tar.idx", struct.pack("QQ", 0, 100)),
        ("a.idx", b"v9 1\ntxt 512 1 a.txt\n"),
        ("a.idx", b"v1.2 2\ntxt 512 1 a.txt\n"),
        ("a.idx", b"\xff\xfe\n"),
        ("a.json", b'{"files": {"a.txt": {"offset": 512}}}'),
        ("a.json", b"{"),
    ],
)
def test_damaged_foreign_index_is_an_error(tmp_path: Path, name: str, data: bytes) -> None:
    path = write_shard(tmp_path / "a.tar", numbered(range(2)))
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ShardIndexError, match=name.replace(".", r"\.")):
        TarDataset(path)


def test_json_of_another_purpose_is_no_index(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", numbered(range(2)))
    (tmp_path / "a.json").write_text('{"count": 2}')
    assert foreign_index(path, LocalFile(path)) is None
    assert len(TarDataset(path)) == 2


def test_wids_index_names_shards_and_their_lengths(tmp_path: Path) -> None:
    write_numbered(tmp_path, [3, 5])
    wids = tmp_path / "index.json"
    entries = [{"url": "s001.tar", "nsamples": 5}, {"url": "s000.tar", "nsamples": 3}]
    wids.write_text(json.dumps({"wids_version": 1, "shardlist": entries}))
    assert numbers_of(TarDataset(wids)) == [*range(3, 8), *range(3)]
    entries[0]["nsamples"] = 6
    wids.write_text(json.dumps({"wids_version": 1, "shardlist": entries}))
    with pytest.raises(ShardIndexError, match=r"s001\.tar has 5 samples, but the wids index names 6"):
        TarDataset(wids)
    wids.write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": "s001.tar"}]}))
    with pytest.raises(ValueError, match="lacks 'url' or 'nsamples'"):
        TarDataset(wids)


def test_sample_is_checked_against_its_index(tmp_path: Path) -> None:
    path = Path(write_shard(tmp_path / "a.tar", numbered(range(4))))
    dataset = TarDataset(path)
    status = path.stat()
    data = bytearray(path.read_bytes())
    begins = loaded(f"{path}.index").offsets.tolist()
    data[begins[1] : begins[2]], data[begins[2] : begins[3]] = data[begins[2] : begins[3]], data[begins[1] : begins[2]]
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # a change that hides itself
    assert numbers_of([dataset[0], dataset[3]]) == [0, 3]
    with pytest.raises(ShardIndexError, match=f"byte {begins[1]}: another member lies there"):
        dataset[1]
    assert np.array_equal(loaded(f"{path}.index").offsets, begins)
