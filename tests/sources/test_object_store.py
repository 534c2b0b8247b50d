from __future__ import annotations

import asyncio
import importlib.util
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from stoker.errors import FileChangedError, MissingExtraError, ObjectStoreError
from stoker.loader.dataloader import DataLoader
from stoker.sources.object_store import ObjectStorage
from stoker.sources.storage import LocalStorage
from stoker.sources.storage_of import LocalAndRemote, storage_of
from tests.sources.object_servers import Bucket, Faults

DATA = bytes(range(256)) * 4000
NAMES = ["plain.bin", "deep/er/a b.bin", "ümlaut+%41&=.bin"]


def threads() -> set[str]:
    return {Path(f"/proc/self/task/{number}/comm").read_text() for number in os.listdir("/proc/self/task")}


@pytest.mark.parametrize("name", NAMES)
def test_object_is_read_by_position(name: str, bucket: Bucket) -> None:
    url = bucket.put(name, DATA)
    storage = ObjectStorage()
    file = storage.open(url)
    assert (file.version.size, file.version.mtime_ns, file.version.tag != "") == (len(DATA), 0, True)
    assert file.read(10, 500) == DATA[10:510]
    assert file.read(len(DATA) - 5, 100) == DATA[-5:]
    assert file.read(len(DATA), 1) == file.read(5, 0) == storage.read(url, 7, 0) == b""
    assert file.read_ranges([(9, 12), (0, 4)]) == [DATA[9:12], DATA[:4]]
    assert storage.read(url, 100, 28) == DATA[100:128]
    assert storage.read_whole(url) == DATA


def test_empty_object(bucket: Bucket) -> None:
    url = bucket.put("empty", b"")
    storage = ObjectStorage()
    assert storage.read_whole(url) == storage.open(url).read(0, 10) == storage.read(url, 0, 10) == b""


def test_written_object_is_read_and_listed(bucket: Bucket) -> None:
    storage = ObjectStorage()
    for name in ("a/2", "a/1", "b"):
        storage.write(bucket.url(name), name.encode())
    assert storage.names(bucket.url("a/")) == ["a/1", "a/2"]
    assert storage.names(bucket.url()) == ["a/1", "a/2", "b"]
    assert storage.read_whole(bucket.url("a/2")) == b"a/2"


def test_public_object_is_read_over_http(bucket: Bucket) -> None:
    bucket.put("a b.bin", DATA)
    file = ObjectStorage().open(bucket.http("a b.bin"))
    assert (file.version.size, file.read(1, 3)) == (len(DATA), DATA[1:4])


def test_trainer_gets_no_threads_and_forks_workers_that_read(bucket: Bucket) -> None:
    urls = [bucket.put(f"{number}", bytes([number]) * 10) for number in range(8)]
    before = threads()
    storage = ObjectStorage()
    assert storage.read_whole(urls[1]) == b"\1" * 10
    assert threads() == before

    def read(number: int) -> tuple[int, bool]:
        return storage.read_whole(urls[number])[0], any("tokio" in name for name in threads())

    dataset = _Calls(read, 8)
    with DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork") as loader:
        # workers of a process that has loaded obstore read through the clean interpreter too
        has_own = "obstore" not in sys.modules
        assert list(loader) == [[number, has_own] for number in range(8)]
    assert threads() == before


class _Calls:
    def __init__(self, function: object, count: int) -> None:
        self.function, self.count = function, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> object:
        return self.function(index)  # type: ignore[operator]


