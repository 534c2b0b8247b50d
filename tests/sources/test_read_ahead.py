from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from stoker._core.worker_info import current
from stoker.errors import FileChangedError
from stoker.sources import read_ahead
from stoker.sources.read_ahead import FIRST, GAP, LARGEST, ReadAhead, ahead, coalesced, held
from stoker.sources.storage import LocalFile, Version

SIZE = 3 * LARGEST + 12345
CONTENT = random.Random(0).randbytes(SIZE)


class Counted:
    """A file in memory that keeps the ranges that were read."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.version = Version(len(content), 0, "a")
        self.ranges: list[tuple[int, int]] = []

    def read(self, begin: int, length: int) -> bytes:
        self.ranges.append((begin, begin + length))
        return self.content[begin : begin + length]


class Ranged(Counted):
    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(begin, end - begin) for begin, end in ranges]


@pytest.fixture(params=["trainer", "worker"])
def process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thread that reads ahead in a worker, and without one."""
    if request.param == "worker":
        monkeypatch.setattr(type(current), "info", object())


@pytest.mark.parametrize("kind", [Counted, Ranged])
def test_any_reads_give_the_bytes_of_the_file(kind: type[Counted], process: None) -> None:
    draw = random.Random(1)
    for _ in range(20):
        file, at = ReadAhead(kind()), 0
        for _ in range(60):
            at = max(0, min(SIZE, at + draw.choice([0, 0, 512, 9000, 100_000, -600, GAP, 2 * GAP, -3 * GAP])))
            length = draw.choice([0, 1, 512, 8192, 120_000, 700_000, 5_000_000])
            assert file.read(at, length) == CONTENT[at : at + length]
            at += length


def test_reading_on_takes_few_large_requests(process: None) -> None:
    inner = Ranged()
    file = ReadAhead(inner)
    for begin in range(0, SIZE, 5000):
        assert file.read(begin, 5000) == CONTENT[begin : begin + 5000]
    assert sum(end - begin for begin, end in inner.ranges) == SIZE and len(inner.ranges) < 30


def test_jumps_take_small_requests() -> None:
    inner = Counted()
    file = ReadAhead(inner)
    for begin in range(0, SIZE, 3 * GAP):
        file.read(begin, 512)
    assert all(end - begin <= FIRST for begin, end in inner.ranges)


def test_little_is_read_behind_the_stop(process: None) -> None:
    inner = Ranged()
    file = ReadAhead(inner)
    file.stop = 2_000_000
    for begin in range(0, 2_000_000, 5000):
        file.read(begin, 5000)
    assert max(end for _, end in inner.ranges) <= 2_000_000 + FIRST


def test_error_comes_with_the_bytes_that_cannot_be_read(process: None) -> None:
    file = ReadAhead(Counted(CONTENT[:1_000_000]))
    file._size = file.stop = file.version.size + 10
    read = 0
    with pytest.raises(FileChangedError, match="a file ends at byte 1000000"):
        for begin in range(0, 1_000_010, 50_000):
            file.read(begin, 50_000)
            read = begin + 50_000
    assert read >= 500_000


def test_local_files_are_read_as_they_are(tmp_path: object) -> None:
    file = LocalFile(__file__)
    assert ahead(file) is file and isinstance(ahead(Counted()), ReadAhead)


def test_ranges_are_joined() -> None:
    assert coalesced([(50, 60), (0, 10), (10, 20), (5, 5), (25, 30)], gap=5) == [(0, 30), (50, 60)]
    inner = Ranged()
    file = held(inner, [(3 * GAP, 3 * GAP + 10), (100, 200), (300, 400)])
    assert inner.ranges == [(100, 400), (3 * GAP, 3 * GAP + 10)]
    assert file.read(150, 60) == CONTENT[150:210] and file.read(3 * GAP, 10) == CONTENT[3 * GAP : 3 * GAP + 10]
    assert len(inner.ranges) == 2
    assert file.read(50, 60) == CONTENT[50:110], "not held"
    assert read_ahead.GAP == 1 << 20
