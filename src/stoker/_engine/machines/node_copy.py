"""The dataset's large arrays on one machine: the first agent writes a file in memory, and the others receive it.

Each worker maps it privately, so it may write to its arrays as on the trainer's machine. The file has no name, and the
socket that hands it out ends with its agent: nothing is left behind, and an agent that finds nobody writes another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence

from stoker._engine.serialize.payload import Block
from stoker._engine.transport import segments

PATIENCE = 30.0
"""Seconds in which the first agent writes; after that each has its own copy."""

ANSWERS = 5.0
"""Seconds in which an agent hands out what it has written."""

_CREDENTIALS = struct.Struct("3i")


class NodeCopy:
    """The large buffers of the parts, in a file in memory of this machine.

    Args:
        name: the same for agents with the same parts.
        views: the buffers.

    Attributes:
        fd: of the file.
        places: where each buffer begins in it, and its size.
    """

    def __init__(self, name: str, views: Sequence[memoryview]) -> None:
        self.places: list[tuple[int, int]] = []
        end = 0
        for view in views:
            end = -(-end // segments.PAGE) * segments.PAGE
            self.places.append((end, view.nbytes))
            end += view.nbytes
        self._listener: socket.socket | None = None
        self.fd = self._obtained(f"\0stoker-{name}", views) if views else segments.create()

    def close(self) -> None:
        """Closes the file; processes that have mapped it keep it."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
            self._listener.close()
        os.close(self.fd)

    def _obtained(self, name: str, views: Sequence[memoryview]) -> int:
        until = time.monotonic() + PATIENCE
        while True:
            listener = socket.socket(socket.AF_UNIX)
            try:
                listener.bind(name)
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                    return _written(views)
                if (found := _received(name)) is not None:
                    return found
                time.sleep(0.01)
                continue
            try:
                file = _written(views)
            except BaseException:
                listener.close()
                raise
            listener.listen()
            self._listener = listener
            threading.Thread(target=_hand_out, args=(listener, file), name="stoker-copy", daemon=True).start()
            return file


def _written(views: Sequence[memoryview]) -> int:
    block = Block()
    try:
        for view in views:
            block.align(segments.PAGE)
            block.write(view)
    except BaseException:
        block.close()
        raise
    return block.fd


def _received(name: str) -> int | None:
    """Returns the file of the agent that was first, or None: it still writes, or has ended."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as other:
        other.settimeout(ANSWERS)
        other.connect(name)
        if _is_ours(other) and (files := socket.recv_fds(other, 1, 1)[1]):
            os.set_inheritable(files[0], False)
            return files[0]
    return None


def _hand_out(listener: socket.socket, file: int) -> None:
    with contextlib.suppress(OSError):  # the agent ends
        while True:
            other, _ = listener.accept()
            with other, contextlib.suppress(OSError):
                if _is_ours(other):
                    socket.send_fds(other, [b"."], [file])


def _is_ours(other: socket.socket) -> bool:
    """Whether the process at the other end is of the same user."""
    data = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(data)[1] == os.getuid())
