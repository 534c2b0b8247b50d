from __future__ import annotations

import bz2
import gzip
import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import (
    FileChangedError,
    MissingColumnError,
    MissingExtraError,
    RecordError,
    SchemaMismatchError,
    ShardError,
)
from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.mds import folder as mds_reader
from stoker.sources.mds.dataset import MDSDataset, value_of
from stoker.sources.mds.folder import Shard
from stoker.testing.datasets import DatasetSuite
from stoker.testing.streams import comparable
from tests.sources.mds.shards import PACKED, RAW, sample, written

KINDS = ["raw", "zstd", "gz", "bz2"]


def folder_of(kind: str, path: Path) -> Path:
    """A folder in which shards are there in one form only."""
    if kind == "raw":
        return written(path, RAW)
    if kind == "zstd":
        pytest.importorskip("backports.zstd")
        return written(path, PACKED)
    index, files = json.loads(RAW["index.json"]), {}
    for entry in index["shards"]:
        name = entry["raw_data"]["basename"]
        data = {"gz": gzip.compress, "bz2": bz2.compress}[kind](RAW[name])
        entry |= {"compression": f"{kind}:9", "zip_data": {"basename": f"{name}.{kind}", "bytes": len(data)}}
        files[f"{name}.{kind}"] = data
    return written(path, files | {"index.json": json.dumps(index).encode()})


