"""A remote worker at the bridge: its batch finds a slot, or an error takes its place."""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest

from stoker._engine.backend import UnitReport
from stoker._engine.machines.remote import Remote
from stoker._engine.machines.remote_worker import Role, source_of
from stoker._engine.messages import (
    Activities,
    FromRemote,
    Message,
    SlotGiven,
    SlotWanted,
    Unit,
    UnitDone,
    Unpickled,
    packed,
    plain,
    unpacked,
)
from stoker._engine.process.channel import Channel, pair
from stoker._engine.timings import UnitTimings
from stoker._engine.transport.leaves import Leaf, pack
from stoker.errors import CannotSendError, WorkerStartError

MEMORY = bytearray(64)


class Ends:
    """A remote worker of the bridge, with the zygote's and the worker's end in the hands of the test."""

    def __init__(self) -> None:
        zygotes, ours = pair()
        theirs, data = socket.socketpair()
        self.zygote: Channel[FromRemote] = Channel(zygotes)
        self.worker: Channel[Unit] = Channel(theirs)
        self._ours: Channel[SlotGiven] = Channel(ours)
        self.remote = Remote(3, b"token", self._ours, self.memory)
        self.remote.connected(False, data)

    def memory(self, number: int, offset: int, capacity: int, size: int) -> memoryview:
        return memoryview(MEMORY)[offset : offset + size]

    def asks(self, unit: int) -> None:
        self.remote.pass_on(packed(Unit(unit, b"work", [], (), None)))
        self.worker.receive()

    def answers(self, unit: int, data: bytes, leaves: bytes = b"", pickled: object = b"pickle") -> None:
        value = (0, len(data), leaves, pickled, {})
        self.worker.send(UnitDone(unit, "batch", value, 0.5, plain(UnitReport()), 0.25))
        self.worker.queue_bytes(memoryview(data))
        self.worker.flush()
        self.remote.read()

    def heard(self) -> list[Message]:
        messages = self.zygote.receive()
        assert all(message.worker == 3 for message in messages)
        return [unpacked(message.message) for message in messages]

    def close(self) -> None:
        self.remote.close()
        for channel in (self.zygote, self.worker, self._ours):
            channel.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_part_of_a_batch_is_a_sign_of_life(ends: Ends) -> None:
    ends.remote.pass_on(packed(Unit(8, b"work", [(2, 16, 8)], (), None)))
    ends.answers(8, b"whole")
    heard = ends.remote.heard
    ends.remote.read()
    assert ends.remote.heard == heard > 0
    ends.worker.queue_bytes(memoryview(b"\x10"))
    ends.worker.flush()
    ends.remote.read()
    assert ends.remote.heard > heard


def test_offered_slot_is_used_without_a_question(ends: Ends) -> None:
    ends.remote.pass_on(packed(Unit(8, b"work", [(2, 16, 8)], (), None)))
    (unit,) = ends.worker.receive()
    assert not unit.slots and unit.work == b"work"
    ends.answers(8, b"12345678")
    (done,) = ends.heard()
    assert isinstance(done, UnitDone) and done.value == (2, 8, b"", b"pickle", {}) and done.unit == 8
    assert MEMORY[16:24] == b"12345678"


def test_slot_is_asked_for_where_the_offered_one_is_small(ends: Ends) -> None:
    ends.remote.pass_on(packed(Unit(8, b"work", [(2, 16, 4)], (), None)))
    ends.answers(8, b"abcdefgh")
    assert ends.heard() == [SlotWanted(8, 8, 1, 0)]
    ends.remote.read()  # it waits
    assert ends.heard() == []
    ends.remote.pass_on(packed(SlotGiven(0, (9, 0, 64))))  # the answer to another question
    ends.remote.read()
    assert ends.heard() == []
    ends.remote.pass_on(packed(SlotGiven(1, (4, 32, 8))))
    ends.remote.read()
    (done,) = ends.heard()
    assert isinstance(done, UnitDone) and isinstance(done.value, tuple) and done.value[0] == 4
    assert MEMORY[32:40] == b"abcdefgh"


def test_batch_without_memory_is_an_error_and_the_next_is_read(ends: Ends) -> None:
    ends.asks(8)
    ends.answers(8, b"abcd")
    ends.heard()
    ends.remote.pass_on(packed(SlotGiven(1, "a batch needs more than there is")))
    ends.remote.read()
    (done,) = ends.heard()
    assert isinstance(done, UnitDone) and done.kind == "error"
    assert "more than there is" in pickle.loads(done.value).text  # type: ignore[arg-type]
    ends.remote.pass_on(packed(Unit(9, b"work", [(2, 0, 8)], (), None)))
    ends.answers(9, b"ok")
    (done,) = ends.heard()
    assert isinstance(done, UnitDone) and done.kind == "batch" and MEMORY[:2] == b"ok"


