"""Messages over a stream socket: framed by their length, never blocking."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from stoker._engine.messages import Message, packed, unpacked

Received = TypeVar("Received", bound=Message)

_HEADER = struct.Struct("<Q")
_CHUNK = 1 << 16
"""Bytes that are read at once. From 128 kB on each buffer would be a mapping of its own, which costs seven times all
else that is done to read a message."""


class Channel(Generic[Received]):
    """One end of a socket pair, at which messages of some types arrive. Not thread safe.

    A message (`stoker._engine.messages`) holds plain values and records of ours: what belongs to the user travels
    inside as bytes, and is unpickled by the process that needs it.
    """

    def __init__(self, end: socket.socket, read: Callable[[memoryview], object] = pickle.loads) -> None:
        end.setblocking(False)
        self._socket = end
        self._read = read
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self.ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Queues a message and sends what the kernel takes at once; the rest is sent by `flush`."""
        self.queue(message)
        self.flush()

    def queue(self, message: Message) -> None:
        """Keeps a message for the next `flush`: to wake the peer costs more than all else, so several go together."""
        data = pickle.dumps(packed(message), 5)
        self._out.append(memoryview(_HEADER.pack(len(data)) + data))

    def queue_bytes(self, data: memoryview) -> None:
        """Keeps bytes for the next `flush`, which belong to the message before. To be called when it is sent."""
        self._out.append(data)

    def flush(self) -> None:
        """Sends what the kernel takes at once. A peer that is gone takes nothing, and its end is read elsewhere."""
        if len(self._out) > 1:
            self._out = deque([memoryview(b"".join(self._out))])
        while self._out:
            try:
                sent = self._socket.send(self._out[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.ended = True
                self._out.clear()
                return
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
            else:
                self._out.popleft()

    @property
    def unsent(self) -> bool:
        """Whether `flush` has something left to send."""
        return bool(self._out)

    def receive(self) -> list[Received]:
        """The whole messages that have arrived; sets `ended` when the peer is gone."""
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self.ended = True
                break
            self._in += data
            if len(data) < _CHUNK:
                break
        return self._cut()

    def _cut(self) -> list[Received]:
        messages: list[Received] = []
        at = 0
        while len(self._in) - at >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._in, at)
            if len(self._in) - at - _HEADER.size < size:
                break
            start = at + _HEADER.size
            wire = cast("tuple[object, ...]", self._read(memoryview(self._in)[start : start + size]))
            messages.append(cast("Received", unpacked(wire)))
            at = start + size
        del self._in[:at]
        return messages

    def hang_up(self) -> None:
        """The peer reads the end, even while other processes hold a copy of this socket."""
        with contextlib.suppress(OSError):  # it has hung up itself
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes this process's copy."""
        self._socket.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
