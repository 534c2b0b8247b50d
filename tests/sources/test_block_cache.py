from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.sources import block_cache, block_file
from stoker.sources.block_cache import BlockCache
from stoker.sources.block_file import on_disk, size_of

LENGTH = 6000
UNIT = on_disk(size_of(LENGTH))


def name_of(number: int) -> str:
    return f"{number * 37 % 256:02x}{number:030x}"


def put(cache: BlockCache, number: int, length: int = LENGTH) -> None:
    claim = cache.claim(name_of(number))
    assert claim is not None
    with claim:
        claim.store(memoryview(bytes([number % 251]) * length))


def has(cache: BlockCache, number: int, length: int = LENGTH) -> bool:
    data = cache.get(name_of(number), length, 0, length)
    assert data in (None, bytes([number % 251]) * length)
    return data is not None


def aged(cache: BlockCache, number: int, seconds: float) -> None:
    """Makes a block one that was last used some time ago."""
    path = cache.path_of(name_of(number))
    now = os.stat(path).st_mtime
    os.utime(path, (now - seconds, now - seconds))


def sizes(cache: BlockCache) -> int:
    """The bytes on disk of all blocks and parts."""
    return sum(on_disk(path.stat().st_size) for path in Path(cache.folder).glob("*/*"))


def used(cache: BlockCache) -> int:
    with block_file.account(os.path.join(cache.folder, "used"), lambda: -1) as own:
        assert own is not None
        return own.used


def test_a_block_is_found_after_it_was_stored(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path / "new" / "cache"), 10 * UNIT)
    assert not has(cache, 1)
    put(cache, 1)
    assert has(cache, 1) and not has(cache, 2)
    assert cache.get(name_of(1), LENGTH, 10, 20) == bytes([1]) * 10
    assert used(cache) == sizes(cache) == UNIT
    assert has(pickle.loads(pickle.dumps(cache)), 1)
    assert stat.S_IMODE(os.stat(cache.folder).st_mode) == 0o700


def test_the_least_recently_used_block_goes(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 4 * UNIT)
    for number in range(4):
        put(cache, number)
        aged(cache, number, 1000 - number)
    assert has(cache, 0)  # now the most recently used
    put(cache, 4)
    assert [has(cache, number) for number in range(5)] == [True, False, True, True, True]
    assert used(cache) == sizes(cache) == 4 * UNIT


def test_a_tenth_goes_at_a_time(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 40 * UNIT)
    for number in range(41):
        put(cache, number)
    assert used(cache) == sizes(cache) == 37 * UNIT
    assert has(cache, 40)


def test_of_very_many_blocks_some_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(block_cache, "SAMPLED", 5)
    cache = BlockCache(str(tmp_path), 20 * UNIT)
    for number in range(60):
        put(cache, number)
        assert used(cache) == sizes(cache) <= 20 * UNIT
    assert has(cache, 59)


def test_without_eviction_what_is_there_stays(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 3 * UNIT, evict=False)
    for number in range(6):
        put(cache, number)
    assert [has(cache, number) for number in range(6)] == [True] * 3 + [False] * 3
    assert used(cache) == sizes(cache) == 3 * UNIT


def test_a_block_larger_than_the_limit_removes_nothing(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 3 * UNIT)
    put(cache, 0)
    put(cache, 1, 5 * LENGTH)
    assert has(cache, 0) and not has(cache, 1, 5 * LENGTH)
    assert used(cache) == sizes(cache) == UNIT


def test_a_damaged_block_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = BlockCache(str(tmp_path), 4 * UNIT)
    put(cache, 1)
    put(cache, 2)
    path = Path(cache.path_of(name_of(1)))
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert not has(cache, 1)
    assert "is damaged" in caplog.text
    assert not path.exists() and used(cache) == sizes(cache) == UNIT
    put(cache, 1)
    assert has(cache, 1) and used(cache) == 2 * UNIT


def test_one_thread_at_a_time_has_a_block(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 4 * UNIT)
    claim = cache.claim(name_of(1))
    assert claim is not None
    with claim:
        assert cache.claim(name_of(1)) is None
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(cache.claim(name_of(1))))
        thread.start()
        thread.join()
        assert found == [None]
        other = cache.claim(name_of(2))
        assert other is not None
        with other:
            pass
    put(cache, 1)
    assert not list(tmp_path.glob("*/*.part"))


def test_a_claim_that_stores_nothing_leaves_nothing(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 4 * UNIT)
    claim = cache.claim(name_of(1))
    assert claim is not None
    with pytest.raises(ZeroDivisionError), claim:
        raise ZeroDivisionError
    assert not list(tmp_path.glob("*/*")) and used(cache) == 0


def test_a_failed_write_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    cache = BlockCache(str(tmp_path), 4 * UNIT)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(block_cache.block_file, "write", full)
        put(cache, 1)
    assert not list(tmp_path.glob("*/*")) and used(cache) == 0
    put(cache, 1)
    assert has(cache, 1)


def write_and_wait(cache: BlockCache, number: int, ready: Any) -> None:
    """Stops in the middle of a write: it is killed there."""

    def half(descriptor: int, name: str, data: memoryview) -> None:
        os.pwrite(descriptor, b"half", 0)
        ready.send("written")
        signal.pause()

    block_cache.block_file.write = half
    put(cache, number)


