"""Starts a fresh interpreter by fork and exec: it shares no thread and no lock with this process, and receives what it
needs once. The pickle and the large buffers lie in anonymous memory, which each process maps that opens it: a large
array exists twice, in the trainer and in that memory, whatever the number of workers.

The interpreter receives the parts; environment variables and working directory; `sys.path`, `sys.argv`, the
interpreter's flags, multiprocessing's log level and start method; the names of installed packages that the parts need
(imported once); and the main module, imported by each process that opens the parts, if it has a main guard. As with
multiprocessing, it does not receive what ran under the main guard, warning filters and signal handlers set by code, and
the state of other modules.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import resource_tracker, spawn, util

from stoker._engine.process import linux
from stoker._engine.serialize import main_module, pickler, unpicklable
from stoker._engine.serialize.main_module import names_after_import, preparation_of
from stoker._engine.serialize.payload import Block, Head, descriptors_of
from stoker.errors import CannotSendError

_NAME = "StokerZygote"
_COMMAND = (
    "import sys as _sys, pickle as _pickle; _stream = open({stream}, 'rb'); _stream.seek({head}); "
    "_head = _pickle.load(_stream); _stream.seek(0); _sys.path[:] = _head['preparation']['sys_path']; "
    "from stoker._engine.serialize.payload import wake as _wake; _wake(_stream, _head)"
)
"""Only the standard library can be imported before `sys.path` is the trainer's."""


def start(
    entry: str,
    parts: Mapping[str, object],
    fds: Sequence[int | None],
    plan: object = None,
    lent: list[object] | None = None,
    by_value: bool = False,
) -> int:
    """Starts a clean interpreter that calls a function of its own with what it is sent, as `packed` says; returns its
    pid. The caller reaps the process.
    """
    with packed(entry, parts, fds, plan, lent, by_value) as (stream, head):
        return launch(stream, head)


@contextlib.contextmanager
def packed(
    entry: str,
    parts: Mapping[str, object],
    fds: Sequence[int | None],
    plan: object = None,
    lent: list[object] | None = None,
    by_value: bool = False,
) -> Iterator[tuple[Block, Head]]:
    """Packs what a clean interpreter is sent, for `launch` or a template, which are to be called inside.

    Args:
        entry: "module:function", called with (`Payload`, list of `fds`) in the main thread of the new process.
        parts: what is sent, by the names under which messages speak of them ("dataset", "collate_fn").
        fds: descriptors that the new process gets, under the same numbers; None stands for one that is not there. They
            stay open here.
        plan: what it is told before it opens the parts. Nothing of the user's.
        lent: gets what the caller keeps until the new process, and those that it forks, have ended.
        by_value: whether the main module's classes and functions travel by value: the parts go on to another machine,
            which has no script to import, and which no lock of multiprocessing can reach.

    Safe in any thread. Objects of `parts` must not change while this runs.

    Raises:
        CannotSendError: some part cannot be pickled: named by its path, before anything is started.
        MemoryLimitError: there is not enough memory for a copy.
        RuntimeError: called while this process is itself being prepared: the script lacks its main guard.
    """
    preparation = preparation_of(_NAME)
    importable = None if by_value else names_after_import(preparation)
    if importable is None:
        preparation.pop("init_main_from_name", None)
        preparation.pop("init_main_from_path", None)
    with contextlib.closing(Block()) as stream, contextlib.closing(Block()) as buffers, pickler.spawning() as theirs:
        written = _written(parts, importable, stream)
        if by_value and theirs:
            raise CannotSendError(
                "the dataset or a function has a lock, queue or shared tensor of multiprocessing, which belongs to "
                "this machine: it cannot be sent to workers on others (remote=)"
            )
        buffers.expect(sum(view.nbytes + mmap.PAGESIZE for view in written.large))
        head = Head(
            entry=entry,
            fds=list(fds),
            shared=theirs,
            preparation=preparation,
            modules=main_module.of_installed_packages(written.modules, importable),
            plan=pickle.dumps(plan),
            buffers=buffers.fd,
            places=[(buffers.align(mmap.PAGESIZE), buffers.write(view)) for view in written.large],
            tracker=_resource_tracker(),
        )
        if lent is not None:
            lent += written.lent
        yield stream, head


def launch(stream: Block, head: Head) -> int:
    """Starts an interpreter for parts that `stream` holds, packed; writes `head` behind them. Returns its pid."""
    at = head["size"] = stream.size
    stream.write(pickle.dumps(head))
    command = [*interpreter(), "-c", _COMMAND.format(stream=stream.fd, head=at)]
    travelling = sorted(set(descriptors_of(stream.fd, head)))
    pid = 0
    try:
        with _interrupt_held():
            pid = util.spawnv_passfds(os.fsencode(command[0]), [*map(os.fsencode, command)], travelling)
    except BaseException:  # Ctrl-C while it was started, heard now
        if pid:
            linux.end(pid)
        raise
    return pid


def interpreter() -> list[str | bytes]:
    """Returns the path and the flags of a new interpreter."""
    return [spawn.get_executable(), *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]


def check_parts(parts: Mapping[str, object]) -> None:
    """Pickles parts as `start` does, and drops the pickle. Raises CannotSendError if some part cannot be pickled."""
    importable = names_after_import(preparation_of(_NAME))
    with contextlib.closing(Block()) as stream, pickler.spawning():
        _written(parts, importable, stream)


def _written(parts: Mapping[str, object], importable: frozenset[str] | None, stream: Block) -> pickler.Pickled:
    """`pickler.write`, which names the part that cannot be pickled."""
    try:
        return pickler.write(parts, importable, stream)
    except MemoryError:
        raise
    except Exception as error:
        raise unpicklable.named(parts, importable, error) from error


def _resource_tracker() -> int | None:
    """multiprocessing's process that removes leaked semaphores, if this program has one: the new process shares it."""
    tracker = resource_tracker._resource_tracker
    return resource_tracker.getfd() if tracker._fd is not None else None  # type: ignore[attr-defined]


@contextlib.contextmanager
def _interrupt_held() -> Iterator[None]:
    """Blocks Ctrl-C in processes that are started meanwhile; this thread receives it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
