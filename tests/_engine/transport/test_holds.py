"""A slot that a device still reads is not written again, though no view of it is left."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stoker._engine.transport import arena, owned, segments
from stoker._engine.transport.arena import Arena, Board, Slot
from stoker._engine.transport.reader import Reader
from stoker._engine.transport.segments import ArenaFiles
from stoker._engine.transport.writer import SlotWriter

ELEMENTS = 1 << 16


class Line:
    """Both ends of the transport, and the arena between them, in one process."""

    def __init__(self, budget: int = 1 << 30, with_board: bool = True) -> None:
        self.descriptor = segments.create()
        self.board = Board(self.descriptor) if with_board else None
        self.arena = Arena(ArenaFiles([self.descriptor]), begin=arena.SIZE if with_board else 0)
        self.reader = Reader(ArenaFiles([self.descriptor]), budget, Board(self.descriptor) if with_board else None)
        self.writer = SlotWriter(ArenaFiles([self.descriptor]), self.arena.take)

    def send(self, batch: Any) -> Any:
        slot = self.arena.take(batch.nbytes)
        self.writer.begin(slot)
        written = self.writer.finish(batch)
        self.writer.let_go()
        return self.reader.read(slot, written)

    def free(self) -> list[int]:
        """Returns the numbers of the slots that have come back."""
        gc.collect()
        return [*self.reader.returned(), *(self.board.collect() if self.board is not None else ())]

    def close(self) -> None:
        self.reader.close()
        self.writer.begin(None)
        self.writer._mappings.clear()
        os.close(self.descriptor)
        self.board = None


@pytest.fixture(params=[True, False], ids=["board", "messages"])
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    line = Line(with_board=request.param)
    yield line
    line.close()
    owned.look()
    assert not owned.pending()


def array(value: float) -> np.ndarray[Any, Any]:
    return np.full(ELEMENTS, value, np.float32)


class Event:
    """An event of a device: it has come, or it has not."""

    def __init__(self) -> None:
        self.has_come = False
        self.asked = 0

    def query(self) -> bool:
        self.asked += 1
        return self.has_come


def test_held_slot_comes_back_only_after_release(line: Line) -> None:
    batch = line.send(array(1))
    address = batch.ctypes.data
    hold = line.reader.hold()
    del batch
    assert hold.is_active and line.free() == []
    other = line.send(array(2))  # not over the first, which a device may still read
    assert other.ctypes.data != address and line.reader.leased_bytes >= 2 * 4 * ELEMENTS
    hold.release()
    hold.release()
    assert not hold.is_active and len(line.free()) == 1
    assert (other == 2).all()


def test_held_slot_keeps_its_contents(line: Line) -> None:
    batch = line.send(array(7))
    slot = Slot(*line.arena.slot(0))
    hold = line.reader.hold()
    del batch
    for value in range(3):
        line.send(array(value))
    kept = segments.read(line.descriptor, slot.offset, 4 * ELEMENTS)
    assert (np.frombuffer(kept, np.float32) == 7).all()
    hold.release()


def test_release_before_the_last_view_changes_nothing(line: Line) -> None:
    batch = line.send(array(1))
    line.reader.hold().release()
    assert line.free() == [] and (batch == 1).all()
    del batch
    assert len(line.free()) == 1


def test_hold_lasts_until_its_event(line: Line) -> None:
    batch, event = line.send(array(1)), Event()
    line.reader.hold().until(event.query)
    del batch
    assert line.free() == [] and line.free() == [] and event.asked == 2
    event.has_come = True
    assert len(line.free()) == 1 and event.asked == 3
    assert line.free() == [] and event.asked == 3 and not owned.pending()


def test_two_holds_of_a_batch_both_count(line: Line) -> None:
    batch = line.send(array(1))
    first, second = line.reader.hold(), line.reader.hold()
    del batch
    first.release()
    assert line.free() == []
    second.release()
    assert len(line.free()) == 1


def test_batches_without_a_slot_need_no_hold(line: Line) -> None:
    assert not line.reader.hold().is_active  # none was read
    line.send(array(1))  # its last view is gone already
    gc.collect()
    hold = line.reader.hold()
    assert not hold.is_active and len(line.free()) == 1
    asked: list[int] = []
    hold.until(lambda: bool(asked.append(1)))
    line.free()
    assert not asked and not owned.pending()


def test_batches_copied_out_need_no_hold() -> None:
    line = Line(budget=0)
    batch = line.send(array(1))
    assert not line.reader.hold().is_active and (batch == 1).all()
    line.close()


def test_event_that_fails_ends_its_hold(line: Line) -> None:
    batch = line.send(array(1))
    line.reader.hold().until(lambda: bool(1 / 0))
    del batch
    with pytest.raises(ZeroDivisionError):
        line.free()
    assert len(line.free()) == 1


def test_held_slot_outlives_its_loader() -> None:
    line = Line()
    batch, event = line.send(array(3)), Event()
    memory = weakref.ref(batch.base if isinstance(batch.base, np.ndarray) else batch)
    hold = line.reader.hold()
    hold.until(event.query)
    address = batch.ctypes.data
    del batch
    line.close()
    del line
    gc.collect()
    assert memory() is None and hold.is_active
    import ctypes

    assert ctypes.c_float.from_address(address).value == 3  # still mapped
    event.has_come = True
    owned.look()
    assert not hold.is_active and not owned.pending()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_asks_no_event_of_its_parent(line: Line) -> None:
    batch, event = line.send(array(1)), Event()
    line.reader.hold().until(event.query)
    del batch
    pid = os.fork()
    if not pid:
        os._exit(int(owned.pending()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and owned.pending()
    event.has_come = True
    owned.look()
