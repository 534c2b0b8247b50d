"""Messages arrive whole, in order, and nobody is ever blocked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
        here.send("unit", number, b"x" * number)
    assert there.receive() == [("unit", number, b"x" * number) for number in range(100)]
    assert there.receive() == [] and not there.ended


def test_a_reader_that_does_not_read_blocks_nobody(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    big = bytes(5 << 20)
    here.send("big", big)
    here.send("last")
    assert here.unsent
    got = []
    while len(got) < 2:
        got += there.receive()
        here.flush()
    assert got == [("big", big), ("last",)] and not here.unsent


def test_a_peer_that_is_gone_is_noticed_after_its_last_word(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    here.send("last")
    here.close()
    assert there.receive() == [("last",)]
    there.receive()
    assert there.ended
    there.send("too late")
    assert not there.unsent


def test_half_a_message_is_none() -> None:
    raw, other = pair()
    there = Channel(other)
    raw.send(b"\x50\x00\x00\x00\x00\x00\x00\x00half")
    assert there.receive() == [] and not there.ended
    raw.close()
    assert there.receive() == [] and there.ended
    there.close()
