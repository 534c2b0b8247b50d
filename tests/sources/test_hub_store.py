from __future__ import annotations

import importlib.util
import json
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import MissingExtraError, ObjectStoreError, StateMismatchError
from stoker.loader.dataloader import DataLoader
from stoker.sources import hub_store
from stoker.sources.hub_store import HubStorage
from stoker.sources.image_files import ImageFiles
from stoker.sources.object_client import Options
from stoker.sources.parquet.dataset import ParquetDataset
from stoker.sources.places import places_of
from stoker.sources.storage import LocalStorage
from stoker.sources.storage_of import storage_of
from stoker.sources.tar.dataset import TarDataset
from stoker.sources.tar.index import index_shards
from stoker.sources.tar.stream import TarStream
from stoker.sources.urls import HubPlace, hub_fingerprint, hub_place
from tests.sources.hub_server import FIRST, SECOND, TOKEN, Hub
from tests.sources.parquet import tables
from tests.sources.tar.shards import write_numbered

DATA = bytes(range(256)) * 4000
SMALL = b"a small file"


@pytest.fixture
def client(hub: Hub) -> Iterator[Options]:
    """Options for requests in this process, to the Hub alone: obstore would start threads."""
    from huggingface_hub import close_session

    yield Options(hub.options)
    close_session()


@pytest.fixture
def shards(hub: Hub, tmp_path: Path) -> str:
    """Three shards of 5, 1 and 8 samples, named without a commit."""
    paths = write_numbered(tmp_path, [5, 1, 8], size=5000)
    hub.put({f"train/{Path(path).name}": Path(path).read_bytes() for path in paths})
    return "hf://datasets/we/data/train/s*.tar"


def test_file_is_read_by_position(hub: Hub) -> None:
    root = hub.put({"a b%+ü.bin": DATA, "small.txt": SMALL, "empty": b""})
    storage = HubStorage()
    file = storage.open(root + "a b%+ü.bin")
    assert (file.version.size, file.version.mtime_ns, len(file.version.tag)) == (len(DATA), 0, 64)
    assert file.read(10, 500) == DATA[10:510] and file.read(len(DATA) - 5, 100) == DATA[-5:]
    assert file.read(len(DATA), 1) == b"" and file.read_ranges([(9, 12), (0, 4)]) == [DATA[9:12], DATA[:4]]
    assert storage.read(root + "small.txt", 2, 5) == SMALL[2:7]
    assert storage.read_whole(root + "small.txt") == SMALL
    assert storage.open(root + "empty").read(0, 9) == b""
    with pytest.raises(ValueError, match="names no commit"):
        storage.open("hf://datasets/we/data/a")
    with pytest.raises(PermissionError, match="are read only"):
        storage.write(root + "a", b"")
    assert pickle.loads(pickle.dumps(storage)).read_whole(root + "small.txt") == SMALL


def test_addresses_and_the_token(hub: Hub) -> None:
    root = hub.put({"a.bin": DATA, "leads elsewhere": SMALL, "small": SMALL}, token=TOKEN)
    storage = HubStorage()
    file = storage.open(root + "a.bin")
    hub.plan()
    assert [file.read(begin, 5) for begin in range(9)] == [DATA[begin : begin + 5] for begin in range(9)]
    asked = [(server, method) for server, method, *_ in hub.requests()]
    assert asked == [("hub", "HEAD"), *[("other", "GET")] * 9], "the address is asked for once"
    assert [storage.read_whole(root + name) for name in ("leads elsewhere", "small")] == [SMALL, SMALL]
    tokens = {(server, token) for server, *_, token in hub.requests()}
    assert tokens == {("hub", f"Bearer {TOKEN}"), ("other", None)}, "the token is for the Hub alone"
    hub.plan(expire=True)
    assert file.read_ranges([(7, 12), (500, 700)]) == [DATA[7:12], DATA[500:700]]
    assert "HEAD" in [method for _, method, *_ in hub.requests()], "a new address"


