"""MDS folders of an object store, by their URLs."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import FileChangedError, ShardError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.mds.dataset import MDSDataset
from stoker.testing.datasets import DatasetSuite
from stoker.testing.streams import comparable
from tests.sources.hub_server import Hub
from tests.sources.mds.shards import RAW, sample, written
from tests.sources.mds.test_mds import KINDS, folder_of
from tests.sources.object_servers import Bucket, Faults


def uploaded(bucket: Bucket, folder: Path) -> str:
    for path in sorted(folder.iterdir()):
        bucket.put(f"train/{path.name}", path.read_bytes())
    return bucket.url("train")


def ids(dataset: Any) -> list[int]:
    return [dataset[number]["id"] for number in range(len(dataset))]


def patient(faults: Faults) -> dict[str, Any]:
    """Storage options with which a slow answer is no fault, and is not asked for again."""
    return {**faults.options, "client_options": {"read_timeout": "10s"}}


def long_shards(samples: int = 40, shards: int = 3) -> dict[str, bytes]:
    """Shards with the columns of the written ones, in which their first sample comes again and again."""
    index = json.loads(RAW["index.json"])
    data = RAW["shard.00000.mds"]
    begin, end = np.frombuffer(data, "<u4", 2, 4).tolist()
    table = 4 * (samples + 2) + (end - begin) * np.arange(samples + 1)
    shard = np.array([samples, *table], "<u4").tobytes() + data[begin:end] * samples
    entries, files = [], {}
    for number in range(shards):
        name = f"shard.{number:05}.mds"
        files[name] = shard
        raw = {**index["shards"][0]["raw_data"], "basename": name, "bytes": len(shard)}
        entries.append({**index["shards"][0], "raw_data": raw, "samples": samples})
    return files | {"index.json": json.dumps({**index, "shards": entries}).encode()}


@pytest.mark.long
class TestRemoteSamples(DatasetSuite):
    bucket: Bucket

    @pytest.fixture(params=["raw", "gz"])
    def make(self, request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path) -> Any:
        self.bucket = bucket
        url = uploaded(bucket, folder_of(request.param, tmp_path / "data"))
        return lambda: MDSDataset(url, columns=["id", "text", "dyn", "x"])

    def delete(self, dataset: MDSDataset) -> str:
        for shard in dataset._shards:
            self.bucket.delete(shard.path.removeprefix(self.bucket.url()))
        return dataset.folder


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_the_local_folder(kind: str, bucket: Bucket, tmp_path: Path) -> None:
    url = uploaded(bucket, folder_of(kind, tmp_path / "data"))
    for place in (url, f"{url}/", bucket.http("train")):
        dataset = MDSDataset(place)
        found = [comparable(dataset[number]) for number in range(len(dataset))]
        assert found == [comparable(sample(number)) for number in range(5)]
        assert dataset.folder == place.rstrip("/") and dataset.shard_sizes == [3, 2]
        assert dataset.describe(-1).startswith(f"sample 4: sample 1 of {dataset.folder}/shard.00001.mds")


@pytest.mark.parametrize("kind", ["raw", "gz"])
@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_shuffled_epoch_resumes_in_its_middle(birth: str, kind: str, bucket: Bucket, tmp_path: Path) -> None:
    url = uploaded(bucket, folder_of(kind, tmp_path / "data"))

    def loader() -> Any:
        options = {"batch_size": 1, "shuffle": True, "seed": 4, "num_workers": 2, "multiprocessing_context": birth}
        return DataLoader(MDSDataset(url, columns=["id", "fix"]), threads_per_worker=2, output="numpy", **options)

    with loader() as first, loader() as second:
        batches = iter(first)
        begin = [next(batches) for _ in range(2)]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        all_of = begin + list(second)
    numbers = np.concatenate([batch["id"] for batch in all_of])
    assert sorted(numbers) == [-1, 0, 1, 2, 3] and list(numbers) != sorted(numbers)


def test_a_sample_is_one_request(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    url = uploaded(bucket, written(tmp_path / "data", long_shards()))
    dataset = MDSDataset(url, storage_options=patient(faults))
    assert len(faults.requests()) <= 2 + 3, "index.json and its version, the version of each shard"
    faults.plan()
    assert [dataset[number]["id"] for number in (0, 50, 119, 7, 60, 100)] == [-1] * 6
    assert len(faults.requests()) == 6 + 3, "a table of places for each shard"


def test_a_compressed_shard_is_read_once_by_all_threads(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    url = uploaded(bucket, folder_of("gz", tmp_path / "data"))
    dataset = MDSDataset(url, columns=["id"], storage_options=patient(faults))
    faults.plan()
    sampler = RowGroupSampler(dataset.shard_sizes)
    with DataLoader(dataset, 1, sampler=sampler, num_workers=1, threads_per_worker=4, output="numpy") as loader:
        assert sorted(np.concatenate([batch["id"] for batch in loader]).tolist()) == [-1, 0, 1, 2, 3]
    assert len(faults.requests()) == 2


@pytest.mark.parametrize("kind", ["raw", "gz"])
def test_cached_samples_are_read_from_the_disk(kind: str, bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    url = uploaded(bucket, folder_of(kind, tmp_path / "data"))
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": 1 << 30, "storage_options": patient(faults)}
    for _ in range(2):
        faults.plan()
        assert ids(MDSDataset(url, **options)) == [-1, 0, 1, 2, 3]
    assert {method for method, _, _ in faults.requests()} == {"HEAD"}
    assert ids(MDSDataset(tmp_path / "data", cache=tmp_path / "other", cache_size=1 << 30)) == [-1, 0, 1, 2, 3]
    assert any((tmp_path / "other").rglob("*"))


def test_faults_lose_no_sample(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    url = uploaded(bucket, folder_of("raw", tmp_path / "data"))
    dataset = MDSDataset(url, columns=["id"], storage_options=patient(faults))
    faults.plan("500", "cut", "", "short", "", "503")
    with DataLoader(dataset, batch_size=2, num_workers=2, output="numpy") as loader:
        assert np.concatenate([batch["id"] for batch in loader]).tolist() == [-1, 0, 1, 2, 3]


def test_either_form_of_each_shard_is_found(bucket: Bucket, tmp_path: Path) -> None:
    folder = folder_of("gz", tmp_path / "data")
    url = uploaded(bucket, folder)
    bucket.put("train/shard.00001.mds", RAW["shard.00001.mds"])
    assert ids(MDSDataset(url)) == [-1, 0, 1, 2, 3]
    bucket.delete("train/shard.00001.mds.gz")
    dataset = MDSDataset(url)
    assert ids(dataset) == [-1, 0, 1, 2, 3]
    assert dataset.describe(4).endswith("shard.00001.mds")
    bucket.put("train/shard.00000.mds", RAW["shard.00000.mds"])
    assert MDSDataset(url).describe(0).endswith("shard.00000.mds")


def test_bad_folders_are_refused(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"there is no {bucket.url('train/index.json')}: a folder of MDS"):
        MDSDataset(bucket.url("train"))
    url = uploaded(bucket, folder_of("raw", tmp_path / "data"))
    bucket.put("train/shard.00001.mds", RAW["shard.00001.mds"][:-1])
    with pytest.raises(ShardError, match=rf"{url}/shard\.00001\.mds has .* bytes, and .* in index\.json"):
        MDSDataset(url)
    bucket.delete("train/shard.00001.mds")
    with pytest.raises(FileNotFoundError, match=rf"1 of 2 shards of {url}/index.json are missing: .*00001.mds"):
        MDSDataset(url)
    bucket.put("other/index.json", RAW["index.json"])
    with pytest.raises(ValueError, match="leads to 2 folders: make a dataset of each one"):
        MDSDataset(bucket.url("*"))
    with pytest.raises(ValueError, match=r"^ftp://host/a is a URL, and folders of MDS take local paths only"):
        MDSDataset("ftp://user:secret@host/a")


def test_shards_that_are_gone_or_changed_are_named(bucket: Bucket, tmp_path: Path) -> None:
    url = uploaded(bucket, folder_of("raw", tmp_path / "data"))
    dataset = MDSDataset(url, columns=["id"])
    changed = bytearray(RAW["shard.00000.mds"])
    changed[-1] ^= 1
    bucket.put("train/shard.00000.mds", bytes(changed))
    with pytest.raises(FileChangedError, match=rf"{url}/shard\.00000\.mds"):
        dataset[0]
    with pytest.warns(StokerWarning), DataLoader(dataset, 2, num_workers=1, on_error="skip", max_errors=3) as loader:
        assert [number for batch in loader for number in batch["id"].tolist()] == [2, 3]
    bucket.delete("train/shard.00000.mds")
    with pytest.raises(FileNotFoundError, match=f"^{url}/shard.00000.mds: there is no such bucket or object"):
        pickle.loads(pickle.dumps(dataset))[0]


def test_signature_is_in_no_text(bucket: Bucket, tmp_path: Path) -> None:
    uploaded(bucket, folder_of("raw", tmp_path / "data"))
    dataset = pickle.loads(pickle.dumps(MDSDataset(f"{bucket.http('train')}?X-Signature=the-secret")))
    assert dataset[4]["id"] == 3 and dataset.folder == bucket.http("train")
    assert "the-secret" not in dataset.describe(3) + repr(dataset) + repr(dataset._shards)


def test_url_of_a_local_folder(tmp_path: Path) -> None:
    assert ids(MDSDataset(f"file://{written(tmp_path / 'data', RAW)}")) == [-1, 0, 1, 2, 3]


def test_folder_of_the_hub(hub: Hub) -> None:
    root = hub.put({f"train/{name}": data for name, data in RAW.items()})
    dataset = MDSDataset("hf://datasets/we/data/train")
    assert ids(dataset) == [-1, 0, 1, 2, 3]
    assert f"{dataset.fingerprint}/".rstrip("/") == root.rstrip("/")
