"""`az://` and `gs://` against emulators of the vendors' stores."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import FileChangedError
from stoker.loader.dataloader import DataLoader
from stoker.sources.lines.text_lines import TextLineDataset, TextLineStream
from stoker.sources.object_store import ObjectStorage
from stoker.sources.parquet.dataset import ParquetDataset
from stoker.sources.places import places_of
from stoker.sources.tar.dataset import TarDataset
from stoker.sources.tar.index import index_shards
from stoker.sources.tar.stream import TarStream
from tests.sources.cloud_emulators import ACCOUNT, KEY, Cloud, Container, GoogleBucket
from tests.sources.tar.shards import numbers_of, write_numbered

DATA = bytes(range(256)) * 400


@pytest.fixture
def cloud(emulator: Callable[[], Cloud], no_store_named: None, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A container or bucket, to which the environment leads by the vendor's names."""
    found = emulator()
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def shards(cloud: Cloud, tmp_path: Path) -> list[str]:
    """Three shards of 5, 1 and 8 samples."""
    paths = map(Path, write_numbered(tmp_path, [5, 1, 8], size=5000))
    return [cloud.put(f"shards/{path.name}", path.read_bytes()) for path in paths]


@pytest.mark.parametrize("name", ["plain.bin", "deep/er/a b.bin", "ümlaut+%41&=.bin"])
def test_object_is_read_by_position(name: str, cloud: Cloud) -> None:
    url = cloud.put(name, DATA)
    storage = ObjectStorage()
    file = storage.open(url)
    assert (file.version.size, file.version.tag != "") == (len(DATA), True)
    assert file.read(10, 500) == DATA[10:510] and file.read(len(DATA) - 5, 100) == DATA[-5:]
    assert file.read_ranges([(9, 12), (0, 4)]) == [DATA[9:12], DATA[:4]]
    assert storage.read(url, 100, 28) == DATA[100:128]
    assert storage.read(url, len(DATA), 28) == b""
    assert storage.read_whole(url) == DATA
    assert storage.names(cloud.url()) == [name]


def test_empty_object(cloud: Cloud) -> None:
    url = cloud.put("empty", b"")
    storage = ObjectStorage()
    assert storage.read_whole(url) == storage.open(url).read(0, 10) == storage.read(url, 0, 10) == b""


def test_changed_object_is_recognized(cloud: Cloud) -> None:
    file = ObjectStorage().open(cloud.put("a", b"old"))
    cloud.put("a", b"new")
    with pytest.raises(FileChangedError, match=cloud.url("a")):
        file.read(0, 3)


def test_places_are_listed(cloud: Cloud) -> None:
    for name in ("a/s0.tar", "a/s1.tar", "a/s1.txt", "a/b/s2.tar"):
        cloud.put(name, b"")

    def names(pattern: str) -> list[str]:
        return [url.removeprefix(cloud.url()) for url in places_of(cloud.url(pattern), "shards")]

    assert names("a/*.tar") == ["a/s0.tar", "a/s1.tar"]
    assert names("a/**/*.tar") == ["a/b/s2.tar", "a/s0.tar", "a/s1.tar"]
    with pytest.raises(FileNotFoundError, match=r"no file matches .*a/\*\.zip$"):
        names("a/*.zip")


@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_shuffled_epoch_resumes_in_its_middle(birth: str, cloud: Cloud, shards: list[str]) -> None:
    def loader() -> Any:
        options = {"batch_size": 3, "shuffle": True, "seed": 4, "num_workers": 2, "multiprocessing_context": birth}
        return DataLoader(TarDataset(cloud.url("shards/*.tar")), **options)

    with loader() as first, loader() as second:
        batches = iter(first)
        begin = [next(batches) for _ in range(2)]
        state = json.dumps(first.state_dict())
        second.load_state_dict(json.loads(state))
        rest = list(second)
    keys = [key for batch in begin + rest for key in batch["__key__"]]
    assert sorted(keys) == [f"{number:05d}" for number in range(14)] and keys != sorted(keys)
    assert not any(secret in state for secret in cloud.secrets)


def test_stream_resumes_in_a_shard(shards: list[str]) -> None:
    stream = iter(TarStream(shards))
    first = [next(stream) for _ in range(6)]
    rest = TarStream(shards)
    rest.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert numbers_of([*first, *rest]) == list(range(14))


def test_parquet_files_are_read(cloud: Cloud, tmp_path: Path) -> None:
    from tests.sources.parquet import tables

    for path in map(Path, tables.write_numbered(tmp_path, [4, 0, 7])):
        cloud.put(path.name, path.read_bytes())
    dataset = ParquetDataset(cloud.url("*.parquet"))
    with DataLoader(dataset, batch_size=None, num_workers=2, collate_fn=lambda sample: sample) as loader:
        assert tables.numbers_of(loader) == list(range(11))


def test_lines_are_read(cloud: Cloud) -> None:
    lines = [f"line {number}" for number in range(3000)]
    url = cloud.put("a.txt", "".join(f"{line}\n" for line in lines).encode())
    assert list(TextLineStream(url)) == lines
    dataset = TextLineDataset(url)
    assert len(dataset) == 3000 and [dataset[index] for index in (2999, 0, 1234)] == [
        lines[2999],
        lines[0],
        lines[1234],
    ]