def test_addresses_are_bounded(hub: Hub, client: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    root = hub.put({f"{number}": SMALL for number in range(6)})
    monkeypatch.setattr(hub_store, "MOST_ADDRESSES", 3)
    hub_store._ADDRESSES.close()

    def asked(names: str) -> int:
        hub.plan()
        hub_store._addresses_of(client, [root + name for name in names])
        return len(hub.requests())

    assert [asked(name) for name in "012345"] == [1] * 6
    assert [url.rpartition("/")[2] for _, url in hub_store._ADDRESSES.get()] == ["3", "4", "5"]
    assert (asked("345"), asked("0"), asked("45"), asked("3")) == (0, 1, 0, 1), "the oldest one is forgotten"


def test_given_token_overrides_that_of_the_environment(
    hub: Hub, client: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = hub.put({"a": SMALL}, token="another")
    assert hub_store.version(Options({"token": "another"}), root + "a").size == len(SMALL)
    with pytest.raises(PermissionError, match=r"hf://datasets/we/data@a+/a: access was refused \(401\): .* is gated"):
        hub_store.version(Options({"token": False}), root + "a")
    assert hub.requests()[-1][-1] is None
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HF_ENDPOINT")
    options = Options({"token": "another", "endpoint": f"http://127.0.0.1:{hub.port}/"})
    assert hub_store.version(options, root + "a").size == len(SMALL)
    assert "another" not in repr(options)


@pytest.mark.parametrize(
    ("ask", "place", "error", "says"),
    [
        ("commit", "datasets/we/gone", FileNotFoundError, "no such repository, or it is private"),
        ("commit", "datasets/we/data@dev", FileNotFoundError, "no such revision"),
        ("commit", "datasets/we/gated", PermissionError, "access was refused.*gated.*HF_TOKEN"),
        ("names", "datasets/we/gated/a", PermissionError, "access was refused.*gated.*HF_TOKEN"),
        ("version", f"datasets/we/data@{FIRST}/missing", FileNotFoundError, "no such file in the repository"),
        ("version", f"datasets/we/data@{FIRST}/folder", FileNotFoundError, "no such file in the repository"),
        ("_address", f"datasets/we/data@{FIRST}/missing", FileNotFoundError, "no such file in the repository"),
    ],
)
def test_refusals(ask: str, place: str, error: type[OSError], says: str, hub: Hub, client: Options) -> None:
    hub.put({"a": SMALL, "folder/b": SMALL})
    hub.put({"a": SMALL}, name="datasets/we/gated", token="another")
    hub.plan()
    with pytest.raises(error, match=rf"^hf://{place.rpartition('/')[0]}[^:]*: .*{says}") as caught:
        getattr(hub_store, ask)(client, f"hf://{place}")
    assert len(hub.requests()) == 1, "it is not tried again"
    told = "".join(traceback.format_exception(caught.value)) + repr(pickle.dumps(caught.value))
    assert TOKEN not in told and caught.value.__cause__ is None


def test_faults_are_tried_again(hub: Hub, client: Options) -> None:
    root = hub.put({f"{number}.bin": DATA for number in range(8)})
    hub.plan(503, 429, 0, 500, 0, 502, 0, 503, 0, 504)
    assert hub_store.commit(client, "hf://datasets/we/data") == FIRST
    names = hub_store.names(client, root)
    assert names == [f"{number}.bin" for number in range(8)]
    sizes = [version.size for version in hub_store.versions(client, [root + name for name in names])]
    assert sizes == [len(DATA)] * 8
    assert set(hub_store._addresses_of(client, [root + name for name in names])) == {root + name for name in names}
    assert len(hub.requests()) == 19


def test_lasting_fault_is_a_clear_error(hub: Hub, client: Options) -> None:
    root = hub.put({"a": SMALL})
    hub.plan(*[503] * 9)
    with pytest.raises(ObjectStoreError, match=r"a cannot be read from the Hub at http.*answers 503 \(tried 4 times"):
        hub_store.version(client, root + "a")
    options = Options({**hub.options, "endpoint": "http://user:pw@127.0.0.1:9"})
    with pytest.raises(ObjectStoreError, match=r"at http://127\.0\.0\.1:9: .*tried 4 times") as caught:
        hub_store.version(options, root + "a")
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("value", ["1", "true"])
def test_offline_is_a_clear_error(value: str, hub: Hub, client: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    for ask in (hub_store.commit, hub_store.names, hub_store.version, hub_store._address):
        with pytest.raises(ObjectStoreError, match=r"HF_HUB_OFFLINE set.*hf download"):
            ask(client, hub.root + "a")
    assert not hub.requests()


@pytest.mark.parametrize("module", ["huggingface_hub", "obstore"])
def test_missing_package_names_its_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else found(name))
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtraError, match=r"stoker\[hub\]"):
        places_of("hf://datasets/we/data/a", "files")


def test_token_for_two_kinds_of_stores_is_refused(hub: Hub) -> None:
    with pytest.raises(ValueError, match="would be sent to both"):
        storage_of(["s3://b/a", hub.root + "a"], {"token": "x"})
    storage_of(["s3://b/a", hub.root + "a"], {"key": "x"})
    assert isinstance(storage_of("/a", {"token": "x"}), LocalStorage)


def test_local_and_hub_are_read_together(hub: Hub, tmp_path: Path) -> None:
    local = tmp_path / "a"
    local.write_bytes(b"local")
    url = hub.put({"a": SMALL}) + "a"
    both = storage_of([str(local), url])
    assert [both.read(place, 0, 99) for place in (str(local), url)] == [b"local", SMALL]


def test_places_are_listed_at_a_commit(hub: Hub) -> None:
    names = ["a/s0.tar", "a/s1.tar", "a/s1.txt", "a/b/s2.tar", "c d/e.tar", *(f"more/{n}.tar" for n in range(9))]
    hub.put(dict.fromkeys(names, SMALL))

    def found(*patterns: str) -> list[str]:
        places = [f"hf://datasets/we/data/{pattern}" for pattern in patterns]
        return [url.removeprefix(hub.root) for url in places_of(places, "shards")]

    patterns = ["a/*.tar", "a/**/*.tar", "**/s*.tar", "c d/*", "a/s{1..0}.tar"]
    tars = ["a/b/s2.tar", *names[:2]]
    assert found(*patterns) == [*names[:2], *tars, *tars, "c d/e.tar", "a/s1.tar", "a/s0.tar"]
    assert len([path for _, _, path, *_ in hub.requests() if "/revision/" in path]) == 1
    with pytest.raises(FileNotFoundError, match=r"no file matches .*/a/\*\.zip, and none for 1 other .*no/\*\.tar$"):
        found("a/*.zip", "no/*.tar")


def test_kinds_and_revisions(hub: Hub) -> None:
    for name, branch in (("models/we/data", "main"), ("spaces/we/data", "main"), ("datasets/we/x", "refs/pr/1")):
        hub.put({"a": name.encode()}, name=name, branch=branch)
    hub.put({"a": b"parquet"}, commit=SECOND, name="datasets/we/x", branch="refs/convert/parquet")
    places = [
        *("hf://we/data/a", "hf://models/we/data/a", "hf://spaces/we/data/a", "hf://datasets/we/x@refs/pr/1/a"),
        *("hf://datasets/we/x@refs%2Fpr%2F1/a", "hf://datasets/we/x@~parquet/a", f"hf://datasets/we/x@{SECOND}/a"),
    ]
    urls = places_of(places, "files")
    assert urls[3] == urls[4] == f"hf://datasets/we/x@{FIRST}/a" and urls[5] == urls[6]
    contents = [b"models/we/data"] * 2 + [b"spaces/we/data"] + [b"datasets/we/x"] * 2 + [b"parquet"] * 2
    storage = HubStorage()
    assert [storage.read_whole(url) for url in urls] == contents


@pytest.mark.parametrize("url", ["hf://", "hf://datasets", "hf://datasets/we", "hf://we", "hf://buckets/we/a/b"])
def test_url_without_a_repository_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="names no repository"):
        hub_place(url)


