"""A block says that there is no memory before it takes any."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from stoker._core.machine.memory import Available
from stoker._engine.serialize import payload
from stoker.errors import MemoryLimitError

MIB = 1 << 20


@pytest.fixture
def block() -> Iterator[payload.Block]:
    with contextlib.closing(payload.Block()) as block:
        yield block


def test_memory_file_can_be_read_back(block: payload.Block) -> None:
    block.write(b"ab")
    start = block.align(4096)
    block.write(memoryview(b"cde"))
    assert (start, block.size) == (4096, 4099)
    assert os.pread(block.fd, 5000, 0) == b"ab" + bytes(4094) + b"cde"


def test_a_lack_of_memory_is_said_before_anything_is_written(
    block: payload.Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "available", lambda: Available(100 * MIB, 200 * MIB, "memory cgroup /box (v2)"))
    block.write(b"a")
    with pytest.raises(
        MemoryLimitError, match=r"70.0 MiB more are needed .* 100.0 MiB are available of 200.0 MiB .*/box"
    ):
        block.write(bytes(70 * MIB))
    assert os.fstat(block.fd).st_size == 1


def test_small_writes_do_not_each_check_the_memory(block: payload.Block, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(payload, "available", lambda: asked.append(1) or Available(1 << 40, 1 << 40, "the machine"))
    for _ in range(1000):
        block.write(bytes(1000))
    assert len(asked) == 1


def test_the_systems_own_refusal_is_the_same_error(block: payload.Block, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(MemoryLimitError, match="the system refused it: No space left"):
        block.write(b"a")


def test_the_limit_on_the_size_of_files_is_named(block: payload.Block) -> None:
    """It holds for files in memory as well."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(MemoryLimitError, match="`ulimit -f`"):
            block.write(bytes(8192))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
