"""A clean interpreter's first steps, and what it was sent. Imports little, because its time is start-up time."""

from __future__ import annotations

import importlib
import mmap
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from multiprocessing import process, resource_tracker, spawn
from typing import Any, BinaryIO, TypedDict

from stoker import _nominal
from stoker._engine.process.causes import SHARING
from stoker.errors import WorkerStartError


class Head(TypedDict):
    """What a clean interpreter reads first. Plain values only."""

    entry: str
    fds: list[int]
    preparation: dict[str, Any]
    buffers: int
    places: list[tuple[int, int]]
    tracker: int | None


class Parcel:
    """The parts that a clean interpreter was sent, still packed."""

    def __init__(self, stream: BinaryIO, head: Head) -> None:
        self._stream = stream
        self._head = head

    def open(self) -> dict[str, Any]:
        """Prepares this process as multiprocessing does, the main module's import included, and returns the parts.

        To be called once. Large buffers are a private mapping: what is written to them is seen by this process, and by
        those it forks from then on.

        Raises:
            WorkerStartError: the main module could not be imported, or a part could not be rebuilt; the cause is its
                `__cause__`.
        """
        current: Any = process.current_process()
        current._inheriting = True  # who starts a process meanwhile is told that the main guard is missing
        try:
            self._prepare()
            return self._unpack()
        finally:
            del current._inheriting

    def _prepare(self) -> None:
        preparation = self._head["preparation"]
        try:
            spawn.prepare(preparation)
        except (Exception, SystemExit) as error:
            main = preparation.get("init_main_from_name") or preparation.get("init_main_from_path")
            raise WorkerStartError(
                f"a clean worker could not import the main module {main} again: {_text(error)}. What stands outside "
                'of `if __name__ == "__main__":` runs in such a worker too: move there what must run once, or '
                f"{SHARING}."
            ) from error

    def _unpack(self) -> dict[str, Any]:
        try:
            with self._stream:
                parts, made_by_main = pickle.Unpickler(self._stream, buffers=self._buffers()).load()
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
    resource_tracker._resource_tracker._fd = head["tracker"]  # type: ignore[attr-defined]
    for descriptor in (*head["fds"], stream.fileno(), head["buffers"], head["tracker"]):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # programs that a dataset runs have no part in them
    _nominal.prefer_none()
    module, _, function = head["entry"].partition(":")
    getattr(importlib.import_module(module), function)(Parcel(stream, head), head["fds"])


def _text(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