def test_options_suffice(cloud: Cloud, shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in cloud.environment:
        monkeypatch.delenv(name)
    dataset = TarDataset(cloud.url("shards/*.tar"), storage_options=cloud.options)
    with DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list) as loader:
        assert numbers_of(sample for batch in loader for sample in batch) == list(range(14))
    assert not any(secret in repr(dataset) + dataset.describe(3) for secret in cloud.secrets)


@pytest.mark.parametrize("name", ["missing", "missing/deep"])
def test_missing_object(name: str, cloud: Cloud) -> None:
    for read in (ObjectStorage().open, ObjectStorage().read_whole):
        with pytest.raises(FileNotFoundError, match=f"^{cloud.url(name)}: there is no such bucket or object"):
            read(cloud.url(name))


def test_missing_bucket(cloud: Cloud) -> None:
    url = f"{cloud.url().partition('://')[0]}://no-such-bucket/a"
    for read in (ObjectStorage().open, ObjectStorage().read_whole):
        with pytest.raises(FileNotFoundError, match=f"^{url}: there is no such bucket or object"):
            read(url)


def test_deleted_object_names_its_sample(cloud: Cloud, shards: list[str]) -> None:
    dataset = TarDataset(shards)
    cloud.delete("shards/s001.tar")
    with pytest.raises(FileNotFoundError, match=r"shards/s001\.tar: there is no such bucket or object"):
        dataset[5]


class TestAzure:
    """What only Azure has."""

    @pytest.fixture(autouse=True)
    def _object(self, container: Container) -> None:
        self.container = container
        self.url = container.put("a", DATA)

    def test_missing_container_is_not_listed(self) -> None:
        with pytest.raises(FileNotFoundError, match=r"^az://none/\*: there is no such bucket or object"):
            places_of("az://none/*", "files", self.container.options)

    @pytest.mark.parametrize("scheme", ["abfs", "abfss"])
    def test_account_comes_with_the_url(self, scheme: str) -> None:
        options = {name: value for name, value in self.container.options.items() if name != "account_name"}
        url = f"{scheme}://{self.container.name}@{ACCOUNT}.dfs.core.windows.net/a"
        assert ObjectStorage(options).read_whole(url) == DATA

    def test_emulator_by_its_variable(self, monkeypatch: pytest.MonkeyPatch, azure_port: int) -> None:
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{azure_port}")
        assert ObjectStorage().read_whole(self.url) == DATA

    def test_connection_string(self, monkeypatch: pytest.MonkeyPatch) -> None:
        endpoint = self.container.options["endpoint"]
        monkeypatch.setenv(
            "AZURE_STORAGE_CONNECTION_STRING",
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};",
        )
        assert ObjectStorage().read_whole(self.url) == DATA

    @pytest.mark.parametrize("key", ["d3Jvbmcga2V5IG9mIHRoZSBhY2NvdW50", "no base64 at all!"])
    def test_wrong_key(self, key: str) -> None:
        storage = ObjectStorage({**self.container.options, "account_key": key})
        for read in (storage.open, storage.read_whole, storage.names):
            with pytest.raises((PermissionError, ValueError), match=r"az") as caught:
                read(self.url)
            assert key not in f"{caught.value!r} {storage!r}" and "\n" not in str(caught.value)

    def test_signature(self, monkeypatch: pytest.MonkeyPatch) -> None:
        options = {name: value for name, value in self.container.options.items() if name != "account_key"}
        storage = ObjectStorage({**options, "sas_token": "sv=2021-08-06&sr=c&sig=the-secret&sp=rl"})
        with pytest.raises(PermissionError, match=r"az://.*access was refused") as caught:
            storage.read_whole(self.url)
        assert "the-secret" not in f"{caught.value!r} {storage!r}"

    def test_no_account(self) -> None:
        with pytest.raises(ValueError, match=r"do not suffice for az.*(?i:account)"):
            ObjectStorage().read_whole(self.url)

    def test_written_index_is_used(self, tmp_path: Path) -> None:
        (path,) = write_numbered(tmp_path, [5])
        url = self.container.put("s.tar", Path(path).read_bytes())
        options = self.container.options
        assert index_shards(url, storage_options=options) == [f"{url}.index"]
        assert ObjectStorage(options).names(self.container.url()) == ["a", "s.tar", "s.tar.index"]
        assert len(TarDataset(url, storage_options=options)) == 5


class TestGoogle:
    """What only Google's store has."""

    def test_emulator_without_a_scheme(
        self, google_bucket: GoogleBucket, google_port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{google_port}")
        assert ObjectStorage().read_whole(google_bucket.put("a", DATA)) == DATA

    def test_service_account(self, google_bucket: GoogleBucket, google_port: int, tmp_path: Path) -> None:
        url = google_bucket.put("a", DATA)
        key = {"gcs_base_url": f"http://127.0.0.1:{google_port}", "disable_oauth": True}
        path = tmp_path / "account.json"
        path.write_text(json.dumps({**key, "client_email": "", "private_key": "", "private_key_id": ""}))
        options = {"service_account": os.fspath(path), "client_options": {"allow_http": True}}
        assert ObjectStorage(options).read_whole(url) == DATA

    def test_damaged_service_account(self, google_bucket: GoogleBucket, tmp_path: Path) -> None:
        path = tmp_path / "account.json"
        for text in ("no JSON the-secret", '{"private_key": "the-secret"}'):
            path.write_text(text)
            with pytest.raises(ValueError, match="do not suffice for gs") as caught:
                ObjectStorage({"service_account": os.fspath(path)}).read_whole(google_bucket.url("a"))
            assert "the-secret" not in f"{caught.value!r}"
