from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from stoker.sources import block_file
from stoker.sources.block_file import PAGE, on_disk, size_of

NAME = "0123456789abcdef" * 2
OTHER = "ff" * 16


def written(path: Path, data: bytes, name: str = NAME) -> Path:
    with open(path, "wb") as file:
        block_file.write(file.fileno(), name, memoryview(data))
    return path


def read(path: Path, length: int, begin: int, end: int, name: str = NAME) -> bytes | None:
    with open(path, "rb") as file:
        return block_file.read(file.fileno(), name, length, begin, end)


@pytest.mark.parametrize("length", [1, 100, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 17])
def test_every_range_is_what_was_written(length: int, tmp_path: Path) -> None:
    data = np.random.default_rng(length).bytes(length)
    path = written(tmp_path / "block", data)
    assert os.path.getsize(path) == size_of(length)
    edges = sorted({0, 1, length // 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, length - 1, length})
    for begin in edges:
        for end in edges:
            if begin < end <= length:
                assert read(path, length, begin, end) == data[begin:end]


def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(PAGE + 50)
    whole = written(tmp_path / "block", data).read_bytes()
    for at in [*range(0, size_of(len(data)) - len(data)), *range(100, len(whole), 999), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1
        (tmp_path / "damaged").write_bytes(damaged)
        assert read(tmp_path / "damaged", len(data), 0, len(data)) is None, f"byte {at}"


def test_only_the_pages_that_are_read_are_verified(tmp_path: Path) -> None:
    data = bytes(3 * PAGE)
    path = written(tmp_path / "block", data)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert read(path, len(data), 0, 2 * PAGE) == bytes(2 * PAGE)
    assert read(path, len(data), 2 * PAGE, 2 * PAGE + 1) is None


def test_a_file_cut_short_or_of_another_block_is_none(tmp_path: Path) -> None:
    data = bytes(range(200))
    path = written(tmp_path / "block", data)
    assert read(path, 200, 0, 200, name=OTHER) is None
    assert read(path, 199, 0, 199) is None
    for size in (0, 10, size_of(200) - 201, size_of(200) - 1):
        os.truncate(path, size)
        assert read(path, 200, 0, 200) is None
        written(path, data)


def test_sizes_on_disk_are_whole_units() -> None:
    assert [on_disk(size) for size in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
