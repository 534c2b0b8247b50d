"""HDF5 files of an object store, by their URLs."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import FileChangedError, HDF5Error, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.hdf5.dataset import HDF5Dataset
from stoker.testing.datasets import DatasetSuite
from tests.sources.object_servers import Bucket, Faults

h5py = pytest.importorskip("h5py")

ROWS = 60
IMAGES = np.random.default_rng(0).integers(0, 256, (ROWS, 40, 30), np.uint8)
LAYOUTS: dict[str, dict[str, Any]] = {
    "in one piece": {},
    "chunks": {"chunks": (7, 40, 30)},
    "gzip": {"chunks": (7, 40, 30), "compression": "gzip"},
    "gzip, cut rows": {"chunks": (7, 16, 30), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (7, 40, 30), "compression": "lzf"},
}


def written(path: Path, layout: str = "gzip", userblock: int = 0) -> Path:
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file.create_dataset("images", data=IMAGES, **LAYOUTS[layout])
        file.create_dataset("labels/fine", data=np.arange(ROWS))
        file.create_dataset("names", data=[f"é{number}" for number in range(ROWS)], dtype=h5py.string_dtype())
    return path


@pytest.fixture
def url(bucket: Bucket, tmp_path: Path) -> str:
    return bucket.upload(written(tmp_path / "a.h5"))


@pytest.mark.long
class TestRemoteHDF5Dataset(DatasetSuite):
    bucket: Bucket

    @pytest.fixture
    def make(self, bucket: Bucket, tmp_path: Path) -> Any:
        self.bucket = bucket
        url = bucket.upload(written(tmp_path / "a.h5"))
        return lambda: HDF5Dataset(url, keys=["images", "labels/fine"])

    def delete(self, dataset: HDF5Dataset) -> str:
        self.bucket.delete("a.h5")
        return dataset.path


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_those_of_the_local_file(layout: str, userblock: int, bucket: Bucket, tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", layout, userblock)
    dataset, local = HDF5Dataset(bucket.upload(path)), HDF5Dataset(path)
    assert dataset.keys == local.keys == ["images", "labels/fine", "names"] and len(dataset) == ROWS
    assert dataset.chunk_sizes == local.chunk_sizes
    for index in (0, 41, -1):
        found = dataset[index]
        assert np.array_equal(found["images"], IMAGES[index]) and found["images"].flags.writeable
        assert (found["labels/fine"], found["names"]) == (range(ROWS)[index], f"é{range(ROWS)[index]}")
    of_numbers = HDF5Dataset(dataset.path, keys=["images"])
    order = np.random.default_rng(1).integers(0, ROWS, 80)
    out = {"images": np.empty((80, 40, 30), np.uint8)}
    assert of_numbers.gather(order, out) is None and np.array_equal(out["images"], IMAGES[order])


@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_shuffled_epoch_resumes_in_its_middle(birth: str, url: str) -> None:
    def loader() -> Any:
        options = {"batch_size": 8, "shuffle": True, "seed": 4, "num_workers": 2, "multiprocessing_context": birth}
        return DataLoader(HDF5Dataset(url, keys=["images", "labels/fine"]), output="numpy", **options)

    with loader() as first, loader() as second:
        batches = iter(first)
        begin = [next(batches) for _ in range(3)]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        all_of = begin + list(second)
    labels = np.concatenate([batch["labels/fine"] for batch in all_of])
    assert sorted(labels) == list(range(ROWS)) and list(labels) != sorted(labels)
    assert np.array_equal(np.concatenate([batch["images"] for batch in all_of]), IMAGES[labels])


def test_each_chunk_is_one_request(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    settings = {"chunks": (5, 40, 30), "compression": "gzip"}
    path = tmp_path / "a.h5"
    data = np.random.default_rng(0).integers(0, 256, (500, 40, 30), np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=data, **settings)
    dataset = HDF5Dataset(bucket.upload(path), storage_options=faults.options)
    rows = np.array([3, 303, 4, 300, 101])
    out = {"images": np.empty((5, 40, 30), np.uint8)}
    faults.plan()
    assert dataset.gather(rows, out) is None and np.array_equal(out["images"], data[rows])
    requests = faults.requests()
    with h5py.File(path) as file:
        places = [file["images"].id.get_chunk_info_by_coord((row, 0, 0)) for row in (0, 300, 100)]
    ranges = {wanted for _, _, wanted in requests}
    assert {f"bytes={each.byte_offset}-{each.byte_offset + each.size - 1}" for each in places} <= ranges
    assert len(requests) < 10, requests


def test_faults_lose_no_row(bucket: Bucket, faults: Faults, url: str) -> None:
    dataset = HDF5Dataset(url, keys=["images", "labels/fine"], storage_options=faults.options)
    faults.plan("500", "cut", "", "short", "503", "", "cut", "500")
    with DataLoader(dataset, batch_size=8, num_workers=2, output="numpy") as loader:
        batches = list(loader)
    assert np.array_equal(np.concatenate([batch["images"] for batch in batches]), IMAGES)


@pytest.mark.parametrize("layout", ["in one piece", "gzip"])
def test_file_that_is_gone_or_changed_is_named(layout: str, bucket: Bucket, tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", layout)
    url = bucket.upload(path)
    dataset = HDF5Dataset(url, keys=["images"])
    with pytest.warns(StokerWarning):
        bucket.put("a.h5", path.read_bytes() + b"\0")
        with DataLoader(dataset, batch_size=4, num_workers=1, on_error="skip", max_error_rate=1.0) as loader:
            assert list(loader) == []
            assert "was changed since" in str(loader.report())
    with pytest.raises(FileChangedError, match=url):
        dataset[0]
    bucket.delete("a.h5")
    with pytest.raises(FileNotFoundError, match=f"^{url}: there is no such bucket or object"):
        dataset[0]
    with pytest.raises(FileNotFoundError, match=f"^{url}: there is no such bucket or object"):
        HDF5Dataset(url)


def test_bad_places(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        bucket.put(name, b"no HDF5" * 100)
    with pytest.raises(HDF5Error, match=rf"^{bucket.url('a.h5')} \(700 bytes\) cannot be opened"):
        HDF5Dataset(bucket.url("a.h5"))
    with pytest.raises(ValueError, match=r"\*\.h5 leads to 2 files"):
        HDF5Dataset(bucket.url("*.h5"))
    with pytest.raises(ValueError, match=r"^ftp://host/a is a URL, and HDF5 files take local paths only"):
        HDF5Dataset("ftp://user:secret@host/a")


def test_signature_is_in_no_text(bucket: Bucket, url: str) -> None:
    signed = f"{bucket.http('a.h5')}?X-Signature=the-secret"
    dataset = pickle.loads(pickle.dumps(HDF5Dataset(signed)))
    assert dataset[7]["labels/fine"] == 7 and dataset.path == bucket.http("a.h5")
    assert "the-secret" not in dataset.describe(3) + repr(dataset)


@pytest.mark.parametrize("ends", ["", "import os\nif os.fork():\n    assert os.wait()[1] == 0"])
def test_program_ends_while_the_file_is_open(ends: str, url: str) -> None:
    """The library asks for the file when it ends: not behind the end of the interpreter."""
    program = f"import stoker\ndataset = stoker.HDF5Dataset({url!r})\nassert dataset[3]['labels/fine'] == 3\n{ends}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_cached_rows_are_read_from_the_disk(bucket: Bucket, faults: Faults, url: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": 1 << 30, "storage_options": faults.options}
    for _ in range(2):
        faults.plan()
        dataset = HDF5Dataset(url, **options)
        assert all(np.array_equal(dataset[index]["images"], IMAGES[index]) for index in range(ROWS))
    assert {method for method, _, _ in faults.requests()} <= {"HEAD"}


@pytest.mark.parametrize("layout", ["in one piece", "gzip"])
def test_local_file_is_read_through_a_cache(layout: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", layout)
    dataset = HDF5Dataset(path, cache=tmp_path / "cache", cache_size=1 << 30)
    assert all(np.array_equal(dataset[index]["images"], IMAGES[index]) for index in range(ROWS))
    assert dataset.path == str(path) and any((tmp_path / "cache").rglob("*"))
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(FileChangedError, match=r"a\.h5"):
        pickle.loads(pickle.dumps(dataset))[0]