@pytest.fixture
def killed(tmp_path: Path) -> BlockCache:
    """A cache in which a process was killed while it wrote block 1."""
    cache = BlockCache(str(tmp_path), 4 * UNIT)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with ours, theirs:
        process = context.Process(target=write_and_wait, args=(cache, 1, theirs))
        process.start()
        assert ours.recv() == "written"
        assert cache.claim(name_of(1)) is None
        assert not has(cache, 1)
        process.kill()
        process.join()
        process.close()
    assert used(cache) == sizes(cache) == UNIT
    return cache


def test_the_part_of_a_killed_process_is_taken_over(killed: BlockCache) -> None:
    put(killed, 1)
    assert has(killed, 1)
    assert used(killed) == sizes(killed) == UNIT


def test_the_part_of_a_killed_process_makes_room(killed: BlockCache) -> None:
    for number in range(2, 6):
        put(killed, number)
    assert all(has(killed, number) for number in range(2, 6))
    assert used(killed) == sizes(killed) == 4 * UNIT


def test_after_a_restart_of_the_machine_sizes_are_counted(killed: BlockCache, monkeypatch: pytest.MonkeyPatch) -> None:
    put(killed, 2)
    monkeypatch.setattr(block_file, "_boot", lambda: b"another boot".ljust(16))
    put(killed, 3)
    assert used(killed) == sizes(killed) == 2 * UNIT  # and the abandoned part is gone


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 36, b"x" * 100])
def test_a_damaged_account_is_made_again(content: bytes, tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 4 * UNIT)
    put(cache, 1)
    (tmp_path / "used").write_bytes(content)
    put(cache, 2)
    assert used(cache) == sizes(cache) == 2 * UNIT


def test_an_account_that_is_not_free_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As when its owner is stopped."""
    cache = BlockCache(str(tmp_path), 4 * UNIT)
    put(cache, 1)
    monkeypatch.setattr(block_file, "_PAUSE", 0)
    with block_file.account(str(tmp_path / "used"), int):
        put(cache, 2)
        assert has(cache, 1) and not has(cache, 2)
    put(cache, 2)
    assert has(cache, 2)


def test_a_forked_child_does_not_keep_the_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It inherits the file that another thread has locked."""
    cache = BlockCache(str(tmp_path), 4 * UNIT)
    ours, theirs = os.pipe()
    with block_file.account(str(tmp_path / "used"), int):
        child = os.fork()
        if not child:
            os.read(ours, 1)
            os._exit(0)
    monkeypatch.setattr(block_file, "_TRIES", 1)
    put(cache, 1)
    os.write(theirs, b"x")
    os.waitpid(child, 0)
    os.close(ours)
    os.close(theirs)
    assert has(cache, 1)


def fill(folder: str, limit: int, seed: int) -> None:
    cache = BlockCache(folder, limit)
    for step in range(150):
        number = (seed * 7 + step * 5) % 40
        if not has(cache, number) and (claim := cache.claim(name_of(number))) is not None:
            with claim:
                claim.store(memoryview(bytes([number % 251]) * LENGTH))
        with block_file.account(os.path.join(folder, "used"), lambda: -1) as own:
            assert own is not None
            assert own.used == sizes(cache) <= limit


def test_processes_that_fill_a_cache_at_once_keep_its_limit(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=fill, args=(str(tmp_path), 12 * UNIT, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    cache = BlockCache(str(tmp_path), 12 * UNIT)
    assert used(cache) == sizes(cache)
    assert not list(tmp_path.glob("*/*.part"))


def fill_for_ever(folder: str, limit: int, seed: int, progress: Any) -> None:
    cache, rng = BlockCache(folder, limit), random.Random(seed)
    while True:
        number = rng.randrange(40)
        if not has(cache, number) and (claim := cache.claim(name_of(number))) is not None:
            with claim:
                claim.store(memoryview(bytes([number % 251]) * LENGTH))
        progress.send(number)


def test_processes_are_killed_while_they_fill(tmp_path: Path) -> None:
    """Blocks are whole or absent, the limit holds, and the sum is at most too large by the parts that are left."""
    context = multiprocessing.get_context("fork")
    cache = BlockCache(str(tmp_path), 12 * UNIT)
    for seed in range(25):
        ours, theirs = context.Pipe(duplex=False)
        with ours, theirs:
            process = context.Process(target=fill_for_ever, args=(str(tmp_path), 12 * UNIT, seed, theirs))
            process.start()
            for _ in range(seed * 3):
                ours.recv()
            process.kill()
            process.join()
            process.close()
        assert sizes(cache) <= used(cache) <= 12 * UNIT
        for number in range(40):
            has(cache, number)  # compares the contents
    for number in range(60):
        if not has(cache, number):
            put(cache, number)
    assert sizes(cache) == used(cache) <= 12 * UNIT
    assert not list(tmp_path.glob("*/*.part"))


def test_what_else_is_in_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / "notes.txt").write_text("mine")
    (tmp_path / "data.block").write_text("mine")
    cache = BlockCache(str(tmp_path), 2 * UNIT)
    for number in range(5):
        put(cache, number)
    assert (tmp_path / "00" / "notes.txt").exists() and (tmp_path / "data.block").exists()


def test_only_one_process_tells_the_user(tmp_path: Path) -> None:
    cache, other = (BlockCache(str(tmp_path), 2 * UNIT) for _ in range(2))
    assert [cache.is_first_to_tell(60), other.is_first_to_tell(60), other.is_first_to_tell(0)] == [True, False, True]
