"""A worker's connections as calls of Ray, where no port is open between its host and the trainer's.

The agent connects to a port of its own host, and the bridge to one of its own: between them, the bytes of a connection
are results and arguments of the actor's calls. A result is requested when the one before has gone into the bridge's
socket, so no batch is put into the object store while no slot is free: at most `CHUNK` bytes of each worker are there.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker._engine.machines import tls
from stoker._engine.machines.agent import CONTROL, DATA, Agent, AgentOrder
from stoker._engine.transport.owned import Array

CHUNK = 8 << 20
"""Bytes that one call returns at most."""

GATHERED = 2
"""Milliseconds in which more bytes may come for the same call: each call costs about as much."""

CONNECTIONS = (CONTROL, DATA)
CALLS = 1 + 2 * len(CONNECTIONS)
"""Calls of a `TunnelAgent` that run at once: its worker's life, and both ways of each connection."""

HERE = "127.0.0.1"


class TunnelAgent(Agent):
    """An agent whose connections end on its own host. Its calls run in threads."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HERE, 0))
        self._ends: list[socket.socket] = []
        self._came = threading.Condition()

    def serve(self, contents: Sequence[object], order: AgentOrder) -> None:
        """Starts the worker; returns when it has ended."""
        threading.Thread(target=self._accept, daemon=True).start()
        super().serve(contents, order._replace(bridge=self._listener.getsockname()))

    def _accept(self) -> None:
        for _ in CONNECTIONS:
            end, _ = self._listener.accept()
            with self._came:
                self._ends.append(end)
                self._came.notify_all()

    def _end(self, number: int) -> socket.socket:
        with self._came:
            self._came.wait_for(lambda: len(self._ends) > number)
        return self._ends[number]

    def up(self, number: int) -> Array:
        """Returns the next bytes of a connection on their way to the bridge, waiting for the first; none at its end."""
        end = self._end(number)
        poll = select.poll()
        poll.register(end.fileno(), select.POLLIN)
        chunk, size = np.empty(CHUNK, np.uint8), end.recv_into(memoryview(first := bytearray(1 << 16)))
        chunk[:size] = np.frombuffer(first, np.uint8)[:size]
        while 0 < size < CHUNK and poll.poll(GATHERED):
            if not (more := end.recv_into(chunk[size:].data)):
                break  # the next call finds the end again
            size += more
        return chunk[:size].copy()

    def down(self, number: int, data: bytes) -> None:
        """Passes bytes on to the agent or its worker; none at the end of the connection."""
        with contextlib.suppress(OSError):  # it has ended
            if data:
                self._end(number).sendall(data)
            else:
                self._end(number).shutdown(socket.SHUT_RDWR)


class Tunnel:
    """The bridge's side: a pair of threads for each connection, which end with it.

    Args:
        ray: the module.
        actor: a `TunnelAgent`.
        port: of the bridge, on this host.
    """

    def __init__(self, ray: Any, actor: Any, port: int) -> None:
        self._ray, self._actor, self._port = ray, actor, port
        for number in range(len(CONNECTIONS)):
            threading.Thread(target=self._up, args=(number,), name="stoker-tunnel", daemon=True).start()

    def _up(self, number: int) -> None:
        with contextlib.suppress(Exception):  # of Ray, whose actor has ended; `Placement` reports it
            data = self._ray.get(self._actor.up.remote(number))  # before anything comes, there is nothing to connect
            with tls.around(socket.create_connection((HERE, self._port)), is_server=False) as bridge:
                threading.Thread(target=self._down, args=(number, bridge), name="stoker-tunnel", daemon=True).start()
                with contextlib.suppress(Exception):
                    while len(data):
                        bridge.sendall(data.data)
                        del data
                        data = self._ray.get(self._actor.up.remote(number))
                bridge.shutdown(socket.SHUT_RDWR)

    def _down(self, number: int, bridge: socket.socket) -> None:
        with contextlib.suppress(Exception):
            data = b"."
            while data:
                try:
                    data = bridge.recv(1 << 20)
                except OSError:
                    data = b""
                self._ray.get(self._actor.down.remote(number, data))
