"""One worker on another machine, as the bridge sees it: its two connections, and its unit's way into a slot."""

from __future__ import annotations

import math
import re
import socket
import time
from collections.abc import Callable
from typing import cast, get_args

import numpy as np

from stoker import errors
from stoker._engine.activity import NEW_MARK
from stoker._engine.backend import Failure, UnitReport, Whole
from stoker._engine.machines.batch_link import MESSAGES, BatchLink, size_behind
from stoker._engine.messages import (
    Activities,
    Broken,
    FromAgent,
    FromBridge,
    FromRemote,
    FromWorker,
    Greeting,
    PlainSlot,
    PoolUse,
    RemoteExited,
    RemoteInspected,
    RowsWanted,
    SlotGiven,
    SlotWanted,
    ToBridge,
    Unit,
    UnitDone,
    Unpickled,
    packed,
    plain,
    unpacked,
)
from stoker._engine.process.channel import Channel
from stoker._engine.process.worker import dumps
from stoker._engine.transport import leaves
from stoker._engine.transport.writer import Packed

_TORCHS = re.compile(r"(bool|bfloat|complex|float|u?int)\w*")
"""Dtypes of torch that are numbers: no quantized ones."""

_WHOLE = get_args(Whole)
"""Kinds of answers that workers on other machines give: to whole units."""


def check(batch: Packed) -> None:
    """Raises CannotSendError if a leaf of a batch, or its pickle, lies outside of the bytes that the batch takes, or if
    a leaf is not of numbers or texts.
    """
    _, used, packed_leaves, pickled, _ = batch
    packed_in = leaves.unpack(packed_leaves, MESSAGES.loads)
    for leaf in packed_in:
        if not _TORCHS.fullmatch(str(leaf.dtype)) if leaf.tensor else np.dtype(leaf.dtype).hasobject:
            raise errors.CannotSendError(f"a leaf of {leaf.dtype}")
    places = [leaf[:2] for leaf in packed_in]
    if not isinstance(pickled, bytes):
        places.append(pickled)
    if not all(0 <= begin <= begin + size <= used for begin, size in places):
        raise errors.CannotSendError(f"a batch of {used} bytes with parts at {places}")


