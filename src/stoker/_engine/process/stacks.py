"""The Python stacks of workers: on demand, and the last ones of those that crashed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from stoker._engine.process import kernel, settle
from stoker._engine.process.deadlines import STACKS
from stoker._transport import segments


class Stacks:
    """A file in memory for each worker of a zygote, to which it writes when a signal asks it, and when it crashes."""

    def __init__(self, workers: int) -> None:
        self._files: list[int] = []
        self.grow(workers)

    def grow(self, workers: int) -> None:
        """There are to be so many workers. Where not all can be had, an OSError leaves things as they were."""
        made: list[int] = []
        try:
            for _ in range(len(self._files), workers):
                made.append(segments.create())
        except OSError:
            for file in made:
                os.close(file)
            raise
        self._files += made

    def descriptor(self, worker: int) -> int:
        """Where the worker writes. Its position is shared with whoever has it from us."""
        return self._files[worker]

    def read(self, workers: Iterable[tuple[int, int]]) -> str:
        """The stacks of these workers now, given as (number, pid). Waits a moment for each."""
        out = []
        for number, pid in workers:
            out.append(f"Worker {number} (pid {pid}):\n{self._asked(number, pid)}")
        return "\n".join(out)

    def _asked(self, worker: int, pid: int) -> str:
        if kernel.dies_of(pid, settle.STACKS_SIGNAL):
            return "(cannot be asked: something in it has reset the handlers of signals)"
        self._clear(worker)
        os.kill(pid, settle.STACKS_SIGNAL)
        return "(stopped, by SIGSTOP or a debugger)" if kernel.is_stopped(pid) else self._written(worker)

    def last_words(self, worker: int) -> str:
        """What the worker has written; it is forgotten then."""
        file = self._files[worker]
        text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
        self._clear(worker)
        return text

    def _written(self, worker: int) -> str:
        """What the worker writes, once it has come to rest."""
        until = time.monotonic() + STACKS
        size = 0
        while time.monotonic() < until:
            time.sleep(0.01)
            before, size = size, os.fstat(self._files[worker]).st_size
            if size == before > 0:
                break
        return self.last_words(worker)

    def _clear(self, worker: int) -> None:
        os.ftruncate(self._files[worker], 0)
        os.lseek(self._files[worker], 0, os.SEEK_SET)
