"""A clean interpreter's first steps, and the payload that it receives. Imports little, because its time is start-up
time.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import pickle
import signal
import sys
from collections.abc import Collection, Sequence
from multiprocessing import process, resource_tracker, spawn
from typing import Any, BinaryIO, NoReturn, NotRequired, TypedDict

from stoker._core import nominal
from stoker._core.machine.memory import available
from stoker._core.machine.reserve import kept_free, refused
from stoker._engine.fork.native_pools import jax_has_started
from stoker._engine.serialize.causes import SHARING
from stoker._engine.transport import segments
from stoker.errors import MemoryLimitError, WorkerStartError


class Head(TypedDict):
    """The first record that a clean interpreter reads. Plain values only."""

    entry: str
    fds: list[int | None]
    shared: list[int]
    preparation: dict[str, Any]
    modules: list[str]
    plan: bytes
    buffers: int
    places: list[tuple[int, int]]
    tracker: int | None
    size: NotRequired[int]
    """Bytes of the parts, before this record."""


class Payload:
    """The parts that a clean interpreter was sent, still packed.

    The processes that it forks can open them too, each for itself, until this one has. They lie in memory once.
    """

    def __init__(self, stream: BinaryIO, head: Head) -> None:
        self._stream = stream
        self._head = head

    def prepare(self) -> Any:
        """Prepares this process, and those that it forks, as multiprocessing does, except for the main module; imports
        the modules of installed packages that the parts need; returns the plan.

        A module that cannot be imported here is left to the processes that open the parts: the same error is raised
        there, unless they do not need the module. So are, in a process that starts over, a module whose import starts a
        backend of JAX, whose threads no fork survives, and those behind it.
        """
        preparation = self._head["preparation"]
        spawn.prepare({name: value for name, value in preparation.items() if not name.startswith("init_main")})
        import pkgutil  # noqa: F401 - runpy needs it for the main module

        for place, module in enumerate(self._head["modules"]):
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(module)
            if jax_has_started():
                self._start_over(place)
        return pickle.loads(self._head["plan"])

    def _start_over(self, modules: int) -> NoReturn:
        """Becomes a new interpreter that imports the first modules only."""
        for descriptor in self.descriptors:
            os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [*sys.orig_argv, str(modules)])

    def contents(self) -> tuple[bytes, list[memoryview]]:
        """Returns the parts as they were sent, still pickled, and their large buffers: to be sent on. To be called in
        place of `open`.
        """
        with self._stream:
            return self._stream.read(self._head["size"]), [*self._buffers()]

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that belong to it in this process."""
        return descriptors_of(self._stream.fileno(), self._head)

    def close(self, but: Collection[int]) -> None:
        """Closes its descriptors but some, in a process that does not open it."""
        for descriptor in {*self.descriptors} - {self._stream.fileno(), *but}:
            os.close(descriptor)
        self._stream.close()

    @property
    def plan(self) -> Any:
        """The plan, for a process that prepares nothing."""
        return pickle.loads(self._head["plan"])

    @property
    def preparation(self) -> dict[str, Any]:
        """What multiprocessing sends to a new process, without the main module."""
        return self._head["preparation"]

    @property
    def modules(self) -> list[str]:
        """The modules of installed packages that the parts need."""
        return self._head["modules"]

    def open(self) -> dict[str, Any]:
        """Imports the main module, as multiprocessing does, and returns the parts, unpickled in this process.

        To be called once in a process, behind `prepare`. Large buffers are a private mapping: what is written to them
        is seen by this process, and by those it forks from then on.

        Raises:
            WorkerStartError: the main module could not be imported, or a part could not be rebuilt; the cause is its
                `__cause__`.
        """
        current: Any = process.current_process()
        current._inheriting = True  # a process start meanwhile fails: the main guard is missing
        try:
            self.import_main()
            return self._unpack()
        finally:
            del current._inheriting

    def import_main(self) -> None:
        """Imports the main module, as multiprocessing does. Raises WorkerStartError where that fails."""
        preparation = self._head["preparation"]
        main = {name: value for name, value in preparation.items() if name.startswith("init_main")}
        try:
            spawn.prepare(main)
        except (Exception, SystemExit) as error:
            module = next(iter(main.values()))
            raise WorkerStartError(
                f"a clean worker could not import the main module {module} again: {_text(error)}. What stands outside "
                'of `if __name__ == "__main__":` runs in such a worker too: move there what must run once, or '
                f"{SHARING}."
            ) from error

    def _unpack(self) -> dict[str, Any]:
        try:
            # mapped, because the processes' descriptors of one file share their position
            with self._stream, mmap.mmap(self._stream.fileno(), 0, access=mmap.ACCESS_READ) as packed:
                parts, made_by_main = pickle.loads(packed, buffers=self._buffers())
        except (Exception, SystemExit) as error:
            raise WorkerStartError(
                f"a clean worker could not rebuild what it was sent: {_text(error)}. It imports modules anew: what was "
                "patched or added to one at run time, under the main guard for instance, is missing there. Do that "
                f"where the module is imported, or {SHARING}."
            ) from error
        main = vars(sys.modules["__main__"])
        for name, value in made_by_main.items():
            main.setdefault(name, value)  # so that plain pickle finds them by name, here and at the trainer's end
        return parts  # type: ignore[no-any-return]

    def _buffers(self) -> Sequence[memoryview]:
        places = self._head["places"]
        try:
            # private: a page that a dataset writes to becomes this process's own
            whole = memoryview(mmap.mmap(self._head["buffers"], 0, access=mmap.ACCESS_COPY) if places else b"")
        finally:
            os.close(self._head["buffers"])
        return [whole[start : start + size] for start, size in places]