def test_parts_of_a_place() -> None:
    assert hub_place("hf://datasets/o/n/a/b@c#?.tar") == HubPlace("dataset", "o/n", "main", "a/b@c#?.tar")
    assert hub_place("hf://o/n@v1.0") == HubPlace("model", "o/n", "v1.0", "")
    pinned = hub_place(f"hf://spaces/o/n@{FIRST}/a")
    assert pinned.is_pinned and pinned.url == f"hf://spaces/o/n@{FIRST}/a" == hub_place(pinned.url).url
    assert hub_place("hf://o/n@refs/pr/3/a").url == "hf://o/n@refs%2Fpr%2F3/a"
    assert hub_fingerprint(["/a", "s3://b/a"]) is None
    assert hub_fingerprint([pinned.url, pinned.url + "b", "hf://o/n/a"]) == f"{pinned.root}, hf://o/n@main/"


@pytest.mark.parametrize("birth", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_shuffled_epoch_resumes_at_its_commit(birth: str, hub: Hub, shards: str) -> None:
    def loader(shards: Any) -> Any:
        options = {"batch_size": 3, "shuffle": True, "seed": 4, "num_workers": 2, "multiprocessing_context": birth}
        return DataLoader(TarDataset(shards), **options)

    with loader(shards) as first:
        batches = iter(first)
        begin = [next(batches) for _ in range(2)]
        state = json.dumps(first.state_dict())
        names = first.dataset.shards
    assert TOKEN not in state and names[0] == f"{hub.root}train/s000.tar"
    files = {"train/s000.tar": DATA}
    hub.put(files, SECOND)  # the branch goes on
    with loader(names) as second:
        second.load_state_dict(json.loads(state))
        rest = list(second)
    keys = [key for batch in begin + rest for key in batch["__key__"]]
    assert sorted(keys) == [f"{number:05d}" for number in range(14)] and keys != sorted(keys)


def test_state_is_refused_at_another_commit(hub: Hub, tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [6])
    files = {"s.tar": Path(path).read_bytes()}
    hub.put(files)
    with DataLoader(TarStream("hf://datasets/we/data/s.tar"), batch_size=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    hub.put(files, SECOND)
    with (
        DataLoader(TarStream("hf://datasets/we/data/s.tar"), batch_size=2) as loader,
        pytest.raises(StateMismatchError, match=rf"{FIRST}.*{SECOND}"),
    ):
        loader.load_state_dict(state)


def test_stream_reads_shards(hub: Hub, shards: str) -> None:
    stream = TarStream(shards, storage_options={"token": TOKEN})
    with DataLoader(stream, batch_size=4, num_workers=2) as loader:
        assert sorted(key for batch in loader for key in batch["__key__"]) == [f"{n:05d}" for n in range(14)]
        assert TOKEN not in repr(stream) + repr(loader) + str(loader.report())


def test_index_is_kept_in_a_folder(hub: Hub, shards: str, tmp_path: Path) -> None:
    folder = tmp_path / "indexes"
    assert len(index_shards(shards, index_folder=folder)) == 3 == len(os.listdir(folder))


def test_rows_and_their_cache(hub: Hub, tmp_path: Path) -> None:
    paths = tables.write_numbered(tmp_path, [4, 0, 7])
    hub.put({Path(path).name: Path(path).read_bytes() for path in paths})
    place = "hf://datasets/we/data/f{000..002}.parquet"
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": 1 << 30}
    dataset = ParquetDataset(place, **options)
    assert tables.numbers_of(dataset[index] for index in range(11)) == list(range(11))
    assert dataset.fingerprint == hub.root
    assert os.listdir(tmp_path / "cache")


def test_images_are_read_at_a_commit(hub: Hub) -> None:
    root = hub.put({f"{number}.bin": bytes([number] * 200) for number in range(4)})
    names = [f"{number}.bin" for number in range(4)]
    by_root = ImageFiles(names, root="hf://datasets/we/data", loader=lambda data: np.frombuffer(data, np.uint8))
    by_url = ImageFiles([f"hf://datasets/we/data/{name}" for name in names], loader=len)
    hub.put({}, SECOND)
    assert [int(by_root[index][0]) for index in range(4)] == list(range(4))
    with DataLoader(by_url, batch_size=2, num_workers=1, output="numpy", threads_per_worker=2) as loader:
        assert [batch.tolist() for batch in loader] == [[200, 200], [200, 200]]
    assert by_url.describe(1) == root + "1.bin" and by_url.fingerprint == root == by_root.fingerprint
