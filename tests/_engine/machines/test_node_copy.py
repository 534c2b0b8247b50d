"""The file in memory that agents of one machine share, between processes."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine.machines import node_copy
from stoker._engine.machines.node_copy import NodeCopy
from stoker.errors import MemoryLimitError
from tests._engine.machines.local_cluster import LocalCluster
from tests._engine.machines.local_pool import LocalPool, await_end

DATA = [memoryview(b"x" * 5000), memoryview(b"y" * 3)]


def contents(copy: NodeCopy) -> list[bytes]:
    with mmap.mmap(copy.fd, 0, access=mmap.ACCESS_READ) as whole:
        return [whole[start : start + size] for start, size in copy.places]


def inode(copy: NodeCopy) -> int:
    return os.fstat(copy.fd).st_ino


def test_agents_of_one_machine_share_one_file() -> None:
    name = secrets.token_hex()
    first, second, other = NodeCopy(name, DATA), NodeCopy(name, DATA), NodeCopy(secrets.token_hex(), DATA)
    assert inode(first) == inode(second) != inode(other)
    first.close()
    assert contents(second) == contents(other) == [b"x" * 5000, b"yyy"]
    third = NodeCopy(name, DATA)  # nobody hands it out any more
    assert inode(third) != inode(second) and contents(third) == contents(second)
    for copy in (second, other, third):
        copy.close()


def test_first_agent_that_fails_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    name = secrets.token_hex()
    with monkeypatch.context() as patched:

        def refused(views: Any) -> int:
            raise MemoryLimitError("no memory")

        patched.setattr(node_copy, "_written", refused)
        with pytest.raises(MemoryLimitError):
            NodeCopy(name, DATA)
    copy = NodeCopy(name, DATA)
    assert contents(copy) == [b"x" * 5000, b"yyy"]
    copy.close()


def test_agent_that_hands_nothing_out_is_awaited_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_copy, "PATIENCE", 0.05)
    name = secrets.token_hex()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"\0stoker-{name}")
        copy = NodeCopy(name, DATA)
    assert contents(copy) == [b"x" * 5000, b"yyy"]
    copy.close()


def test_another_user_gets_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_copy, "PATIENCE", 0.05)
    name = secrets.token_hex()
    first, user = NodeCopy(name, DATA), os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    second = NodeCopy(name, DATA)
    assert inode(first) != inode(second)
    first.close()
    second.close()


def test_system_without_such_names_has_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nowhere(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(errno.EINVAL, "no such names")

    monkeypatch.setattr(socket, "socket", Nowhere)
    copy = NodeCopy("any", DATA)
    assert contents(copy) == [b"x" * 5000, b"yyy"]
    copy.close()


class Large(stoker.Dataset[Any]):
    """Samples name the file in which the array lies, and write to it. The first of each worker waits for the other."""

    def __init__(self, folder: Path) -> None:
        self.array = np.zeros(1 << 18, np.uint8)
        self.folder = folder

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        worker = stoker.get_worker_info().id  # type: ignore[union-attr]
        (self.folder / f"{worker}").touch()
        while len(os.listdir(self.folder)) < 2:
            time.sleep(0.01)
        before = int(self.array[0])
        self.array[0] = worker + 1
        return np.array([worker, before, self._file()])

    def _file(self) -> int:
        address = self.array.__array_interface__["data"][0]
        with open("/proc/self/maps") as maps:
            for line in maps:
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                if start <= address < end:
                    return int(line.split()[4])
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["workers", "pool"])
def test_workers_map_one_file_and_write_their_own(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "seen").mkdir()
    remote = LocalCluster(2) if cluster == "workers" else LocalPool(2, folder=str(tmp_path / "pool"), pool="p")
    with stoker.DataLoader(Large(tmp_path / "seen"), 1, remote=remote, output="numpy", timeout=90) as loader:
        rows = [batch[0].tolist() for batch in loader]
    await_end(str(tmp_path / "pool"))
    assert {worker for worker, _, _ in rows} == {0, 1}
    assert len({file for _, _, file in rows}) == 1 and rows[0][2]
    assert all(before in (0, worker + 1) for worker, before, _ in rows)