def wake(stream: BinaryIO, head: Head) -> None:
    """Called by the command of a clean interpreter: calls the entry with the parcel and the descriptors.

    Ctrl-C is the trainer's to hear, so SIGINT is ignored from here on; it was blocked until now.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    take_tracker(head)
    for descriptor in descriptors_of(stream.fileno(), head):
        os.set_inheritable(descriptor, False)  # programs that a dataset runs have no part in them
    if len(sys.argv) > 1:  # it has started over
        del head["modules"][int(sys.argv[1]) :]
    nominal.prefer_none()
    module, _, function = head["entry"].partition(":")
    getattr(importlib.import_module(module), function)(Payload(stream, head), head["fds"])


def take_tracker(head: Head) -> None:
    """Lets this process use the trainer's resource tracker of multiprocessing, if that has one."""
    resource_tracker._resource_tracker._fd = head["tracker"]  # type: ignore[attr-defined]


def descriptors_of(stream: int, head: Head) -> list[int]:
    """Returns the descriptors that travel with the descriptor `stream` of a packed payload, and itself."""
    descriptors = (*head["fds"], *head["shared"], stream, head["buffers"], head["tracker"])
    return [descriptor for descriptor in descriptors if descriptor is not None]


def _text(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


# Anonymous files in memory that are written once, and that ask whether there is memory before they take it.


_CHUNK = 1 << 26
"""Bytes written at once: Ctrl-C is heard in between."""
_STEP = 1 << 24
"""Bytes asked for at once, so that a stream of small pieces does not ask for each."""
_MIB = 1 << 20


class Block:
    """An anonymous file in memory, written from its start to its end. Not thread safe.

    A write takes memory page by page and says itself when the system has no more, so nothing is reserved beyond what
    is asked: SIGBUS threatens only users of a mapping. (Reserving first was measured to cost nothing, but a
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
            raise _refusal(self.size, size, f"{_in_bytes(kept_free(memory.limit))} are kept free for everything else")
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
        f"a clean worker cannot be sent the dataset: {_in_bytes(more)} more are needed after {_in_bytes(written)}, and "
        f"{_in_bytes(memory.bytes)} are available of {_in_bytes(memory.limit)} (limited by {memory.source}); {why}. A "
        f"clean worker needs a copy of what the trainer holds: {SHARING}, which shares it, keep "
        "large arrays in files (np.load(..., mmap_mode='r')), let the dataset read them in the worker, or give the "
        "container more memory."
    )


def _in_bytes(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"