class Remote:
    """One remote worker.

    Args:
        number: the worker's.
        token: what its connections begin with.
        zygote: where its messages go.
        memory: returns the first bytes of a slot: of its number, offset, capacity, and how many.

    Attributes:
        control: the connection of its agent.
        data: its own.
        name: its process and host, in words.
        node: the scheduler's name of its machine.
        heard, came: times of its latest sign of life, and of its agent's first.
        mark: its place and activity then.
        begun, until: times at which it was placed, and at which it should have started.
        lasts: time until which its agent may end, and it is placed again without a report.
        drains: whether the zygote knows that its machine is to be taken away.
        is_placed: whether it was late when Ray had placed it on a host.
        is_wanted: whether the zygote waits for it to start.
        is_ready: whether it has unpickled the job.
        is_started: whether the zygote knows that: it gives up a start that takes long, and asks for it again.
        is_broken: whether it cannot: the run ends.
        stack: of its threads, once it takes long to unpickle the job; None before it is asked.
        exit: how it ended, once that is known.
        ends_by: time at which it should have ended, since its connection has.
    """

    def __init__(
        self,
        number: int,
        token: bytes,
        zygote: Channel[ToBridge],
        memory: Callable[[int, int, int, int], memoryview],
    ) -> None:
        self.number, self.token = number, token
        self.control: Channel[FromAgent] | None = None
        self.data: BatchLink | None = None
        self.name = self.node = ""
        self.drains = False
        self.heard = self.came = 0.0
        self.mark: tuple[int, int] = (NEW_MARK[0], int(NEW_MARK[1]))
        self.begun = self.until = self.lasts = 0.0
        self.is_placed = self.is_wanted = self.is_ready = self.is_started = self.is_broken = False
        self.stack: str | None = None
        self.exit: RemoteExited | None = None
        self.ends_by: float | None = None
        self._zygote = zygote
        self._memory = memory
        self._units: dict[int, PlainSlot | None] = {}  # that it holds, in order → the idle slot that came with it
        self._slot: PlainSlot | None = None  # in which a batch arrives
        self._refused: str | None = None  # why there is no memory for the batch that arrives
        self._question = 0
        self._asks = False
        self._offset = math.inf  # of this machine's clock from its own: the least seen, with the least delay

    def connected(self, is_control: bool, connection: socket.socket) -> None:
        """Takes a connection that has shown the token."""
        if is_control:
            self.control = Channel(connection, MESSAGES.loads)
            self.heard = self.came = time.monotonic()
        else:
            self.data = BatchLink(connection)

    @property
    def unsent(self) -> bool:
        """Whether messages for it wait here."""
        return any(channel is not None and channel.unsent for channel in (self.control, self.data))

    def close(self) -> None:
        """Closes both connections."""
        for channel in (self.control, self.data):
            if channel is not None:
                channel.close()

    def hear(self) -> Greeting | None:
        """Takes the messages of its agent; returns its greeting, if that is among them."""
        assert self.control is not None
        greeting = None
        for message in self.control.receive():
            self.heard = time.monotonic()
            match message:
                case Greeting():
                    greeting, self.node = message, message.node
                    self.name = f"{message.pid} on host {message.host} ({message.address})"
                case Activities():
                    if message.clock is not None:
                        self._offset = min(self._offset, time.perf_counter() - message.clock)
                    if (message.place, message.activity) != self.mark:
                        self.mark = message.place, message.activity
                    if self.is_started:
                        self._tell(message)
                case RemoteInspected(question=0):  # the bridge's own
                    self.stack = message.stack
                case RemoteInspected() | PoolUse():
                    self._tell(message)
                case RemoteExited():
                    self.exit = message
                    self.mark = message.place, message.activity
        return greeting

    def pass_on(self, wire: tuple[object, ...]) -> None:
        """Passes on a message for it; the answer to a question of the bridge's is meant for the bridge."""
        message = unpacked(wire)
        if isinstance(message, SlotGiven):
            if message.question == self._question:
                self._asks = False
                self._given(message.given)
        elif isinstance(message, Unit):
            (self._units[message.unit],) = message.slots or (None,)
            if self.data is not None:
                self.data.send(message._replace(slots=[]))
        elif self.data is not None:
            self.data.send(message)

    def read(self) -> None:
        """Takes its messages and batches, as far as there is memory for these."""
        assert self.data is not None
        while True:
            message = self.data.next()
            self.heard = max(self.heard, self.data.heard)
            if message is not None:
                self._take(message)
            elif self.data.waits is None or self._asks or not self._find_memory(self.data.waits):
                return

    def _find_memory(self, message: UnitDone) -> bool:
        """Gives the batch that has arrived its memory, or asks for it; returns whether it has some."""
        check(cast("Packed", message.value))
        slot, size = self._units.get(message.unit), size_behind(message)
        if slot is not None and size <= slot[2]:
            self._given(slot)
            return True
        self._question += 1
        self._asks = True
        self._tell(FromRemote(self.number, packed(SlotWanted(message.unit, size, self._question, 0))))
        return False

    def _given(self, given: PlainSlot | str | None) -> None:
        assert self.data is not None and self.data.waits is not None
        if isinstance(given, tuple):
            self._slot = given
            self.data.give(self._memory(*given, size_behind(self.data.waits)))
        else:
            self._refused = given or "there is no memory for the batch"
            self.data.skip()

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Unpickled):
            self.is_ready = True
            return
        self.is_broken = self.is_broken or isinstance(message, Broken)
        if isinstance(message, Broken):
            self._tell(message)
            return
        if isinstance(message, RowsWanted) or (isinstance(message, UnitDone) and message.kind not in _WHOLE):
            raise errors.CannotSendError("part of a unit, or several")  # other workers would unpickle a part
        if isinstance(message, UnitDone):
            if message.unit != next(iter(self._units), None):  # the supervisor would take it for that of another
                raise errors.CannotSendError(f"the answer of batch {message.unit}, for which it was not asked")
            del self._units[message.unit]
            message = self._placed(self._by_our_clock(message))
        self._tell(FromRemote(self.number, packed(message)))

    def _by_our_clock(self, message: UnitDone) -> UnitDone:
        """Returns the answer of a unit with its times by this machine's clock, if it has times."""
        report = UnitReport(*message.report)
        if not report.timings or math.isinf(self._offset):
            return message
        timings = tuple(each._replace(begun=each.begun + self._offset) for each in report.timings)
        return message._replace(report=plain(report._replace(timings=timings)))

    def _placed(self, message: UnitDone) -> UnitDone:
        """Returns the answer of a unit whose batch lies in a slot now, or for which there was no memory."""
        slot, self._slot = self._slot, None
        refused, self._refused = self._refused, None
        if refused is not None:
            failure = Failure.of(errors.MemoryLimitError(refused), f"for a batch of remote worker {self.number}")
            return message._replace(kind="error", value=dumps(failure))
        if slot is None:
            if message.kind == "batch" and cast("Packed", message.value)[0] is not None:
                raise errors.CannotSendError("a batch without bytes in a slot")
            return message
        return message._replace(value=(slot[0], *cast("Packed", message.value)[1:]))

    def _tell(self, message: FromBridge) -> None:
        self._zygote.send(message)
