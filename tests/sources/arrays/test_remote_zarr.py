"""Zarr arrays that lie in object stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import ArrayFileError, FileChangedError, ObjectStoreError
from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.arrays.dataset import ArrayDataset
from stoker.testing.datasets import DatasetSuite
from tests.sources.object_servers import Bucket, Faults

KINDS = ["a", "v2", "shards", "consolidated2", "consolidated3"]


def uploaded(folder: Path, bucket: Bucket) -> str:
    """Uploads a folder; returns its URL."""
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.put(f"{folder.name}/{path.relative_to(folder)}", path.read_bytes())
    return bucket.url(folder.name)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["a", "consolidated3"], scope="class")
class TestRemoteZarr(DatasetSuite):
    bucket: Bucket

    @pytest.fixture
    def make(self, bucket: Bucket, kind: str, zarrs: Path) -> Any:
        self.bucket, self.folder = bucket, zarrs / f"{kind}.zarr"
        url = uploaded(self.folder, bucket)
        return lambda: ArrayDataset(url)

    def delete(self, dataset: Any) -> str:
        for path in self.folder.rglob("*"):
            if path.is_file():
                self.bucket.delete(f"{self.folder.name}/{path.relative_to(self.folder)}")
        return dataset.paths[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_local_folder(kind: str, written_by_zarr: Path, bucket: Bucket) -> None:
    folder = written_by_zarr / f"{kind}.zarr"
    local, remote = ArrayDataset(folder), ArrayDataset(uploaded(folder, bucket) + "/")
    assert len(remote) == len(local) == 14 and remote.keys == local.keys
    assert remote.chunk_sizes == local.chunk_sizes
    options: dict[str, Any] = {"batch_size": 4, "seed": 1, "output": "numpy"}
    found, expected = (
        list(DataLoader(dataset, sampler=RowGroupSampler(dataset.chunk_sizes), num_workers=workers, **options))
        for dataset, workers in ((remote, 2), (local, 0))
    )
    for ours, theirs in zip(found, expected, strict=True):
        pairs = [(ours[key], theirs[key]) for key in theirs] if isinstance(theirs, dict) else [(ours, theirs)]
        assert all(np.array_equal(one, other) and one.dtype == other.dtype for one, other in pairs)


@pytest.mark.parametrize("version", [2, 3])
def test_chosen_arrays_of_a_group_alone_are_checked(version: int, written_by_zarr: Path, bucket: Bucket) -> None:
    folder = written_by_zarr / f"texts{version}.zarr"
    rows = np.load(written_by_zarr / "rows.npy")
    for place in (folder, uploaded(folder, bucket)):
        np.testing.assert_array_equal(ArrayDataset(place, keys=["x"])[13]["x"], rows[13])
        with pytest.raises(ArrayFileError, match=r"(?s)deep/fixed/.*its dtype is .* only numbers.*keys=\['x'\]"):
            ArrayDataset(place)
        for key in ("texts", "pairs"):
            with pytest.raises(ArrayFileError, match=f"{key}/.*its dtype is .* only numbers"):
                ArrayDataset(place, keys=["x", key])


def test_array_of_a_group_and_of_a_web_server(written_by_zarr: Path, bucket: Bucket) -> None:
    url = uploaded(written_by_zarr / "group3.zarr", bucket)
    rows = np.load(written_by_zarr / "rows.npy")
    assert ArrayDataset(f"{url}/deep/y")[3] == 30
    signed = ArrayDataset(bucket.http("group3.zarr/x") + "?X-Signature=secret")
    assert np.array_equal(signed[5], rows[5]) and "secret" not in f"{signed.paths} {signed.describe(5)}"


@pytest.mark.parametrize("version", [2, 3])
def test_group_needs_consolidated_metadata(version: int, written_by_zarr: Path, bucket: Bucket) -> None:
    url = uploaded(written_by_zarr / f"group{version}.zarr", bucket)
    with pytest.raises(ArrayFileError, match=rf"{url} is a Zarr group without .*: name one, for instance {url}/x, or"):
        ArrayDataset(url)


def test_chunk_that_was_never_written_is_the_fill_value(zarrs: Path, bucket: Bucket) -> None:
    folder = zarrs / "a.zarr"
    rows = np.load(zarrs / "rows.npy")
    url = uploaded(folder, bucket)
    bucket.delete("a.zarr/c/1/0/0")
    dataset = ArrayDataset(url)
    expected = rows[5].copy()
    expected[:2] = 0
    assert np.array_equal(dataset[5], expected) and np.array_equal(dataset[0], rows[0])


def test_array_that_is_removed_or_changed_is_an_error(zarrs: Path, bucket: Bucket) -> None:
    url = uploaded(zarrs / "a.zarr", bucket)
    removed, changed = ArrayDataset(url), ArrayDataset(url)
    assert removed[0].shape == changed[0].shape == (3, 4)
    for path in os.listdir(zarrs / "a.zarr" / "c" / "2"):
        bucket.delete(f"a.zarr/c/2/{path}/0")
    metadata = (zarrs / "a.zarr" / "zarr.json").read_bytes()
    bucket.put("a.zarr/zarr.json", json.dumps(json.loads(metadata) | {"attributes": {"new": 1}}).encode())
    with pytest.raises(FileChangedError, match=r"zarr\.json was changed since"):
        changed[9]
    bucket.delete("a.zarr/zarr.json")
    with pytest.raises(FileChangedError, match=url):
        removed[9]


def test_store_that_fails_is_an_error_of_the_sample(zarrs: Path, bucket: Bucket, faults: Faults) -> None:
    dataset = ArrayDataset(uploaded(zarrs / "a.zarr", bucket), storage_options=faults.options)
    rows = np.load(zarrs / "rows.npy")
    faults.plan(*["500"] * 40)
    with pytest.raises(ObjectStoreError, match=r"a\.zarr"):
        dataset[3]
    faults.plan("", "500", "cut")
    assert np.array_equal(dataset[3], rows[3])


def test_missing_chunk_is_checked_in_the_read_itself(zarrs: Path, bucket: Bucket) -> None:
    dataset = ArrayDataset(uploaded(zarrs / "a.zarr", bucket))
    assert dataset[0].shape == (3, 4)
    table = dataset._process.get().get(0)[0]
    for path in (zarrs / "a.zarr").rglob("*"):
        if path.is_file():
            bucket.delete(f"a.zarr/{path.relative_to(zarrs / 'a.zarr')}")
    with pytest.raises(FileChangedError, match=r"a\.zarr/zarr\.json was changed since"):
        table._read(8, 12)  # type: ignore[union-attr]


def test_arrays_of_one_name_are_told_apart(zarrs: Path, bucket: Bucket) -> None:
    """Two versions of a web server's file differ in the query, which messages do not show."""
    url = uploaded(zarrs / "a.zarr", bucket)
    rows = np.load(zarrs / "rows.npy")
    dataset = ArrayDataset([url, url])
    doubled = ArrayDataset(uploaded(_doubled(zarrs), bucket))._files[0]
    dataset._files[1] = doubled._replace(path=url)
    assert np.array_equal(dataset[3], rows[3]) and np.array_equal(dataset[17], 2 * rows[3])


