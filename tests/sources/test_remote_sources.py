"""Tar shards, Parquet files and images of an object store, by their URLs."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import FileChangedError, ShardIndexError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.image_files import ImageFiles
from stoker.sources.parquet.dataset import ParquetDataset
from stoker.sources.parquet.stream import ParquetStream
from stoker.sources.places import places_of
from stoker.sources.tar.dataset import TarDataset
from stoker.sources.tar.index import index_shards
from stoker.sources.tar.stream import TarStream
from stoker.testing.datasets import DatasetSuite
from tests.sources.object_servers import Bucket, Faults
from tests.sources.parquet import tables
from tests.sources.tar.shards import numbers_of, write_numbered


@pytest.fixture
def shards(bucket: Bucket, tmp_path: Path) -> list[str]:
    """Three shards of 5, 1 and 8 samples."""
    return [bucket.upload(Path(path)) for path in write_numbered(tmp_path, [5, 1, 8], size=5000)]


class _Remote(DatasetSuite):
    bucket: Bucket

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def delete(self, dataset: Any) -> str:
        for url in getattr(dataset, "files", None) or dataset.shards:
            self.bucket.delete(url.rpartition("/")[2])
        return self.bucket.url()


@pytest.mark.long
class TestRemoteTarDataset(_Remote):
    @pytest.fixture
    def make(self, shards: list[str]) -> Any:
        return lambda: TarDataset(shards)


@pytest.mark.long
class TestRemoteTarStream(_Remote):
    @pytest.fixture
    def make(self, shards: list[str]) -> Any:
        return lambda: TarStream(shards)


@pytest.mark.long
class TestRemoteParquetDataset(_Remote):
    @pytest.fixture
    def make(self, bucket: Bucket, tmp_path: Path) -> Any:
        urls = [bucket.upload(Path(path)) for path in tables.write_numbered(tmp_path, [5, 1, 8])]
        return lambda: ParquetDataset(urls)


def test_places_are_listed(bucket: Bucket) -> None:
    for name in ("a/s0.tar", "a/s1.tar", "a/s1.txt", "a/b/s2.tar", "c{x}.tar"):
        bucket.put(name, b"")

    def names(*patterns: str) -> list[str]:
        return [url.removeprefix(bucket.url()) for url in places_of([bucket.url(each) for each in patterns], "shards")]

    assert names("a/*.tar") == ["a/s0.tar", "a/s1.tar"]
    assert names("a/**/*.tar") == ["a/b/s2.tar", "a/s0.tar", "a/s1.tar"]
    assert names("a/s[!0].t??") == ["a/s1.tar", "a/s1.txt"]
    assert names("*/*/*") == ["a/b/s2.tar"]
    assert names("a/s{0..2}.tar", "c{x}.tar") == ["a/s0.tar", "a/s1.tar", "a/s2.tar", "c{x}.tar"]
    with pytest.raises(FileNotFoundError, match=r"no file matches s3://.*a/\*\.zip$"):
        names("a/*.zip")
    with pytest.raises(ValueError, match=r"is a folder.*a/\*"):
        names("a/")
    with pytest.raises(ValueError, match="web servers cannot be listed"):
        places_of("https://example.com/*.tar", "shards")


@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_shuffled_epoch_resumes_in_its_middle(birth: str, shards: list[str]) -> None:
    def loader() -> Any:
        options = {"batch_size": 3, "shuffle": True, "seed": 4, "num_workers": 2, "multiprocessing_context": birth}
        return DataLoader(TarDataset(shards), **options)

    with loader() as first, loader() as second:
        batches = iter(first)
        begin = [next(batches) for _ in range(2)]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        rest = list(second)
    keys = [key for batch in begin + rest for key in batch["__key__"]]
    assert sorted(keys) == [f"{number:05d}" for number in range(14)] and keys != sorted(keys)


def test_stream_resumes_in_a_shard(shards: list[str]) -> None:
    stream = iter(TarStream(shards))
    first = [next(stream) for _ in range(6)]
    rest = TarStream(shards)
    rest.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert numbers_of([*first, *rest]) == list(range(14))
    assert first[0]["__url__"] == shards[0]


def test_stream_is_read_in_few_requests(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [300], size=20_000)
    url = bucket.upload(Path(path))
    stream = TarStream([url] * 32, storage_options=faults.options)
    faults.plan()
    assert numbers_of(stream.shard(32, 0)) == list(range(300))
    requests = faults.requests()
    ranges = [tuple(map(int, wanted.removeprefix("bytes=").split("-"))) for _, _, wanted in requests if wanted]
    size = os.path.getsize(path)
    assert len(requests) < 25 and sum(end - begin + 1 for begin, end in ranges) < size + 1000, requests


def test_share_is_of_whole_shards_where_that_can_be(bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    urls = [bucket.upload(Path(path)) for path in write_numbered(tmp_path, [6, 6, 6, 6], size=50_000)]
    stream = TarStream(urls, storage_options=faults.options)
    faults.plan()
    assert numbers_of(stream.shard(2, 0)) == [*range(6), *range(12, 18)]
    assert {path.rpartition("/")[2] for _, path, _ in faults.requests()} >= {"s000.tar", "s002.tar"}
    assert not {path for _, path, _ in faults.requests() if "s001" in path or "s003" in path}
    found = [numbers_of(stream.shard(8, index)) for index in range(8)]
    assert sorted(number for each in found for number in each) == list(range(24)) and all(found)
    shuffled = TarStream(urls, shuffle=True, seed=3)
    numbers = numbers_of(shuffled)
    assert sorted(numbers) == list(range(24)) and numbers != list(range(24))
    assert all(
        numbers[begin : begin + 6] == list(range(numbers[begin], numbers[begin] + 6)) for begin in range(0, 24, 6)
    )


def test_faults_lose_no_sample(bucket: Bucket, faults: Faults, shards: list[str]) -> None:
    dataset = TarDataset(shards, storage_options=faults.options)
    faults.plan("500", "cut", "", "short", "503", "", "cut", "500")
    with DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list) as loader:
        assert numbers_of(sample for batch in loader for sample in batch) == list(range(14))


def test_missing_sample_goes_to_the_error_policy(bucket: Bucket, shards: list[str]) -> None:
    dataset = TarDataset(shards)
    bucket.delete(shards[1].rpartition("/")[2])
    with (
        pytest.warns(StokerWarning),
        DataLoader(
            dataset, batch_size=None, num_workers=1, collate_fn=lambda sample: sample, on_error="skip", max_errors=2
        ) as loader,
    ):
        assert numbers_of(loader) == [*range(5), *range(6, 14)]
        assert "no such bucket or object" in str(loader.report())


def test_index_is_kept_in_the_cache_folder(shards: list[str], own_cache: Path, faults: Faults) -> None:
    options = {"storage_options": faults.options}
    assert numbers_of(TarDataset(shards, **options)[index] for index in range(14)) == list(range(14))
    assert len(list((own_cache / "stoker" / "indexes").glob("s00?.tar.*.index"))) == 3
    faults.plan()
    assert len(TarDataset(shards, **options)) == 14
    assert {method for method, _, _ in faults.requests()} == {"HEAD"}, "nothing is read again"


def test_index_is_uploaded_and_used(bucket: Bucket, shards: list[str], own_cache: Path) -> None:
    assert index_shards(shards) == [f"{url}.index" for url in shards] == index_shards(shards)
    bucket.put("s000.tar.index", b"damaged")
    bucket.put("s001.tar.index", b'{"format": "stoker tar index 1" damaged')
    with pytest.raises(ShardIndexError, match=r"s001\.tar\.index is not a whole index"):
        TarDataset(shards)
    index_shards(shards, overwrite=True)
    shutil.rmtree(own_cache / "stoker")
    assert len(TarDataset(shards)) == 14
    assert len(list(own_cache.rglob("*.index"))) == 3, "copies, so that they are not asked for each time"
    for shard in shards:
        bucket.delete(shard.rpartition("/")[2] + ".index")
    assert len(TarDataset(shards)) == 14
    assert index_shards(shards) == [f"{url}.index" for url in shards]


def test_index_of_the_local_copy_is_used(bucket: Bucket, tmp_path: Path, faults: Faults) -> None:
    (path,) = write_numbered(tmp_path, [5])
    index_shards(path)
    bucket.upload(Path(f"{path}.index"))
    url = bucket.upload(Path(path))
    assert numbers_of(TarStream(url)) == list(range(5))
    dataset = TarDataset(url, storage_options=faults.options)
    assert numbers_of(dataset[index] for index in range(5)) == list(range(5))
    ranges = [wanted for method, _, wanted in faults.requests() if method == "GET"]
    assert ranges == [None, *(f"bytes={begin}-{begin + 2047}" for begin in range(0, 10240, 2048))], "the index, samples"


def test_index_folder_is_used(shards: list[str], tmp_path: Path, own_cache: Path) -> None:
    folder = tmp_path / "indexes"
    made = index_shards(shards, index_folder=folder)
    assert sorted(made) == sorted(map(str, folder.iterdir()))
    assert len(TarDataset(shards, index_folder=folder)) == 14
    assert numbers_of(TarStream(shards, index_folder=folder)) == list(range(14))
    assert not list(own_cache.rglob("*.index"))


def test_index_of_a_replaced_shard_is_made_anew(bucket: Bucket, tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [5])
    url = bucket.upload(Path(path))
    dataset = TarDataset(url)
    write_numbered(tmp_path, [7])
    bucket.upload(Path(path))
    with pytest.raises((FileChangedError, ShardIndexError), match=url):
        dataset[0]
    assert len(TarDataset(url)) == 7


def test_signed_urls_are_shown_without_their_signature(bucket: Bucket, tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [5])
    bucket.upload(Path(path))
    url = f"{bucket.http('s000.tar')}?X-Signature=secret"
    dataset = TarDataset(url)
    assert dataset[4]["__url__"] == dataset.shards[0] == bucket.http("s000.tar")
    assert "secret" not in dataset.describe(2) + repr(dataset)
    assert numbers_of(TarStream(url)) == list(range(5))


@pytest.mark.parametrize("kind", [ParquetDataset, ParquetStream])
def test_rows_are_read_in_few_requests(kind: Any, bucket: Bucket, faults: Faults, tmp_path: Path) -> None:
    urls = [bucket.upload(Path(path)) for path in tables.write_numbered(tmp_path, [4, 0, 7])]
    dataset = kind(bucket.url("f{000..002}.parquet"), storage_options=faults.options)
    assert dataset.files == urls
    faults.plan()
    rows = dataset if kind is ParquetStream else (dataset[index] for index in range(len(dataset)))
    assert tables.numbers_of(rows) == list(range(11))
    requests = faults.requests()
    assert len(requests) == 7, f"one for each of 2 files, and of 5 row groups: {requests}"


def test_images_are_read_by_url(bucket: Bucket, save_grey: Callable[[int], bytes]) -> None:
    urls = [bucket.put(f"{number}.png", save_grey(number)) for number in range(6)]
    dataset = ImageFiles([*urls[:3], bucket.http("3.png")], [0, 1, 2, 3], transform=np.asarray)
    with DataLoader(dataset, batch_size=2, num_workers=2, output="numpy", threads_per_worker=2) as loader:
        assert [int(image.max()) for images, _ in loader for image in images] == [0, 1, 2, 3]
    assert dataset.describe(1) == urls[1]
    by_root = ImageFiles([f"{number}.png" for number in range(6)], root=bucket.url(), transform=np.asarray)
    assert int(by_root[5][0].max()) == 5
    bucket.delete("4.png")
    with pytest.raises(FileNotFoundError, match=f"^{urls[4]}: there is no such"):
        by_root[4]


@pytest.fixture
def save_grey() -> Callable[[int], bytes]:
    image = pytest.importorskip("PIL.Image")

    def saved(value: int) -> bytes:
        file = io.BytesIO()
        image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(file, "PNG")
        return file.getvalue()

    return saved


def test_cached_epoch_is_read_from_the_disk(bucket: Bucket, shards: list[str], tmp_path: Path) -> None:
    images = [bucket.put(f"{number}.bin", bytes([number]) * 9) for number in range(3)]
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": 1 << 30}
    streams = [TarDataset(shards, **options), TarStream(shards, **options), ImageFiles(images, loader=len, **options)]
    for stream in streams:
        first = [repr(sample) for sample in DataLoader(stream, batch_size=None, num_workers=1)]
        held = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
        assert len(first) in (14, 3) and held > 0
        assert [repr(sample) for sample in DataLoader(stream, batch_size=None, num_workers=1)] == first
    assert held > sum(map(len, images))
    with pytest.raises(ValueError, match="needs a limit in bytes"):
        TarDataset(shards, cache=tmp_path / "cache")
