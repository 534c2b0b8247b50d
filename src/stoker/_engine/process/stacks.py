"""The Python stacks of workers: on demand, and the last ones of those that crashed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from stoker._engine.process import settle
from stoker._engine.process.deadlines import STACKS
from stoker._transport import segments


class Stacks:
    """A file in memory to which all workers of a zygote write: when a signal asks them, and when they crash.

    Attributes:
        descriptor: of the file; its position is shared, so that each writes behind the last.
    """

    def __init__(self) -> None:
        self.descriptor = segments.create()

    def read(self, workers: Iterable[tuple[int, int]]) -> str:
        """The stacks of these workers now, given as (number, pid). Waits a moment for each."""
        out = []
        for number, pid in workers:
            self._clear()
            os.kill(pid, settle.STACKS_SIGNAL)
            out.append(f"Worker {number} (pid {pid}):\n{self._written()}")
        return "\n".join(out)

    def last_words(self) -> str:
        """What somebody has written without being asked; it is forgotten then."""
        text = self._text()
        self._clear()
        return text

    def _written(self) -> str:
        """What a worker writes, once it has come to rest."""
        until = time.monotonic() + STACKS
        size = 0
        while time.monotonic() < until:
            time.sleep(0.01)
            before, size = size, os.fstat(self.descriptor).st_size
            if size == before > 0:
                break
        return self.last_words()

    def _text(self) -> str:
        size = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, size, 0).decode(errors="replace")

    def _clear(self) -> None:
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
