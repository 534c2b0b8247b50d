from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import StokerWarning
from stoker.sources import block_cache, cached_storage
from stoker.sources.cached_storage import CachedStorage, cached, without_secrets
from stoker.sources.storage import LocalFile, Version

BLOCK = 1000
LIMIT = 1 << 20


class Logged:
    """The files of a folder, by URLs; each request is a line in a file, whichever process makes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = f"{folder}.log"

    def open(self, path: str) -> LoggedFile:
        name = path.partition("?")[0].rpartition("/")[2]
        return LoggedFile(str(self.folder / name), self.log)

    def read(self, path: str, begin: int, length: int) -> bytes:
        return self.open(path).read(begin, length)

    def requests(self) -> list[tuple[int, int]]:
        """The ranges that were read."""
        lines = Path(self.log).read_text().splitlines() if os.path.exists(self.log) else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


class LoggedFile(LocalFile):
    def __init__(self, path: str, log: str) -> None:
        super().__init__(path)
        self._log = log

    def read(self, begin: int, length: int) -> bytes:
        with open(self._log, "a") as log:
            log.write(f"{begin} {length}\n")
        return super().read(begin, length)


@pytest.fixture
def data() -> bytes:
    return np.random.default_rng(0).bytes(7 * BLOCK + 321)


@pytest.fixture
def store(data: bytes, tmp_path: Path) -> Logged:
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "a.tar").write_bytes(data)
    return Logged(folder)


@pytest.fixture
def storage(store: Logged, tmp_path: Path) -> CachedStorage:
    return CachedStorage(store, tmp_path / "cache", LIMIT, block_size=BLOCK)


def blocks(storage: CachedStorage) -> list[Path]:
    return sorted(Path(storage.blocks.folder).glob("*/*"))


URL = "s3://bucket/a.tar"


def test_every_range_is_that_of_the_store(storage: CachedStorage, data: bytes) -> None:
    file = storage.open(URL)
    assert file.version.size == len(data)
    ranges = np.random.default_rng(1).integers(0, len(data) + 100, (300, 2)).tolist()
    for begin, length in [*ranges, (0, len(data)), (0, 10**9), (len(data), 1), (10, 0), (BLOCK, BLOCK)]:
        assert file.read(begin, length) == data[begin : begin + length]
    assert storage.read(URL, 5, 10) == data[5:15]


def test_each_block_is_read_from_the_store_once(storage: CachedStorage, store: Logged, data: bytes) -> None:
    file = storage.open(URL)
    assert file.read(2100, 10) == data[2100:2110]
    assert file.read(2900, 200) == data[2900:3100]
    assert file.read(0, len(data)) == data
    assert store.requests() == [(2000, 1000), (3000, 1000), (0, 2000), (4000, len(data) - 4000)]
    again = pickle.loads(pickle.dumps(storage)).open(URL)
    assert again.read(0, len(data)) == data
    assert len(store.requests()) == 4


def test_long_reads_are_cut_into_requests(storage: CachedStorage, store: Logged, tmp_path: Path) -> None:
    data = bytes(40 * BLOCK)
    (tmp_path / "remote" / "long").write_bytes(data)
    assert storage.read("s3://bucket/long", 0, len(data)) == data
    assert store.requests() == [(0, 16 * BLOCK), (16 * BLOCK, 16 * BLOCK), (32 * BLOCK, 8 * BLOCK)]


def test_ranges_that_are_missing_are_read_at_once(
    storage: CachedStorage, store: Logged, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def read_ranges(file: LoggedFile, ranges: list[tuple[int, int]]) -> list[bytes]:
        asked.append(ranges)
        return [LocalFile.read(file, begin, end - begin) for begin, end in ranges]

    monkeypatch.setattr(LoggedFile, "read_ranges", read_ranges, raising=False)
    file: Any = storage.open(URL)
    assert file.read(3500, 10) == data[3500:3510]
    ranges = [(10, 20), (900, 4100), (30, 40), (5000, 5001)]
    assert file.read_ranges(ranges) == [data[begin:end] for begin, end in ranges]
    assert asked == [[(0, 3000), (4000, 6000)]]  # and block 0 is not read twice
    monkeypatch.setattr(storage.failures, "_until", float("inf"))
    assert file.read_ranges([(6100, 6200), (6150, 7200)]) == [data[6100:6200], data[6150:7200]]
    assert asked[1:] == [[(6100, 6200), (6150, 7200)]]


def test_a_known_version_needs_no_request(store: Logged, storage: CachedStorage, data: bytes) -> None:
    class Known(Logged):
        def open_known(self, path: str, version: Version) -> LoggedFile:
            file = self.open(path)
            file.version = version
            return file

    version = storage.open(URL).version
    assert storage.open_known(URL, version._replace(mtime_ns=7)).version == version
    storage.storage = Known(store.folder)
    known = storage.open_known(URL, version._replace(mtime_ns=7))
    assert known.version.mtime_ns == 7 and known.read(0, 5) == data[:5] == storage.read_whole(URL)[:5]
    assert len(store.requests()) == 2


def test_a_file_that_changed_is_read_anew(storage: CachedStorage, store: Logged, tmp_path: Path) -> None:
    before = storage.read(URL, 0, 100)
    other = bytes(100) + before * 80
    (tmp_path / "remote" / "a.tar").write_bytes(other)
    assert storage.read(URL, 0, 100) == bytes(100)
    assert storage.read(URL, 100, 100) == before


def test_a_file_without_a_known_version_is_not_cached(store: Logged, storage: CachedStorage) -> None:
    class Unversioned(Logged):
        def open(self, path: str) -> LoggedFile:
            file = super().open(path)
            file.version = Version(file.version.size, 0)
            return file

    storage.storage = Unversioned(store.folder)
    file = storage.open(URL)
    assert file.read(10, 20) == file.read(10, 20)
    assert store.requests() == [(10, 20), (10, 20)]
    assert not blocks(storage)


def test_a_store_that_gives_too_little_is_not_kept(storage: CachedStorage, store: Logged, data: bytes) -> None:
    file = storage.open(URL)
    os.truncate(store.folder / "a.tar", 2500)
    assert file.read(1990, 1000) == data[1990:2500]
    assert len(blocks(storage)) == 0


def test_a_damaged_block_is_read_again(storage: CachedStorage, store: Logged, data: bytes) -> None:
    file = storage.open(URL)
    file.read(0, len(data))
    for path in blocks(storage):
        content = bytearray(path.read_bytes())
        content[-1] ^= 255
        path.write_bytes(content)
    assert file.read(0, len(data)) == data
    assert len(store.requests()) == 2
    assert file.read(0, len(data)) == data
    assert len(store.requests()) == 2


def test_a_deleted_folder_is_made_again(storage: CachedStorage, data: bytes) -> None:
    file = storage.open(URL)
    file.read(0, 100)
    shutil.rmtree(storage.blocks.folder)
    assert file.read(0, 3000) == data[:3000]
    assert len(blocks(storage)) == 3


def test_errors_of_the_store_are_its_own(storage: CachedStorage, store: Logged) -> None:
    with pytest.raises(FileNotFoundError):
        storage.open("s3://bucket/missing")

    class Broken(LocalFile):
        def read(self, begin: int, length: int) -> bytes:
            raise ConnectionResetError("cut")

    store.open = lambda path: Broken(str(store.folder / "a.tar"))  # type: ignore[assignment]
    with pytest.raises(ConnectionResetError):
        storage.open(URL).read(0, 5000)
    assert not blocks(storage)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://user:pw@host/a.tar", "https://host/a.tar"),
        ("https://host/a.tar?X-Amz-Signature=1&X-Amz-Date=2", "https://host/a.tar?X-Amz-Signature=3&X-Amz-Date=4"),
        ("https://host/a.tar?sv=1&se=2&sp=r&sig=abc", "https://host/a.tar?sv=1&se=9&sp=r&sig=def"),
        ("https://host/a.tar?access_token=1", "https://host/a.tar?access_token=2"),
        ("https://host/a.tar?v=7&AWSAccessKeyId=1&Signature=2&Expires=3", "https://host/a.tar?v=7"),
    ],
)
def test_a_url_that_is_signed_anew_is_the_same(
    one: str, other: str, storage: CachedStorage, store: Logged, data: bytes
) -> None:
    assert without_secrets(one) == without_secrets(other)
    assert storage.read(one, 0, 50) == storage.read(other, 0, 50) == data[:50]
    assert len(store.requests()) == 1


def test_no_secret_is_in_the_folder(storage: CachedStorage) -> None:
    storage.read("https://user:hunter2@host/a.tar?X-Amz-Signature=hunter2", 0, 5000)
    found = subprocess.run(["grep", "-r", "-a", "hunter2", storage.blocks.folder], capture_output=True)
    names = [str(path) for path in blocks(storage)]
    assert found.returncode == 1 and len(names) == 5 and not any("hunter2" in name or "host" in name for name in names)


def test_stores_of_other_names_share_nothing(store: Logged, tmp_path: Path) -> None:
    for name in ("", "https://minio.example"):
        CachedStorage(store, tmp_path / "cache", LIMIT, block_size=BLOCK, name=name).read(URL, 0, 10)
    assert len(store.requests()) == 2


def no_space(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_once_and_read_past(
    store: Logged, data: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    storage, other = (CachedStorage(store, tmp_path / "cache", LIMIT, block_size=BLOCK) for _ in range(2))
    file = storage.open(URL)
    file.read(2000, 1000)
    with monkeypatch.context() as patch:
        patch.setattr(block_cache.block_file, "write", no_space)
        with pytest.warns(StokerWarning, match="the disk is full.*read without it") as told:
            assert file.read(900, 5000) == data[900:5900]
        assert len(told) == 1
        assert file.read(900, 5000) == data[900:5900]
        assert other.read(URL, 900, 5000) == data[900:5900]
    assert (900, 1100) in store.requests() and (3000, 2900) in store.requests()  # what is in the cache is used
    assert len(blocks(storage)) == 1
    assert not storage.failures.is_usable
    monkeypatch.setattr(storage.failures, "_until", 0.0)  # a minute later
    assert file.read(0, len(data)) == data
    assert len(blocks(storage)) == 8


def test_a_really_full_disk(tmp_path: Path) -> None:
    program = """
