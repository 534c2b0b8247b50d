"""The bridge's end of a remote worker's connection: messages, and behind each batch the bytes of its slot."""

from __future__ import annotations

import socket
import struct
import time
from typing import cast

from stoker._engine.machines.known_classes import KnownClasses
from stoker._engine.messages import FromWorker, UnitDone, unpacked
from stoker._engine.process.channel import Channel

MESSAGES = KnownClasses()
"""What messages of workers and agents on other machines consist of."""

_HEADER = struct.Struct("<Q")
_PART = 1 << 16
"""Bytes that are dropped at once."""


def size_behind(message: FromWorker) -> int:
    """Returns the number of bytes that follow a message of a remote worker: those that the batch takes of its slot."""
    if not isinstance(message, UnitDone) or message.kind != "batch":
        return 0
    slot, used = cast("tuple[int | None, int]", message.value)[:2]
    return 0 if slot is None else used


class BatchLink(Channel[FromWorker]):
    """A channel that reads no further than the message in hand, so that the kernel copies a batch into its slot.

    Attributes:
        waits: the message whose batch waits for memory (`give`), or None. Nothing else is read meanwhile.
        heard: time at which bytes have come: on a slow network a batch takes longer than a host may be silent.
    """

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end)
        self.waits: UnitDone | None = None
        self.heard = 0.0
        self._batch: UnitDone | None = None  # of which bytes are read
        self._body: bytearray | None = None
        self._head = bytearray(_HEADER.size)
        self._rest = memoryview(self._head)
        self._unwanted = 0  # bytes behind `_rest` that are read and dropped

    def next(self) -> FromWorker | None:
        """Returns the next message that is there with its batch; None if there is none, or one waits for memory."""
        while self.waits is None and self._is_filled():
            if self._batch is not None:
                message, self._batch = self._batch, None
                self._rest = memoryview(self._head)
                return message
            if self._body is None:
                self._body = bytearray(_HEADER.unpack(self._head)[0])
                self._rest = memoryview(self._body)
                continue
            whole = cast("FromWorker", unpacked(cast("tuple[object, ...]", MESSAGES.loads(self._body))))
            self._body, self._rest = None, memoryview(self._head)
            if not size_behind(whole):
                return whole
            self.waits = cast("UnitDone", whole)
        return None

    def give(self, memory: memoryview) -> None:
        """Gives the memory for the batch that waits, of exactly its size."""
        self._batch, self.waits = self.waits, None
        self._rest = memory

    def skip(self) -> None:
        """Reads the batch that waits and drops it, part by part: there is no memory for it."""
        assert self.waits is not None
        self._unwanted = size_behind(self.waits)
        self.give(memoryview(b""))

    def _is_filled(self) -> bool:
        while self._rest.nbytes or self._unwanted:
            if not self._rest.nbytes:
                self._rest = memoryview(bytearray(min(_PART, self._unwanted)))
                self._unwanted -= self._rest.nbytes
            try:
                count = self._socket.recv_into(self._rest)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                count = 0
            if not count:
                self.ended = True
                return False
            self.heard = time.monotonic()
            self._rest = self._rest[count:]
        return True
