"""The Python stacks of workers: on demand, and the last ones of those that crashed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from stoker._engine.process import linux, process_setup
from stoker._engine.process.deadlines import STACKS
from stoker._engine.transport import segments


class Stacks:
    """A file in memory for each worker of a zygote, to which it writes when a signal asks it, and when it crashes."""

    def __init__(self, workers: int) -> None:
        self._files: list[int] = []
        self.grow(workers)

    def grow(self, workers: int) -> None:
        """Makes room for this number of workers. An OSError leaves the present state unchanged."""
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
        """Returns the descriptor for the worker's stacks. Processes that inherit it share its position."""
        return self._files[worker]

    def read(self, workers: Iterable[tuple[int, int]]) -> str:
        """The stacks of these workers now, given as (number, pid). Waits a moment for each."""
        out = []
        for number, pid in workers:
            out.append(f"Worker {number} (pid {pid}):\n{self._asked(number, pid)}")
        return "\n".join(out)

    def _asked(self, worker: int, pid: int) -> str:
        if linux.dies_of(pid, process_setup.STACKS_SIGNAL):
            return "(cannot be asked: code in it has reset the signal handlers)"
        self._clear(worker)
        os.kill(pid, process_setup.STACKS_SIGNAL)
        return "(stopped, by SIGSTOP or a debugger)" if linux.is_stopped(pid) else self._written(worker)

    def last_words(self, worker: int) -> str:
        """Returns the worker's text, and clears it."""
        file = self._files[worker]
        text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
        self._clear(worker)
        return text

    def _written(self, worker: int) -> str:
        """Returns the worker's text once it is complete."""
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
