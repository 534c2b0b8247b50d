"""The bridge's end of a worker's connection: whole messages, and batches that go where the bridge says."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator

import pytest

from stoker._engine.backend import UnitReport
from stoker._engine.machines.batch_link import BatchLink
from stoker._engine.messages import FromWorker, Leaves, UnitDone, packed, plain


def batch(unit: int, size: int) -> UnitDone:
    return UnitDone(unit, "batch", (5, size, b"", b"", {}), 0.1, plain(UnitReport()), 0.1)


def wire(message: FromWorker) -> bytes:
    data = pickle.dumps(packed(message), 5)
    return struct.pack("<Q", len(data)) + data


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, BatchLink]]:
    theirs, ours = socket.socketpair()
    link = BatchLink(ours)
    yield theirs, link
    theirs.close()
    link.close()


def test_batch_waits_for_memory_and_goes_there(ends: tuple[socket.socket, BatchLink]) -> None:
    theirs, link = ends
    theirs.sendall(wire(batch(7, 4)) + b"abcd" + wire(Leaves()))
    assert link.next() is None and link.waits is not None and link.waits.unit == 7
    assert link.next() is None  # nothing behind it is read
    memory = bytearray(4)
    link.give(memoryview(memory))
    assert link.next() == batch(7, 4) and bytes(memory) == b"abcd"
    assert link.next() == Leaves() and link.next() is None


def test_message_arrives_byte_by_byte(ends: tuple[socket.socket, BatchLink]) -> None:
    theirs, link = ends
    memory = bytearray(3)
    data = wire(batch(1, 3))
    for at in range(len(data)):
        assert link.next() is None and link.waits is None
        theirs.sendall(data[at : at + 1])
    assert link.next() is None and link.waits is not None
    link.give(memoryview(memory))
    for byte in b"xyz":
        assert link.next() is None
        theirs.sendall(bytes([byte]))
    assert link.next() == batch(1, 3) and bytes(memory) == b"xyz"


def test_end_in_the_middle_of_a_batch_shows(ends: tuple[socket.socket, BatchLink]) -> None:
    theirs, link = ends
    theirs.sendall(wire(batch(1, 3)) + b"x")
    theirs.shutdown(socket.SHUT_WR)
    assert link.next() is None and not link.ended
    link.give(memoryview(bytearray(3)))
    assert link.next() is None and link.ended


def test_batch_without_memory_is_dropped(ends: tuple[socket.socket, BatchLink]) -> None:
    theirs, link = ends
    size = (1 << 16) + 3
    theirs.sendall(wire(batch(1, size)))
    assert link.next() is None
    link.skip()
    theirs.sendall(bytes(size))
    assert link.next() == batch(1, size)
    theirs.sendall(wire(Leaves()))
    assert link.next() == Leaves()


def test_batch_without_bytes_is_a_message(ends: tuple[socket.socket, BatchLink]) -> None:
    theirs, link = ends
    small = UnitDone(3, "batch", (None, 0, b"", b"pickle", {}), 0.1, plain(UnitReport()), 0.1)
    theirs.sendall(wire(small))
    assert link.next() == small and link.waits is None
