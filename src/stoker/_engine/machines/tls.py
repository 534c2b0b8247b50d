"""TLS around the connections of workers, with Ray's certificates, where Ray uses TLS.

Both ends show the certificate that Ray's environment variables name, signed by the same authority; names in it are not
compared. A thread of the process passes the bytes on between the connection and a socket pair: the loops that read
wait for plain sockets, and the worker takes its end from its agent.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import ssl
import threading

SHAKES = 5.0
"""Seconds for a handshake."""

CHUNK = 1 << 18


def is_used() -> bool:
    """Returns whether Ray uses TLS in this process."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


@functools.cache
def _context(is_server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    context.load_verify_locations(os.environ["RAY_TLS_CA_CERT"])
    return context


def around(connection: socket.socket, is_server: bool) -> socket.socket:
    """Returns the plain end of a connection, to which TLS is added; the connection itself where Ray uses none.

    A client has shaken hands when this returns. A server does that in its thread: the plain end ends if it fails.

    Raises:
        OSError: of a client, the handshake failed.
    """
    if not is_used():
        return connection
    connection.settimeout(SHAKES)
    wrapped = _context(is_server).wrap_socket(connection, is_server, do_handshake_on_connect=False)
    if not is_server:
        try:
            wrapped.do_handshake()
        except OSError:
            wrapped.close()
            raise
    ours, theirs = socket.socketpair()
    threading.Thread(target=_run, args=(wrapped, theirs), name="stoker-tls", daemon=True).start()
    return ours


def _run(wrapped: ssl.SSLSocket, plain: socket.socket) -> None:
    with contextlib.suppress(OSError), wrapped, plain:
        wrapped.do_handshake()  # at once, if it is done
        for end in (wrapped, plain):
            end.setblocking(False)
        _pass_on(wrapped, plain)


def _pass_on(wrapped: ssl.SSLSocket, plain: socket.socket) -> None:
    """Passes bytes on both ways, until one end has ended and all of its bytes are passed on."""
    up, down = ways = _Way(wrapped, plain), _Way(plain, wrapped)
    while True:
        moved = [way.move() for way in ways]
        if any(way.has_ended for way in ways):
            return
        if not any(moved):
            poll = select.poll()
            for end, reads, writes in ((wrapped, up, down), (plain, down, up)):
                wants = (0 if reads.rest else select.POLLIN) | (select.POLLOUT if writes.rest else 0)
                poll.register(end.fileno(), wants)
            poll.poll()


class _Way:
    """Bytes on one way, at most one chunk of them in hand.

    Attributes:
        rest: read and not written.
        has_ended: whether there is nothing more to read or to write to.
    """

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.rest, self.has_ended = memoryview(b""), False
        self._source, self._target = source, target

    def move(self) -> bool:
        """Reads if all is written, and writes; returns whether some bytes moved."""
        moved = False
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not self.rest:
                self.rest = memoryview(self._source.recv(CHUNK))
                self.has_ended = not self.rest
                moved = True
            if self.rest:
                self.rest = self.rest[self._target.send(self.rest) :]
                moved = True
        return moved
