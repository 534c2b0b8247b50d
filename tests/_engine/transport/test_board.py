"""Where the trainer leaves word of slots that it has let go of."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from stoker._engine.transport import arena, segments
from stoker._engine.transport.arena import Board


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = segments.create()
    yield descriptor
    os.close(descriptor)


def test_posted_slot_is_collected_once(descriptor: int) -> None:
    trainers, zygotes = Board(descriptor), Board(descriptor)
    assert zygotes.collect() == []
    for number in (7, 0, arena.SIZE - 1):
        trainers.post(number)
    assert zygotes.collect() == [0, 7, arena.SIZE - 1]
    assert zygotes.collect() == []
    trainers.post(7)
    assert zygotes.collect() == [7]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_posts_nothing(descriptor: int) -> None:
    here = Board(descriptor)
    pid = os.fork()
    if not pid:
        here.post(3)
        os._exit(0)
    os.waitpid(pid, 0)
    assert here.collect() == []


def test_post_beyond_the_board_is_an_index_error(descriptor: int) -> None:
    with pytest.raises(IndexError):
        Board(descriptor).post(arena.SIZE)


def test_longer_file_keeps_its_length(descriptor: int) -> None:
    os.ftruncate(descriptor, 10 * arena.SIZE)
    Board(descriptor)
    assert os.fstat(descriptor).st_size == 10 * arena.SIZE
