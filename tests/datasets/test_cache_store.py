from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.datasets import cache_store as cache_store
from stoker.datasets.cache_store import FileStore, Memory, Store
from stoker.errors import MemoryLimitError

RECORDS = {number: bytes([number]) * (number * 9 + 1) for number in range(8)}
LIMIT = 1 << 16


@pytest.fixture(params=["memory", "folder"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    return lambda: Memory(8, LIMIT) if request.param == "memory" else folder(tmp_path)


def folder(path: Path, limit: int | None = LIMIT) -> FileStore:
    return FileStore(str(path), "v1", 8, limit)


def in_child(work: Callable[[], object]) -> int:
    """Runs in a fork; returns its exit status, negative for a signal."""
    child = os.fork()
    if not child:
        status = 1
        with contextlib.suppress(BaseException):
            work()
            status = 0
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_records_are_found_as_they_were_put(make: Callable[[], Store]) -> None:
    store = make()
    assert [store.get(number) for number in range(9)] == [None] * 9
    for number, data in RECORDS.items():
        store.put(number, data)
        store.put(number, data)
    assert [store.get(number) for number in range(9)] == [*RECORDS.values(), None]
    store.put(8, b"beyond the slots")
    assert store.get(8) is None


def test_nothing_is_kept_beyond_the_limit(tmp_path: Path) -> None:
    for name, store in (("memory", Memory(8, 500)), ("disk", folder(tmp_path, 500))):
        store.put(0, bytes(300))
        store.put(1, bytes(300))
        store.put(2, bytes(50))
        assert [store.get(number) for number in range(3)] == [bytes(300), None, bytes(50)], name
        assert os.fstat(store._descriptor).st_size <= 500


def test_a_record_kept_twice_takes_its_place_once(make: Callable[[], Store]) -> None:
    store = make()
    for _ in range(100):
        store.put(3, bytes(1000))
    assert os.fstat(store._descriptor).st_size < 2000


def test_a_folder_is_found_again_by_its_identity(tmp_path: Path) -> None:
    folder(tmp_path).put(2, b"two")
    assert folder(tmp_path).get(2) == b"two"
    assert pickle.loads(pickle.dumps(folder(tmp_path))).get(2) == b"two"
    assert FileStore(str(tmp_path), "v2", 8, LIMIT).get(2) is None
    assert FileStore(str(tmp_path), "v1", 9, LIMIT).get(2) is None
    assert folder(tmp_path, None).get(2) == b"two"


def test_format_version_is_part_of_the_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path).put(2, b"two")
    monkeypatch.setattr(cache_store, "FORMAT_VERSION", 3)
    assert folder(tmp_path).get(2) is None


def test_a_damaged_file_holds_whole_records_or_none(tmp_path: Path) -> None:
    store = folder(tmp_path)
    for number, data in RECORDS.items():
        store.put(number, data)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    found = set()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        for number, data in RECORDS.items():
            assert store.get(number) in (None, data)
            found.add((number, store.get(number) is None))
    assert len(found) == 15  # all but the largest were found in some truncated file, too
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        assert all(store.get(number) in (None, data) for number, data in RECORDS.items())
    for length in (0, 100, len(whole) // 2):
        path.write_bytes(whole[:length])
        for number, data in RECORDS.items():
            store.put(number, data)
        assert [store.get(number) for number in RECORDS] == list(RECORDS.values()), "damage is not repaired"


@pytest.mark.parametrize("call", range(3), ids=["head", "record", "slot"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0], ids=["before", "midway", "after"])
def test_a_writer_killed_at_any_write_leaves_nothing_half(make: Callable[[], Store], call: int, share: float) -> None:
    store = make()
    store.put(1, b"before")

    def dies() -> None:
        write, calls = os.pwrite, itertools.count()

        def killing(descriptor: int, data: bytes, offset: int) -> int:
            if next(calls) == call:
                write(descriptor, data[: int(len(data) * share)], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return write(descriptor, data, offset)

        os.pwrite = killing  # type: ignore[assignment]  # in the child alone
        store.put(5, RECORDS[5])

    assert in_child(dies) == -signal.SIGKILL
    assert store.get(1) == b"before"
    assert store.get(5) == (RECORDS[5] if (call, share) == (2, 1.0) else None)
    for number in (5, 6):
        store.put(number, RECORDS[number])  # no process holds a lock
    assert [store.get(number) for number in (1, 5, 6)] == [b"before", RECORDS[5], RECORDS[6]]


def test_stopped_writer_blocks_no_other_process(make: Callable[[], Store]) -> None:
    store = make()
    store.put(1, b"before")
    ours, theirs = os.pipe()

    def holds() -> None:
        with store._turn() as alone:
            os.write(theirs, b"y" if alone else b"n")
            signal.pause()

    child = os.fork()
    if not child:
        holds()
    try:
        assert os.read(ours, 1) == b"y"
        os.kill(child, signal.SIGSTOP)
        store.put(2, b"not kept")
        assert store.get(1) == b"before"
        assert store.get(2) is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ours)
        os.close(theirs)
    store.put(2, b"kept")
    assert store.get(2) == b"kept"


def test_processes_write_at_once(tmp_path: Path) -> None:
    for store in (Memory(600, 1 << 20), FileStore(str(tmp_path), "v1", 600, None)):
        records = {number: number.to_bytes(2, "little") * (number % 50 + 1) for number in range(600)}
        children = []
        for part in range(3):
            child = os.fork()
            if not child:
                for number in range(part, 600, 3):
                    store.put(number, records[number])
                os._exit(0)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        found = [number for number in records if store.get(number) == records[number]]
        assert all(store.get(number) is None for number in set(records) - set(found))
        assert len(found) > 200  # who was kept waiting too long went without


def test_threads_write_at_once(make: Callable[[], Store]) -> None:
    store = make()
    threads = [threading.Thread(target=store.put, args=record) for record in RECORDS.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(store.get(number) in (None, data) for number, data in RECORDS.items())
    assert any(store.get(number) for number in RECORDS)


def test_lock_held_by_a_thread_at_fork_does_not_block_the_child(make: Callable[[], Store]) -> None:
    store = make()
    with store._turn() as alone:
        assert alone
        with store._turn() as another:
            assert not another
    cache_store._alone[(os.getpid(), *store._file)] = object()  # a thread that is at it, and not in the child

    def puts() -> None:
        store.put(4, b"four")
        assert store.get(4) == b"four"

    assert in_child(puts) == 0
    cache_store._alone.clear()


def test_two_stores_of_one_file_take_turns_in_a_process(tmp_path: Path) -> None:
    one, other = folder(tmp_path), folder(tmp_path)
    with one._turn() as alone, other._turn() as another, FileStore(str(tmp_path), "v2", 8, LIMIT)._turn() as elsewhere:
        assert (alone, another, elsewhere) == (True, False, True)
    with other._turn() as alone:
        assert alone


def test_overlapping_writers_lose_records_but_mix_none(
    make: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()

    @contextlib.contextmanager
    def no_turn(self: Store) -> Iterator[bool]:
        yield True

    monkeypatch.setattr(Store, "_turn", no_turn)
    end = cache_store._SLOTS_AT + 8 * 16
    monkeypatch.setattr(Store, "_advance", lambda self, size: end)  # each is given the same range
    for number, data in RECORDS.items():
        store.put(number, data)
        assert store.get(number) == data
        assert all(store.get(other) is None for other in RECORDS if other != number)


def test_memory_is_shared_with_forked_and_clean_processes() -> None:
    store = Memory(8, LIMIT)
    assert in_child(lambda: store.put(2, b"forked")) == 0
    process = multiprocessing.get_context("spawn").Process(target=store.put, args=(3, b"spawned"))
    process.start()
    process.join()
    assert [store.get(number) for number in (2, 3)] == [b"forked", b"spawned"]


def test_a_pickled_copy_of_memory_is_an_empty_one() -> None:
    store = Memory(8, LIMIT)
    store.put(2, b"two")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get(2) is None
    copy.put(3, b"three")
    assert (copy.get(3), store.get(3)) == (b"three", None)


def test_memory_that_the_machine_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        MemoryLimitError, match=r"a cache of 1\d+ bytes does not fit: \d+ are available of \d+ \(limited"
    ):
        Memory(8, 1 << 60)
    store = Memory(8, LIMIT)
    monkeypatch.setattr(cache_store, "_spare", lambda: cache_store._STEP + 10)
    store.put(0, bytes(11))
    store.put(1, bytes(10))
    assert [store.get(number) for number in range(2)] == [None, bytes(10)]
    asked: list[int] = []
    monkeypatch.setattr(cache_store, "_spare", lambda: asked.append(1) or 1 << 30)
    for number in range(2, 8):
        store.put(number, bytes(100))
    assert not asked, "each record asks the machine"


def test_a_limit_below_the_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="memory=144 bytes hold no sample: the index alone takes 144 bytes"):
        Memory(8, 144)
    with pytest.raises(ValueError, match="disk=10 bytes hold no sample: the index alone takes 144 bytes"):
        folder(tmp_path, 10)


def test_a_full_disk_keeps_less(make: Callable[[], Store], monkeypatch: pytest.MonkeyPatch) -> None:
    store = make()

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) > 100:
            raise OSError(28, "No space left on device")
        return write(descriptor, data, offset)

    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    store.put(0, bytes(200))
    store.put(1, bytes(20))
    assert (store.get(0), store.get(1)) == (None, bytes(20))


@pytest.mark.parametrize("whole", [0, 1, 2], ids=["head", "record", "slot"])
@pytest.mark.parametrize("short", [False, True])
def test_failed_write_takes_no_room(
    make: Callable[[], Store], monkeypatch: pytest.MonkeyPatch, whole: int, short: bool
) -> None:
    """Whichever of its writes failed, or was short, as the last one before a disk is full."""
    store = make()
    write, calls = os.pwrite, itertools.count()

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if next(calls) != whole:
            return write(descriptor, data, offset)
        if not short or whole != 1:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:10], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        store.put(0, bytes(range(200)))
    assert store.get(0) is None
    assert store._end() == cache_store._SLOTS_AT + 8 * 16
    store.put(1, bytes(20))
    store.put(0, bytes(range(200)))
    assert (store.get(0), store.get(1)) == (bytes(range(200)), bytes(20))


@pytest.mark.parametrize("damaged", [b"\xff" * 8, b"\0" * 7 + b"\x80", b"\0" * 7 + b"\x7f"], ids=["all", "sign", "far"])
@pytest.mark.parametrize(
    "place", [0, cache_store._SLOTS_AT, cache_store._SLOTS_AT + 8], ids=["head", "offset", "length"]
)
@pytest.mark.parametrize("limit", [None, LIMIT])
def test_a_damaged_index_is_no_record(tmp_path: Path, damaged: bytes, place: int, limit: int | None) -> None:
    store = folder(tmp_path, limit)
    store.put(0, b"zero")
    os.pwrite(store._descriptor, damaged, place)
    assert store.get(0) == (None if place else b"zero")
    store.put(0, b"zero again")
    store.put(1, b"one")
    assert store.get(0) == (b"zero again" if place else b"zero")
    assert store.get(1) == (b"one" if place else None)


def test_no_descriptor_stays(tmp_path: Path) -> None:
    gc.collect()
    before = os.listdir("/proc/self/fd")
    kept: list[Any] = [Memory(8, LIMIT), folder(tmp_path)]
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    kept.clear()
    gc.collect()
    assert os.listdir("/proc/self/fd") == before