import os, sys, warnings
from stoker.sources.cached_storage import CachedStorage
from stoker.sources.storage import LocalStorage
path = sys.argv[1] + "/data"
data = os.urandom(300_000)
open(path, "wb").write(data)
storage = CachedStorage(LocalStorage(), sys.argv[1] + "/small", 1 << 30, block_size=20_000)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    file = storage.open(path)
    for begin in range(0, 300_000, 7000):
        assert file.read(begin, 7000) == data[begin:begin + 7000]
assert ["the disk is full" in str(each.message) for each in told] == [True], told
assert not [name for _, _, names in os.walk(storage.blocks.folder) for name in names if name.endswith(".part")]
assert any(name.endswith(".block") for _, _, names in os.walk(storage.blocks.folder) for name in names)
"""
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=200k none {small}"
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode
    ):
        pytest.skip("file systems cannot be mounted here")
    run = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$0" -c "$1" "$2"', sys.executable, program, str(tmp_path)]
    subprocess.run(run, check=True)


def test_a_folder_that_cannot_be_written_is_an_error_at_once(store: Logged, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        CachedStorage(store, tmp_path / "file", LIMIT, block_size=BLOCK)


@pytest.mark.parametrize("size", [0, -1, 1000, 8 << 20])
def test_a_limit_that_is_too_small_is_refused(size: int, store: Logged, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cache"):
        CachedStorage(store, tmp_path / "cache", size)


def test_cached_wraps_where_a_folder_is_given(store: Logged, tmp_path: Path) -> None:
    assert cached(store, None, None) is store
    wrapped = cached(store, tmp_path, 1 << 30, name="x")
    assert isinstance(wrapped, CachedStorage) and wrapped.name == "x" and wrapped.storage is store
    with pytest.raises(ValueError, match="pass cache_size= too"):
        cached(store, tmp_path, None)
    with pytest.raises(ValueError, match="pass its folder too"):
        cached(store, None, 1 << 30)
    with pytest.raises(TypeError, match="integer"):
        cached(store, tmp_path, "1 GB")  # type: ignore[arg-type]


def test_threads_that_want_one_block_read_it_once(storage: CachedStorage, store: Logged, data: bytes) -> None:
    file, together = storage.open(URL), threading.Barrier(8)

    def read(_: int) -> bytes:
        together.wait()
        return b"".join(file.read(begin, 700) for begin in range(0, len(data), 700))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {data}
    assert len(store.requests()) == 8


def read_all(storage: CachedStorage, gate: Any, seed: int) -> None:
    gate.wait()
    file = storage.open(URL)
    rng = np.random.default_rng(seed)
    found = {int(begin): file.read(int(begin), 400) for begin in rng.permutation(range(0, file.version.size, 400))}
    expected = (Path(storage.storage.folder) / "a.tar").read_bytes()  # type: ignore[attr-defined]
    assert b"".join(found[begin] for begin in sorted(found)) == expected


def test_processes_fill_one_cache_at_once(storage: CachedStorage, store: Logged) -> None:
    context = multiprocessing.get_context("fork")
    gate = context.Event()
    processes = [context.Process(target=read_all, args=(storage, gate, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    gate.set()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    read = sorted(byte for begin, length in store.requests() for byte in range(begin, begin + length))
    assert read == list(range(7 * BLOCK + 321))  # each once


def test_a_cache_smaller_than_the_file_gives_the_same(store: Logged, data: bytes, tmp_path: Path) -> None:
    storage = CachedStorage(store, tmp_path / "cache", 12_288, block_size=BLOCK)
    file = storage.open(URL)
    for begin in np.random.default_rng(3).integers(0, len(data), 60).tolist():
        assert file.read(begin, 1500) == data[begin : begin + 1500]
        assert len(blocks(storage)) <= 3


class Stopped(LoggedFile):
    """A file whose reads end only when they are told to."""

    begun: Any
    go_on: Any

    def read(self, begin: int, length: int) -> bytes:
        self.begun.set()
        self.go_on.wait()
        return super().read(begin, length)


def read_stopped(storage: CachedStorage, begun: Any, go_on: Any) -> None:
    Stopped.begun, Stopped.go_on = begun, go_on
    store: Any = storage.storage
    store.open = lambda path: Stopped(str(store.folder / "a.tar"), store.log)
    storage.read(URL, 0, 100)


@pytest.fixture
def reader(storage: CachedStorage) -> Iterator[Callable[[], None]]:
    """A process that is reading block 0 from the store, and never gets it; what is given kills it with SIGKILL."""
    context = multiprocessing.get_context("fork")
    begun, go_on = context.Event(), context.Event()
    process = context.Process(target=read_stopped, args=(storage, begun, go_on))
    process.start()
    begun.wait()

    def kill() -> None:
        process.kill()
        process.join()

    yield kill
    kill()
    process.close()


def test_a_block_of_a_killed_reader_is_read_here(
    reader: Callable[[], None], storage: CachedStorage, store: Logged, data: bytes
) -> None:
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(storage.read(URL, 0, 1500)))
    waiting.start()
    reader()
    waiting.join()
    assert found == [data[:1500]]
    assert sorted(store.requests()) == [(0, 1000), (1000, 1000)]
    assert len(blocks(storage)) == 2


def test_a_reader_that_hangs_is_not_waited_for(
    reader: Callable[[], None],
    storage: CachedStorage,
    store: Logged,
    data: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cached_storage, "PATIENCE", 0)
    assert storage.read(URL, 500, 600) == data[500:1100]
    assert sorted(store.requests()) == [(500, 500), (1000, 1000)]