def test_worker_reads_although_its_trainer_has_imported_obstore(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program that uses obstore itself: its threads do not survive the fork."""
    monkeypatch.setitem(sys.modules, "obstore", ModuleType("obstore"))
    storage, url = ObjectStorage(), bucket.put("a", DATA)
    dataset = _Calls(lambda index: storage.read(url, index, 2), 6)
    with DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork") as loader:
        assert list(loader) == [DATA[index : index + 2] for index in range(6)]


def test_threads_share_a_file(bucket: Bucket) -> None:
    file = ObjectStorage().open(bucket.put("a", DATA))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda begin: file.read(begin, 7), range(64))) == [DATA[at : at + 7] for at in range(64)]


def test_pickled_storage_reads(bucket: Bucket) -> None:
    url = bucket.put("a", b"abc")
    storage = ObjectStorage({"endpoint": os.environ["AWS_ENDPOINT_URL"]})
    storage.read_whole(url)
    assert pickle.loads(pickle.dumps(storage)).read_whole(url) == b"abc"


@pytest.mark.parametrize("name", ["missing", "missing/deep"])
def test_missing_object(name: str, bucket: Bucket) -> None:
    for read in (ObjectStorage().open, ObjectStorage().read_whole):
        with pytest.raises(FileNotFoundError, match=f"^{bucket.url(name)}: there is no such bucket or object"):
            read(bucket.url(name))


def test_missing_bucket(bucket: Bucket) -> None:
    for read in (ObjectStorage().open, ObjectStorage().names):
        with pytest.raises(FileNotFoundError, match="s3://no-such-bucket/a"):
            read("s3://no-such-bucket/a")


def test_changed_object_is_recognized(bucket: Bucket) -> None:
    file = ObjectStorage().open(bucket.put("a", b"old"))
    bucket.put("a", b"new")
    with pytest.raises(FileChangedError, match=r"s3://bucket-\d+/a was changed since it was opened: it has 3 bytes"):
        file.read(0, 3)


@pytest.mark.parametrize("fault", ["500", "503", "429", "cut", "short", "slow"])
def test_passing_fault_gives_right_data(fault: str, bucket: Bucket, faults: Faults) -> None:
    file = ObjectStorage(faults.options).open(bucket.put("a", DATA))
    faults.plan(fault, fault)
    assert file.read(5, 500_000) == DATA[5:500_005]
    assert len(faults.requests()) >= 3
    faults.plan("", fault, "", fault)
    assert file.read_ranges([(number, number + 900) for number in range(0, 9000, 1000)]) == [
        DATA[number : number + 900] for number in range(0, 9000, 1000)
    ]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("500", "500.*tried 4 times"),
        ("503", "503.*SlowDown"),
        ("429", "429.*tried 4 times"),
        ("cut", "tried [45] times"),
        ("short", "asked for, and the answer has 250000 bytes.*tried 4 times"),
        ("no ranges", "does not answer ranges of bytes"),
    ],
)
def test_lasting_fault_is_a_clear_error(fault: str, says: str, bucket: Bucket, faults: Faults) -> None:
    file = ObjectStorage(faults.options).open(bucket.put("a", DATA))
    faults.plan(*[fault] * 40)
    with pytest.raises(ObjectStoreError, match=rf"^s3://bucket-\d+/a cannot be reached: (?s:.*){says}") as caught:
        file.read(0, 500_000)
    assert "SECRET" not in str(caught.value)
    faults.plan()
    assert file.read(0, 500) == DATA[:500]


@pytest.mark.parametrize(("fault", "says"), [("403", "access was refused"), ("expired", "credentials have expired")])
def test_refusal_is_a_permission_error(fault: str, says: str, bucket: Bucket, faults: Faults) -> None:
    url = bucket.put("a", DATA)
    faults.plan(fault)
    with pytest.raises(PermissionError, match=rf"/a: .*{says}") as caught:
        ObjectStorage(faults.options).read(url, 0, 10)
    assert "SECRET" not in str(caught.value) and len(faults.requests()) == 1, "it is not tried again"


def test_answer_of_another_version_is_refused(bucket: Bucket, faults: Faults) -> None:
    file = ObjectStorage(faults.options).open(bucket.put("a", DATA))
    faults.plan("", "changed")
    with pytest.raises(FileChangedError):
        file.read_ranges([(0, 10), (1000, 1010), (5000, 5010)])


def test_endpoint_that_is_not_there(bucket: Bucket, faults: Faults) -> None:
    options = {**faults.options, "endpoint": "http://127.0.0.1:9"}
    with pytest.raises(ObjectStoreError, match=r"s3://b/a cannot be reached: .*127\.0\.0\.1:9.*tried 4 times"):
        ObjectStorage(options).open("s3://b/a")


def test_secrets_are_in_no_text(bucket: Bucket, faults: Faults) -> None:
    storage = ObjectStorage({**faults.options, "key": "AKIDSECRET", "secret": "the-secret-key"})
    assert "secret" not in repr(storage).lower()
    url = f"{bucket.http('a')}?X-Signature=the-secret"
    faults.plan(*["500"] * 9)
    for place in (url, f"http://127.0.0.1:{faults.port}/b/a?X-Signature=the-secret"):
        with pytest.raises(OSError) as caught:
            storage.read_whole(place)
        assert "secret" not in f"{caught.value!r} {caught.value}".lower()


def test_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "obstore", raising=False)
    with pytest.raises(MissingExtraError, match=r"stoker\[objects\]"):
        storage_of("s3://bucket/a")


def test_unknown_option_is_named(bucket: Bucket) -> None:
    with pytest.raises(ValueError, match="storage_options has a name that s3 does not know: endpiont"):
        ObjectStorage({"endpiont": "x"}).open(bucket.url("a"))


def test_storage_of_chooses_by_scheme(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"local")
    local, remote = str(tmp_path / "a"), bucket.put("a", b"remote")
    assert isinstance(storage_of(local), LocalStorage)
    assert isinstance(storage_of(remote), ObjectStorage)
    both = storage_of([local, remote])
    assert isinstance(both, LocalAndRemote)
    assert [both.read(place, 0, 10) for place in (local, remote)] == [b"local", b"remote"]
    assert both.open(remote).version.size == 6


def test_objects_are_opened_together(bucket: Bucket, faults: Faults) -> None:
    contents = [DATA[:size] for size in (0, 10, 5000, 5001, 70_000)]
    urls = [bucket.put(f"{number}", data) for number, data in enumerate(contents)]
    storage = ObjectStorage(faults.options)
    faults.plan("500", "429", "", "503", "", "cut", "short")
    files = list(storage.open_all(urls, 5000))
    assert [file.version.size for file in files] == [len(data) for data in contents]
    before = len(faults.requests())
    for file, data in zip(files, contents, strict=True):
        assert file.read(max(0, len(data) - 5000), 5000) == data[-5000:]
    assert len(faults.requests()) == before
    assert files[-1].read(10, 60_000) == DATA[10:60_010]
    with pytest.raises(FileNotFoundError, match="/missing: there is no such"):
        list(storage.open_all([*urls, bucket.url("missing")]))


def test_reads_within_a_running_loop(bucket: Bucket) -> None:
    """As in a worker whose samples run coroutines."""
    url = bucket.put("a", DATA)

    def read(_: int) -> list[bytes]:
        async def inside() -> list[bytes]:
            return storage.open(url).read_ranges([(0, 5), (9, 12)])

        return asyncio.run(inside())

    storage = ObjectStorage()
    with DataLoader(_Calls(read, 2), batch_size=None, num_workers=1) as loader:
        assert list(loader) == [[DATA[:5], DATA[9:12]]] * 2