def leaf(begin: int, size: int) -> bytes:
    return pack([Leaf(begin, size, False, "<u1", (size,), None, False)])


@pytest.mark.parametrize(
    ("leaves", "pickled"),
    [(leaf(0, 9), b""), (leaf(-8, 8), b""), (leaf(8, 0), (1 << 40, 8)), (b"", (4, 5)), (b"", (4, -1))],
    ids=["longer", "before", "elsewhere", "behind", "negative"],
)
def test_parts_outside_of_the_batch_are_refused(ends: Ends, leaves: bytes, pickled: object) -> None:
    ends.remote.pass_on(packed(Unit(8, b"work", [(2, 16, 8)], (), None)))
    with pytest.raises(CannotSendError, match="a batch of 8 bytes with parts at"):
        ends.answers(8, b"12345678", leaves, pickled)
    assert ends.heard() == []


@pytest.mark.parametrize(("dtype", "is_tensor"), [("O", False), ("quint8", True), ("_import_dotted_name", True)])
def test_leaves_that_are_no_numbers_are_refused(ends: Ends, dtype: str, is_tensor: bool) -> None:
    ends.remote.pass_on(packed(Unit(8, b"work", [(2, 16, 8)], (), None)))
    with pytest.raises(CannotSendError, match=f"a leaf of {dtype}"):
        ends.answers(8, b"12345678", pack([Leaf(0, 8, is_tensor, dtype, (1,), None, False)]))


def test_parts_within_the_batch_are_taken(ends: Ends) -> None:
    ends.remote.pass_on(packed(Unit(8, b"work", [(2, 16, 8)], (), None)))
    ends.answers(8, b"12345678", leaf(0, 4), (4, 4))
    assert len(ends.heard()) == 1


@pytest.mark.parametrize("kind", ["batch", "run", "rows", "misfit", "short"])
def test_answer_in_a_slot_of_others_is_refused(ends: Ends, kind: Any) -> None:
    value = (5, 0, b"", b"pickle", {})
    ends.asks(8)
    ends.worker.send(UnitDone(8, kind, value, 0.5, plain(UnitReport()), 0.25))
    with pytest.raises(CannotSendError):
        ends.remote.read()
    assert ends.heard() == []


def test_answer_for_which_it_was_not_asked_is_refused(ends: Ends) -> None:
    answer = UnitDone(8, "end", b"", 0.5, plain(UnitReport()), 0.25)
    ends.asks(8)
    ends.worker.send(answer)
    ends.remote.read()
    assert ends.heard() == [answer]
    ends.asks(9)
    for unit in (8, 10):
        ends.worker.send(answer._replace(unit=unit))
        with pytest.raises(CannotSendError, match=f"the answer of batch {unit}, for which it was not asked"):
            ends.remote.read()
    assert ends.heard() == []


def test_times_are_those_of_the_trainers_clock(ends: Ends) -> None:
    control, agents = pair()
    agent: Channel[Activities] = Channel(agents)
    ends.remote.connected(True, control)
    there = time.perf_counter() + 5000
    for late in (100.0, 0.0, 500.0):  # the message with the least delay counts
        agent.send(Activities(3, 0, 0, 0, there - late))
    ends.remote.hear()
    ends.asks(8)
    timing = UnitTimings(3, there, 1.0, 2.0, 3.0, 4.0)
    ends.worker.send(UnitDone(8, "end", b"", 0.5, plain(UnitReport(timings=(timing,))), 0.25))
    ends.remote.read()
    (done,) = ends.heard()
    assert isinstance(done, UnitDone)
    (moved,) = UnitReport(*done.report).timings
    assert 0 <= moved.begun - (there - 5000) < 2 and moved[2:] == timing[2:]
    agent.close()


def test_unpickled_makes_it_ready_and_is_no_message(ends: Ends) -> None:
    assert not ends.remote.is_ready
    ends.worker.send(Unpickled(1.0, 2, 3))
    ends.remote.read()
    assert ends.remote.is_ready and ends.heard() == []


def test_other_cloudpickle_is_named_where_it_cannot_read() -> None:
    def unpickled() -> Any:
        try:
            raise AttributeError("Can't get attribute '_class_setstate' on <module 'cloudpickle.cloudpickle'>")
        except AttributeError as error:
            raise WorkerStartError("a clean worker: use fork") from error

    with pytest.raises(WorkerStartError) as told:
        source_of(Role(3, 0, "host b (10.0.0.2)"), unpickled).job_factory()
    here = f"cloudpickle {metadata.version('cloudpickle')} is there"
    assert "worker 3 on host b (10.0.0.2)" in str(told.value) and here in str(told.value)
    assert "use fork" not in str(told.value)
