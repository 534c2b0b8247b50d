"""Messages arrive whole and in order, and neither end is ever blocked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker._engine.messages import Broken, Drop, GaveUp, Resume
from stoker._engine.process.channel import Channel, pair


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = map(Channel, pair())
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_in_order(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    for number in range(100):
        here.send(Broken(b"x" * number))
    assert there.receive() == [Broken(b"x" * number) for number in range(100)]
    assert there.receive() == [] and not there.ended


def test_reader_that_does_not_read_blocks_no_writer(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    big = bytes(5 << 20)
    here.send(Resume(big))
    here.send(Drop(7))
    assert here.unsent
    got = []
    while len(got) < 2:
        got += there.receive()
        here.flush()
    assert got == [Resume(big), Drop(7)] and not here.unsent


def test_end_of_a_peer_is_noticed_after_its_last_message(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    here.send(GaveUp("last"))
    here.close()
    assert there.receive() == [GaveUp("last")]
    there.receive()
    assert there.ended
    there.send(GaveUp("too late"))
    assert not there.unsent


def test_incomplete_message_is_not_delivered() -> None:
    raw, other = pair()
    there = Channel(other)
    raw.send(b"\x50\x00\x00\x00\x00\x00\x00\x00half")
    assert there.receive() == [] and not there.ended
    raw.close()
    assert there.receive() == [] and there.ended
    there.close()
