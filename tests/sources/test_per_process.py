from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stoker.sources.per_process import MOST_OPEN, OpenFiles, PerProcess
from stoker.sources.storage import LocalFile, LocalStorage


class Handle:
    def __init__(self) -> None:
        self.process = os.getpid()
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def in_child(ask: object) -> bytes:
    """What a function returns in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, ask())  # type: ignore[operator]
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as message:
        answer = message.read()
    os.waitpid(child, 0)
    return answer


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_handle_is_opened_once_and_closed() -> None:
    held = PerProcess(Handle, Handle.close)
    handle = held.get()
    assert held.get() is handle and handle.is_open
    held.close()
    assert not handle.is_open
    second = held.get()
    assert second is not handle and second.is_open
    del held
    gc.collect()
    assert not second.is_open


def test_failed_opening_is_tried_again() -> None:
    answers = iter([OSError("busy"), Handle()])

    def opens() -> Handle:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    held = PerProcess(opens)
    with pytest.raises(OSError, match="busy"):
        held.get()
    assert held.get().is_open


def test_copies_open_their_own_handle() -> None:
    held = PerProcess(Handle, Handle.close)
    handle = held.get()
    copy = pickle.loads(pickle.dumps(held))
    assert copy.get() is not handle
    assert handle.is_open


@pytest.mark.parametrize("keeps", [True, False])
def test_forked_child_opens_its_own_handle(keeps: bool) -> None:
    held = PerProcess(Handle, Handle.close, keeps_inherited=keeps)
    handle = held.get()

    def ask() -> bytes:
        own = held.get()
        return b"%d %d %d" % (own is not handle, own.process == os.getpid(), handle.is_open)

    assert in_child(ask) == b"1 1 1", "the parent's handle must not be used or closed by the child"
    assert held.get() is handle


def test_inherited_handle_is_not_finalised_in_a_child() -> None:
    # A program of its own: pytest keeps an object whose finaliser failed, so it would not be finalised either
    program = """
import os
from stoker.sources.per_process import PerProcess

class Finalised:
    def __del__(self):
        os.write(1, b"finalised in the %s\\n" % (b"parent" if os.getpid() == parent else b"child"))

parent = os.getpid()
held = PerProcess(Finalised, keeps_inherited=True)
held.get()
child = os.fork()
del held
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("finalised in the parent\n", "")


def test_handles_close_after_their_modules_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    program = f"""
import os
from stoker.sources import per_process, storage

handle = per_process.PerProcess(lambda: storage.LocalFile({str(tmp_path / "file")!r}), lambda file: None)
descriptor = handle.get()._descriptor
for module in (per_process, storage):
    for name in list(vars(module)):
        setattr(module, name, None)  # as at interpreter exit
del handle
try:
    os.fstat(descriptor)
except OSError:
    print("closed")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("closed\n", "")


def test_threads_share_one_handle() -> None:
    barrier = threading.Barrier(4)
    opened: list[Handle] = []

    def opens() -> Handle:
        barrier.wait(10)  # all of them find none
        opened.append(Handle())
        return opened[-1]

    held, found = PerProcess(opens, Handle.close), []
    threads = [threading.Thread(target=lambda: found.append(held.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4 and len({id(handle) for handle in found}) == 1
    assert [handle.is_open for handle in opened].count(True) == 1 and found[0].is_open


def test_open_files_are_bounded(tmp_path: Path) -> None:
    paths = [str(tmp_path / str(number)) for number in range(2 * MOST_OPEN)]
    for path in paths:
        Path(path).write_text(path)
    before = descriptors()
    files = OpenFiles(LocalStorage())
    first = files.get(paths[0])
    for path in [*paths, *paths]:
        assert files.get(path).read(0, 1000) == path.encode()
    assert descriptors() - before <= MOST_OPEN + 1
    assert first.read(0, 1000) == paths[0].encode(), "a file that is in use was closed"
    files.close()
    del first
    assert descriptors() == before


def test_child_does_not_read_by_the_parents_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    files = OpenFiles(LocalStorage())
    files.get(str(path))
    path.unlink()
    path.write_text("new")
    assert in_child(lambda: files.get(str(path)).read(0, 10)) == b"new"
    assert files.get(str(path)).read(0, 10) == b"old"


def test_local_file_is_read_by_position(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    file = LocalFile(str(path))
    assert file.version.size == 100 and file.version.mtime_ns == path.stat().st_mtime_ns
    assert file.read(90, 5) == bytes(range(90, 95))
    assert file.read(95, 50) == bytes(range(95, 100))
    assert file.read(200, 5) == b""
    assert LocalStorage().read(str(path), 1, 2) == b"\1\2"


def test_pipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(OSError, match="not a regular file"):
            LocalFile(str(path))
    finally:
        os.close(writer)
