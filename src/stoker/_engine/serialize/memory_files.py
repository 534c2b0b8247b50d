"""Anonymous files in memory that are written once, and that ask whether there is memory before they take it."""

from __future__ import annotations

import os

from stoker._core.machine.memory import available
from stoker._core.machine.reserve import kept_free, refused
from stoker._engine.serialize.causes import SHARING
from stoker._engine.transport import segments
from stoker.errors import MemoryLimitError

_CHUNK = 1 << 26
"""Bytes written at once: Ctrl-C is heard in between."""
_STEP = 1 << 24
"""Bytes asked for at once, so that a stream of small pieces does not ask for each."""
_MIB = 1 << 20


class Block:
    """An anonymous file in memory, written from its start to its end. Not thread safe.

    A write takes memory page by page and says itself when the system has no more, so nothing is reserved beyond what
    is asked: SIGBUS threatens only who touches a mapping. (Reserving first was measured to cost nothing, but a
    reservation begins anew at each signal, and a program with a profiling timer would never finish it.)
    """

    def __init__(self) -> None:
        self.fd = segments.create()
        self.size = 0
        self._asked = 0

    def write(self, data: bytes | memoryview) -> int:
        """Appends, as a file does.

        Raises:
            MemoryLimitError: the machine or the container has not enough memory left; nothing of `data` is written
                where that was known before.
        """
        view = memoryview(data).cast("B")
        self.expect(view.nbytes)
        try:
            for start in range(0, view.nbytes, _CHUNK):
                self._put(view[start : start + _CHUNK])
        except OSError as error:
            if (why := refused(error.errno)) is None:
                raise
            raise _refusal(self.size, view.nbytes, why) from error
        return view.nbytes

    def expect(self, size: int) -> None:
        """Asks for `size` more bytes at once, before any of them is written.

        Raises:
            MemoryLimitError: they are not there.
        """
        if self.size + size <= self._asked:
            return
        memory = available()
        room = memory.bytes - kept_free(memory.limit)
        if size > room:
            raise _refusal(self.size, size, f"{_text(kept_free(memory.limit))} are kept free for everything else")
        self._asked = self.size + max(size, min(_STEP, room))

    def align(self, size: int) -> int:
        """Lets the next write begin at a multiple of `size`; returns where."""
        self.size = -(-self.size // size) * size
        return self.size

    def close(self) -> None:
        os.close(self.fd)

    def _put(self, view: memoryview) -> None:
        os.lseek(self.fd, self.size, os.SEEK_SET)
        while view.nbytes:
            written = os.write(self.fd, view)
            self.size += written
            view = view[written:]


def _refusal(written: int, more: int, why: str) -> MemoryLimitError:
    memory = available()
    return MemoryLimitError(
        f"a clean worker cannot be sent the dataset: {_text(more)} more are needed after {_text(written)}, and "
        f"{_text(memory.bytes)} are available of {_text(memory.limit)} (limited by {memory.source}); {why}. A clean "
        f"worker needs a copy of what the trainer holds: {SHARING}, which shares it, keep "
        "large arrays in files (np.load(..., mmap_mode='r')), let the dataset read them in the worker, or give the "
        "container more memory."
    )


def _text(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"