def _doubled(zarrs: Path) -> Path:
    script = "import sys, numpy as np, zarr\n"
    script += "zarr.create_array(sys.argv[1], data=2 * np.load(sys.argv[2]), chunks=(4, 2, 4))"
    folder = zarrs / "doubled.zarr"
    subprocess.run([sys.executable, "-c", script, folder, zarrs / "rows.npy"], check=True)
    return folder


def test_names_with_characters_of_urls(zarrs: Path, bucket: Bucket) -> None:
    rows = np.load(zarrs / "rows.npy")
    folder = (zarrs / "a.zarr").rename(zarrs / "a#1.zarr")
    assert np.array_equal(ArrayDataset(uploaded(folder, bucket))[3], rows[3])
    group = zarrs / "consolidated3.zarr"
    (group / "x").rename(group / "deep%20#c")
    metadata = group / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"x": {', '"deep%20#c": {'))
    url = uploaded(group, bucket)
    for place in (url, bucket.http("consolidated3.zarr")):
        dataset = ArrayDataset(place)
        assert dataset.keys == ["deep/y", "deep%20#c"] == ArrayDataset(group).keys
        assert np.array_equal(dataset[3]["deep%20#c"], rows[3])
    assert ArrayDataset(url + "/deep/y/")[3] == 30


def test_cache_keeps_chunks(zarrs: Path, bucket: Bucket, tmp_path: Path) -> None:
    cache: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": 1 << 30}
    rows = np.load(zarrs / "rows.npy")
    for kind in ("v2", "shards"):
        dataset = ArrayDataset(uploaded(zarrs / f"{kind}.zarr", bucket), **cache)
        assert all(np.allclose(dataset[index], rows[index]) for index in range(14))


def test_what_is_no_array_is_named(bucket: Bucket) -> None:
    with pytest.raises(ArrayFileError, match=r"nothing\.zarr is no Zarr array or group: it has none of zarr\.json"):
        ArrayDataset(bucket.url("nothing.zarr"))
    bucket.put("text.zarr/zarr.json", b"no json")
    with pytest.raises(ArrayFileError, match=r"text\.zarr/zarr\.json does not describe a Zarr array"):
        ArrayDataset(bucket.url("text.zarr"))
    with pytest.raises(ValueError, match=r"text\.zarr says itself what it holds"):
        ArrayDataset(bucket.url("text.zarr"), dtype="f4")


def test_training_process_starts_no_thread(zarrs: Path, bucket: Bucket) -> None:
    url = uploaded(zarrs / "a.zarr", bucket)
    threads = len(os.listdir("/proc/self/task"))
    dataset = ArrayDataset(url)
    assert [dataset[index].shape for index in range(14)] == [(3, 4)] * 14
    assert len(os.listdir("/proc/self/task")) == threads
