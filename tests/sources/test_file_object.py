from __future__ import annotations

import io
import random

import pytest

from stoker.sources.storage import BLOCK, HELD, LARGEST, FileObject, Version


class Counted:
    """A file in memory that notes what is read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.version = Version(len(data), 1)
        self.reads: list[tuple[int, int]] = []

    def read(self, begin: int, length: int) -> bytes:
        self.reads.append((begin, length))
        return self.data[begin : begin + length]


@pytest.mark.parametrize("size", [0, 1, BLOCK, 5 * BLOCK + 7, HELD + 10 * BLOCK + 3])
def test_reads_like_a_file(size: int) -> None:
    draw = random.Random(size)
    data = draw.randbytes(size)
    file, model = FileObject(Counted(data)), io.BytesIO(data)
    for _ in range(200):
        if draw.random() < 0.5:
            place = draw.randrange(size + 10), io.SEEK_SET
            whence = draw.choice([place, (draw.randrange(size + 1) - size, io.SEEK_END), (0, io.SEEK_CUR)])
            assert file.seek(*whence) == model.seek(*whence)
        length = draw.choice([0, 1, 500, BLOCK, draw.randrange(3 * BLOCK)])
        assert file.read(length) == model.read(length) and file.tell() == model.tell()
    assert file.seek(0) == 0 and file.readall() == data


def test_more_is_read_at_once_from_front_to_back() -> None:
    held = Counted(bytes(40 << 20))
    file = FileObject(held)
    while file.read(10_000):
        pass
    assert len(held.reads) < 20 and max(length for _, length in held.reads) == LARGEST
    assert sum(length for _, length in held.reads) == len(held.data), "each byte once"


def test_jumps_read_little_and_what_is_held_is_not_read_again() -> None:
    held = Counted(bytes(40 << 20))
    file = FileObject(held)
    for place in (30 << 20, 5, 20 << 20, 30 << 20, 5):
        file.seek(place)
        file.read(100)
    assert [length for _, length in held.reads] == [BLOCK] * 3


def test_memory_is_bounded() -> None:
    held = Counted(bytes(HELD * 2))
    file = FileObject(held)
    while file.read(BLOCK):
        assert sum(map(len, file._blocks.values())) <= HELD + LARGEST
    file.seek(0)
    assert len(file.read(HELD + BLOCK)) == HELD + BLOCK, "one read of more than is kept"
