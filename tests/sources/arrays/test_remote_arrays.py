"""Rows of array files that lie in object stores."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import ArrayFileError, FileChangedError, ObjectStoreError, SchemaMismatchError
from stoker.loader.dataloader import DataLoader
from stoker.sources.arrays.dataset import ArrayDataset
from stoker.testing.datasets import DatasetSuite
from stoker.testing.gather import GatherSuite
from tests.sources.object_servers import Bucket, Faults

ROWS = np.random.default_rng(0).random((300, 40), np.float32)


def npy_of(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz_of(compressed: bool, **arrays: Any) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


@pytest.fixture
def url(bucket: Bucket) -> str:
    return bucket.put("a.npy", npy_of(ROWS))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["npy", "npz", "compressed"], scope="class")
class TestRemoteArrays(DatasetSuite):
    bucket: Bucket

    @pytest.fixture
    def make(self, bucket: Bucket, kind: str) -> Any:
        self.bucket = bucket
        for name, rows in (("a", ROWS[:7]), ("b", ROWS[7:12])):
            data = npy_of(rows) if kind == "npy" else npz_of(kind == "compressed", x=rows, y=np.arange(len(rows)))
            bucket.put(f"{name}.{'npy' if kind == 'npy' else 'npz'}", data)
        return lambda: ArrayDataset(bucket.url("*"))

    def delete(self, dataset: Any) -> str:
        if any(stored.member for file in dataset._files for stored in file.arrays.values()):
            pytest.skip("rows are in memory")
        for url in dataset.paths:
            self.bucket.delete(url.rpartition("/")[2])
        return self.bucket.url()


class TestGatheredRemotely(GatherSuite):
    @pytest.fixture
    def dataset(self, bucket: Bucket) -> Any:
        parts = {"a": ROWS[:20], "b": ROWS[20:33]}
        urls = [bucket.put(f"{name}.npz", npz_of(False, x=rows, y=rows[:, 0] > 0.5)) for name, rows in parts.items()]
        dataset = ArrayDataset(urls)
        yield dataset
        dataset._files[0].storage.close()  # type: ignore[union-attr]  # pytest keeps it longer


def test_every_format(bucket: Bucket, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    swapped = ROWS.astype(">f8")
    plain = {
        bucket.put("a.npy", npy_of(ROWS)): ({}, ROWS),
        bucket.put("b.npy", npy_of(swapped)): ({}, ROWS.astype("f8")),
        bucket.put("c.npy", npy_of(np.arange(300))): ({}, np.arange(300)),
        bucket.put("d.bin", b"head" + ROWS.tobytes()): ({"dtype": "f4", "shape": 40, "offset": 4}, ROWS),
    }
    for url, (options, expected) in plain.items():
        dataset = ArrayDataset(url, **options)
        assert len(dataset) == 300 and dataset.paths == [url]
        for index in (0, 299, -2):
            row = dataset[index]
            assert row.dtype == expected.dtype and row.dtype.isnative and np.array_equal(row, expected[index])
    named = {
        bucket.put("e.npz", npz_of(False, x=ROWS, y=np.arange(300))),
        bucket.put("f.npz", npz_of(True, x=ROWS, y=np.arange(300))),
        bucket.put("g.safetensors", safetensors.save({"x": ROWS, "y": np.arange(300)})),
    }
    for url in named:
        sample = ArrayDataset(url, keys=["y", "x"])[7]
        assert list(sample) == ["y", "x"] and sample["y"] == 7 and np.array_equal(sample["x"], ROWS[7])


@pytest.mark.parametrize("birth", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_shuffled_batches_are_those_of_the_local_files(birth: str, bucket: Bucket, tmp_path: Path) -> None:
    for name, rows in (("a", ROWS[:100]), ("b", ROWS[100:])):
        np.save(tmp_path / f"{name}.npy", rows)
        bucket.upload(tmp_path / f"{name}.npy")
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 1, "output": "numpy"}
    expected = list(DataLoader(ArrayDataset(str(tmp_path / "*.npy")), **options))
    dataset = ArrayDataset(bucket.url("*.npy"))
    assert dataset.describe(105) == f"sample 105: row 5 in {bucket.url('b.npy')}"
    with DataLoader(dataset, num_workers=2, multiprocessing_context=birth, **options) as loader:
        found = list(loader)
    assert len(found) == len(expected) and all(map(np.array_equal, found, expected))


def test_rows_near_each_other_are_read_together(bucket: Bucket, faults: Faults) -> None:
    rows = np.arange(4000 * 2048, dtype=np.float32).reshape(4000, 2048)
    url = bucket.put("a.npy", npy_of(rows))
    dataset = ArrayDataset(url, storage_options=faults.options)
    assert len(faults.requests()) <= 2
    for indices, most in (([5, 7, 6, 8, 5], 1), ([0, 4, 8, 3999], 2), (list(range(0, 4000, 400)), 10)):
        faults.plan()
        out = np.empty((len(indices), 2048), np.float32)
        assert dataset.gather(np.array(indices), out) is None
        assert np.array_equal(out, rows[indices])
        assert len(set(map(tuple, faults.requests()))) == most  # a busy machine may repeat one


def test_many_bytes_are_read_in_parts(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("stoker.sources.arrays.stored._AT_ONCE", 1000)
    monkeypatch.setattr("stoker.sources.arrays.stored._GAP", 0)
    out = np.empty((50, 40), np.float32)
    indices = np.random.default_rng(1).integers(-300, 300, 50)
    assert ArrayDataset(url).gather(indices, out) is None
    assert np.array_equal(out, ROWS[indices])


def test_store_that_fails_is_an_error_of_the_sample(url: str, faults: Faults) -> None:
    dataset = ArrayDataset(url, storage_options=faults.options)
    faults.plan("500", "cut", "short")
    assert np.array_equal(dataset[3], ROWS[3])
    faults.plan(*["500"] * 20)
    with pytest.raises(ObjectStoreError, match=url):
        dataset[3]
    faults.plan()
    assert np.array_equal(dataset[3], ROWS[3])


def test_file_that_changes_is_an_error(url: str, bucket: Bucket) -> None:
    dataset = ArrayDataset(url)
    assert np.array_equal(dataset[1], ROWS[1])
    bucket.put("a.npy", npy_of(ROWS[:200]))
    with pytest.raises(FileChangedError, match=rf"{url}.* was changed since"):
        dataset[2]
    assert len(ArrayDataset(url)) == 200


def test_cache_keeps_rows(url: str, bucket: Bucket, tmp_path: Path) -> None:
    cache: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": 1 << 30}
    local = tmp_path / "b.npy"
    np.save(local, ROWS)
    remote, cached = ArrayDataset(url, **cache), ArrayDataset(local, **cache)
    assert np.array_equal(remote[3], ROWS[3]) and np.array_equal(cached[3], ROWS[3])
    bucket.delete("a.npy")
    assert np.array_equal(remote[3], ROWS[3])


def test_names_with_characters_of_urls(bucket: Bucket) -> None:
    bucket.put("q/x#1.npy", npy_of(ROWS))
    bucket.put("q/y?2.npy", npy_of(ROWS + 1))
    dataset = ArrayDataset(bucket.url("q/*.npy"))
    assert np.array_equal(dataset[3], ROWS[3]) and np.array_equal(dataset[303], ROWS[3] + 1)


def test_local_files_are_mapped_beside_a_cache(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(ROWS))
    dataset = ArrayDataset(tmp_path / "a.npy", cache=tmp_path / "cache", cache_size=1 << 30)
    assert np.array_equal(dataset[3], ROWS[3])


def test_bad_files_are_named(bucket: Bucket, url: str) -> None:
    for name, data, message in [
        ("empty.npy", b"", r"empty\.npy is empty"),
        ("text.npy", b"no array" * 9, r"text\.npy \(72 bytes\) has no header"),
        ("cut.npy", npy_of(ROWS)[:500], r"cut\.npy is truncated"),
        ("columns.npy", npy_of(np.asfortranarray(ROWS)), r"columns\.npy is stored column by column .* copy"),
        ("cut.npz", npz_of(False, x=ROWS)[:-30], r"cut\.npz .* cannot be read"),
        ("unknown.dat", b"1234", r"the format of .*unknown\.dat is unknown"),
    ]:
        with pytest.raises(ArrayFileError, match=message):
            ArrayDataset(bucket.put(f"bad/{name}", data))
    with pytest.raises(FileNotFoundError, match=r"missing\.npy"):
        ArrayDataset([url, bucket.url("missing.npy")])
    with pytest.raises(SchemaMismatchError, match="rows differ"):
        ArrayDataset([url, bucket.put("f8.npy", npy_of(ROWS.astype("f8")))])


def test_secrets_of_a_url_are_not_shown(url: str, bucket: Bucket) -> None:
    dataset = ArrayDataset(bucket.http("a.npy") + "?X-Signature=secret")
    assert np.array_equal(dataset[3], ROWS[3])
    assert "secret" not in f"{dataset.paths} {dataset.describe(0)} {dataset!r} {dataset._files}"