class TestSamplesByIndex(DatasetSuite):
    @pytest.fixture(params=["raw", "zstd"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        folder = folder_of(request.param, tmp_path / "data")
        return lambda: MDSDataset(folder, columns=["id", "text", "dyn", "x"])

    def delete(self, dataset: MDSDataset) -> str:
        shutil.rmtree(dataset.folder)
        return dataset.folder


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_the_streaming_package_are_read(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path / "data")
    dataset = MDSDataset(folder)
    assert [comparable(dataset[number]) for number in range(len(dataset))] == [comparable(sample(i)) for i in range(5)]
    assert dataset.columns == sorted(sample(0))
    assert dataset.shard_sizes == [3, 2]
    assert MDSDataset(folder, columns=["text", "id"])[4] == {"text": "éééé", "id": 3}
    assert MDSDataset(folder, columns=["id"], transform=dict.popitem)[0] == ("id", -1)
    assert dataset.describe(-1).startswith(f"sample 4: sample 1 of {folder}/shard.00001.mds")
    assert dataset[1]["fix"].flags.writeable


def test_a_shuffled_loader_reads_all_samples(tmp_path: Path) -> None:
    dataset = MDSDataset(written(tmp_path / "data", RAW), columns=["id", "fix"])
    sampler = RowGroupSampler(dataset.shard_sizes, groups_at_once=1)
    with DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=2, seed=1, output="numpy") as loader:
        assert sorted(np.concatenate([batch["id"] for batch in loader]).tolist()) == [-1, 0, 1, 2, 3]


def test_few_decompressed_shards_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = MDSDataset(folder_of("gz", tmp_path / "data"), columns=["id"])
    seen: list[str] = []
    once = mds_reader._decompressed

    def counted(data: bytes, shard: Shard) -> bytes:
        seen.append(shard.path[-6:-3])
        return once(data, shard)

    monkeypatch.setattr(mds_reader, "_decompressed", counted)
    for index in (0, 1, 4, 2):
        dataset[index]
    assert len(seen) == 2
    monkeypatch.setattr(mds_reader, "_CACHE", 10)
    dataset = MDSDataset(dataset.folder, columns=["id"])
    for index in (0, 1, 4, 0):
        dataset[index]
    assert len(seen) == 2 + 3


def test_encodings_that_need_decoding_stay_bytes() -> None:
    for encoding in ("jpeg", "png", "pil", "pkl", "list[jpeg]", "of a later version"):
        assert value_of(encoding)(b"\x80data") == b"\x80data"


def changed(path: Path, **values: Any) -> None:
    """Replaces values of the first shard in index.json."""
    index = json.loads((path / "index.json").read_text())
    index["shards"][0] |= values
    (path / "index.json").write_text(json.dumps(index))


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no .*index\.json"):
        MDSDataset(tmp_path)
    folder = written(tmp_path / "data", RAW)
    for options, error, match in [
        ({"columns": "id"}, TypeError, "columns is a text"),
        ({"columns": []}, ValueError, "columns is an empty list"),
        ({"columns": ["idd"]}, MissingColumnError, "a column 'idd', which there is not: did you mean 'id'"),
        ({"transform": 3}, TypeError, "transform is a int"),
    ]:
        with pytest.raises(error, match=match):
            MDSDataset(folder, **options)
    changed(folder, column_names=["other", *json.loads(RAW["index.json"])["shards"][0]["column_names"][1:]])
    with pytest.raises(SchemaMismatchError, match=r"shard\.00001\.mds has the columns .*, but .*shard\.00000\.mds has"):
        MDSDataset(folder)
    changed(folder, raw_data={"basename": "../outside", "bytes": 1})
    with pytest.raises(ShardError, match=r"'\.\./outside' is no name of a file in the folder"):
        MDSDataset(folder)
    changed(folder, raw_data={"basename": "absent.mds", "bytes": 1})
    with pytest.raises(FileNotFoundError, match=r"1 of 2 shards of .* are missing: .*absent\.mds"):
        MDSDataset(folder)
    (folder / "a.br").write_bytes(b"x")
    changed(folder, compression="br:11", zip_data={"basename": "a.br", "bytes": 1})
    with pytest.raises(ValueError, match=r"a\.br is compressed with 'br'; zstd, gz, bz2 can be read"):
        MDSDataset(folder)
    for text, match in [
        ("[]", "is damaged, or not of MDS"),
        ('{"version": 1, "shards": []}', "its version is 1, expected 2"),
        ('{"version": 2, "shards": [{"format": "json"}]}', "is 'json', expected 'mds'"),
    ]:
        (folder / "index.json").write_text(text)
        with pytest.raises(ShardError, match=match):
            MDSDataset(folder)
    (folder / "index.json").write_text('{"version": 2, "shards": []}')
    with pytest.raises(ValueError, match="there is no sample in"):
        MDSDataset(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_shards_are_named(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path / "data")
    path = next(file for file in sorted(folder.iterdir()) if file.name.startswith("shard.00001"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(ShardError, match=r"shard\.00001\.mds.* has .* bytes, and .* in index\.json: was it written"):
        MDSDataset(folder)
    damaged = bytearray(whole)
    if kind == "raw":
        damaged[4:12] = b"\xff" * 8
    else:
        damaged[len(whole) // 2 :] = bytes(len(whole) - len(whole) // 2)
    path.write_bytes(damaged)
    dataset = MDSDataset(folder)
    assert dataset[0]["id"] == -1
    with pytest.raises((ShardError, RecordError), match=r"shard\.00001\.mds.*(the shard is damaged|It is damaged)"):
        dataset[3]
    path.write_bytes(whole + b"x")
    with pytest.raises(FileChangedError, match=r"shard\.00001\.mds.* was changed since the dataset was made"):
        pickle.loads(pickle.dumps(dataset))[3]


def test_a_sample_that_does_not_fit_its_columns_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "data", RAW)
    path = folder / "shard.00000.mds"
    data = bytearray(RAW["shard.00000.mds"])
    begin = int.from_bytes(data[4:8], "little")
    data[begin] ^= 1  # the size of the first column
    path.write_bytes(data)
    dataset = MDSDataset(folder)
    with pytest.raises(RecordError, match=r"sample 0: sample 0 of .*shard\.00000\.mds: \d+ bytes do not fit the sizes"):
        dataset[0]
    data[begin] ^= 1
    data[data.index(b'{"a": [0')] = ord("!")
    path.write_bytes(data)
    with pytest.raises(RecordError, match="the column 'obj' does not fit its encoding"):
        MDSDataset(folder)[0]
    assert MDSDataset(folder, columns=["id"])[0] == {"id": -1}


def test_zstd_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "data", PACKED)
    for name in ("backports", "backports.zstd", "compression", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"stoker\[zstd\]"):
        MDSDataset(folder)
