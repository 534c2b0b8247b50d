"""An arena has several files where the limit on file sizes (`ulimit -f`) is lower than all its slots together."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from stoker._core.machine.memory import Available
from stoker._engine.transport import arena, segments
from stoker._engine.transport.arena import SIZE, Arena, Board
from stoker._engine.transport.reader import Reader
from stoker._engine.transport.segments import ArenaFiles
from stoker._engine.transport.writer import SlotWriter
from stoker.errors import MemoryLimitError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory files are Linux's")

LIMIT = 160 * segments.PAGE


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[ArenaFiles]:
    for module in (arena, segments):
        monkeypatch.setattr(module, "file_limit", lambda: LIMIT + 5)
    monkeypatch.setattr(segments, "available", lambda: Available(3 * LIMIT - 5, 1 << 40, "a test"))
    files = ArenaFiles.create()
    yield files
    files.close()


def test_as_many_files_as_the_memory_fills(files: ArenaFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(files) == 3
    for limit, number in ((sys.maxsize, 1), (0, 1), (segments.PAGE, segments.MOST)):
        monkeypatch.setattr(segments, "file_limit", lambda limit=limit: limit)
        monkeypatch.setattr(segments, "available", lambda: Available(1 << 40, 1 << 40, "a test"))
        made = ArenaFiles.create()
        assert len(made) == number
        made.close()


def test_a_slot_lies_in_one_file(files: ArenaFiles) -> None:
    slots = Arena(files, begin=SIZE)
    taken = [slots.take(50 * segments.PAGE) for _ in range(9)]
    places = [files.at(slot.offset) for slot in taken]
    assert [files.index(place.descriptor) for place in places] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [place.offset // segments.PAGE for place in places] == [1, 51, 101, 0, 50, 100, 0, 50, 100]
    assert files.reserved_bytes == 450 * segments.PAGE
    with pytest.raises(MemoryLimitError, match=r"`ulimit -f`.*the 3 files for batches are full"):
        slots.take(50 * segments.PAGE)


def test_batch_above_the_limit_names_it(files: ArenaFiles) -> None:
    slots = Arena(files, begin=SIZE)
    assert files.at(slots.take(LIMIT).offset) == (files[1], 0)
    with pytest.raises(MemoryLimitError, match=r"a batch needs 0\.6 MiB, but the limit on file sizes \(`ulimit -f`\)"):
        slots.take(LIMIT + 1)


def test_batches_of_all_files_are_read_and_freed(files: ArenaFiles) -> None:
    slots, board = Arena(files, begin=SIZE), Board(files[0])
    reader, kept = Reader(files, 1 << 30, board), []
    for number in range(6):
        writer = SlotWriter(files, slots.take)
        writer.begin(slots.take(60 * segments.PAGE))
        written = writer.finish(np.full(30_000, number))
        writer.let_go()
        kept.append(reader.read(slots.slot(written.slot), written))
    assert [int(batch.sum()) for batch in kept] == [number * 30_000 for number in range(6)]
    del kept[::2]
    reader.close()
    assert files.reserved_bytes == 180 * segments.PAGE
    assert [int(batch[-1]) for batch in kept] == [1, 3, 5]


def test_board_is_reserved_before_it_is_written(tmp_path: os.PathLike[str]) -> None:
    with open(os.path.join(tmp_path, "file"), "w+b") as file:
        Board(file.fileno())
        assert os.fstat(file.fileno()).st_blocks * 512 >= SIZE
