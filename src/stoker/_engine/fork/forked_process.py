"""A forked worker as a child of multiprocessing: a Process object of the loader's context, which works in `_bootstrap`.
Also its Python stacks.

The helper forks, not `Process.start`: that would hold two more descriptors for each worker, and refuses to start in
a daemonic process and for another parent than its own. So what `multiprocessing.popen_fork` does in the child stands
here, by Python's version.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import NamedTuple, NoReturn

from stoker._engine.activity import Mark
from stoker._engine.process import end_duties, linux, process_setup
from stoker._engine.process.deadlines import STACKS
from stoker._engine.transport import segments


class Lineage(NamedTuple):
    """The trainer's attributes that a worker inherits, though the helper has forked it."""

    process: type[BaseProcess]
    """Class of its Process object."""
    spawned: bool
    """Whether the start method is spawn: then handlers of `atexit` run at a worker's end."""
    name: str
    """The trainer's."""
    identity: tuple[int, ...]
    """The trainer's, in multiprocessing's numbers."""
    pid: int
    """The trainer's."""

    @classmethod
    def of(cls, context: BaseContext | None) -> Lineage:
        """Returns the lineage of the calling process's workers, for a `multiprocessing_context`."""
        trainer = multiprocessing.current_process()
        process = multiprocessing.Process if context is None else context.Process  # type: ignore[attr-defined]
        if not (isinstance(process, type) and issubclass(process, multiprocessing.process.BaseProcess)):
            process = multiprocessing.Process  # a context of threads
        method = multiprocessing.get_start_method(allow_none=True) if context is None else context.get_start_method()
        return cls(process, method == "spawn", trainer.name, trainer._identity, os.getpid())


def live(lineage: Lineage, number: int, mark: Mark, sentinel: int, begin: Callable[[], Callable[[], None]]) -> NoReturn:
    """The whole life of a worker, in the process that was just forked.

    Args:
        lineage: where it descends from.
        number: the worker's.
        mark: where it leaves what it is doing, and whether it has something to do at its end.
        sentinel: a descriptor that is readable when the trainer has ended.
        begin: puts the new process in order; returns the work.
    """
    code = 1
    runs_handlers = lineage.spawned or sys.version_info >= (3, 13)
    try:
        work = begin()
        atexit._clear()
        if runs_handlers:
            atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
        if lineage.spawned:
            _let_finalizers_run()
        _be_main_thread()
        standard_input = process_setup.take_standard_input()  # `_bootstrap` closes it, if there is any

        def run() -> None:
            sys.stdin = standard_input
            work()

        process = lineage.process(target=run, name=f"stoker-worker-{number}", daemon=True)
        process._identity = (*lineage.identity, number + 1)
        process._parent_name, process._parent_pid = lineage.name, lineage.pid  # type: ignore[attr-defined]
        end_duties.watch(mark, process)
        code = process._bootstrap(parent_sentinel=sentinel)  # type: ignore[attr-defined]
    except SystemExit as left:  # before `_bootstrap`, which sees to one in the work itself
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            if runs_handlers:
                atexit._run_exitfuncs()
        finally:
            process_setup.leave(code)


def _let_finalizers_run() -> None:
    """`weakref.finalize` and `logging` have registered with `atexit` in the helper, which was cleared: again, but only
    for what is made from now on. What the helper has made is shared by all workers."""
    finalize = weakref.finalize
    for info in list(finalize._registry.values()):  # type: ignore[attr-defined]
        info.atexit = False
    finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    if (logging := sys.modules.get("logging")) is not None:
        atexit.register(logging.shutdown)


def _be_main_thread() -> None:
    """Makes this thread the main one if Python did not start it: Python before 3.13 cannot end it otherwise."""
    main = threading.main_thread()
    if sys.version_info < (3, 13) and isinstance(main, threading._DummyThread):
        threading._main_thread = threading._MainThread()  # type: ignore[attr-defined]


class Stacks:
    """A file in memory for each worker of a zygote, to which it writes when a signal asks it, and when it crashes."""

    def __init__(self, workers: int) -> None:
        self._files: list[int] = []
        self.grow(workers)

    def grow(self, workers: int) -> None:
        """Makes room for this number of workers. An OSError leaves the present state unchanged."""
        descriptors: list[int] = []
        try:
            for _ in range(len(self._files), workers):
                descriptors.append(segments.create())
        except OSError:
            for file in descriptors:
                os.close(file)
            raise
        self._files += descriptors

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
