"""A spawned worker: unpickles the job, then works as every worker does. Imports little."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing import connection
from typing import TYPE_CHECKING, TypeAlias, cast

from stoker._core import nominal
from stoker._core.machine.reserve import lengthen
from stoker._engine.activity import SIZE, WorkerActivity, views_of
from stoker._engine.backend import JobFactory, JobSource
from stoker._engine.messages import FromWorker, ToWorker, packed, unpacked
from stoker._engine.process import end_duties, linux, process_setup
from stoker._engine.process.deadlines import DEAD
from stoker._engine.process.worker import Worker, work
from stoker._engine.serialize.payload import Head, Payload
from stoker._engine.transport.segments import ArenaFiles, Sent

if TYPE_CHECKING:
    Pipe: TypeAlias = connection.Connection[tuple[object, ...], tuple[object, ...]]
    """To the other process; carries packed messages."""


class SharedActivity(WorkerActivity):
    """Marks of workers that are not forked: in a file of `SIZE` bytes for each, which they are sent."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self._descriptor = descriptor
        self._views = views_of(mmap.mmap(descriptor, SIZE * workers)) if workers else []

    def grow(self, workers: int) -> None:
        """Makes room for this number of workers. Earlier workers keep the memory that they have mapped."""
        before = len(self._views)
        if workers > before:
            lengthen(self._descriptor, SIZE * workers)
            self._views += views_of(mmap.mmap(self._descriptor, SIZE * workers))[before:]
        for worker in range(before, workers):
            self.forget(worker)


class SpawnedWorker(Worker):
    """A worker with a pipe to the trainer. Leaves when the pipe or the trainer ends."""

    def __init__(self, number: int, pipe: Pipe, arena: ArenaFiles, mark: memoryview) -> None:
        super().__init__(number, arena, mark)
        self._pipe = pipe
        trainer = multiprocessing.parent_process()
        assert trainer is not None
        self._trainer = trainer.sentinel

    def send(self, message: FromWorker) -> None:
        """Sends a message to the trainer; waits until the pipe has room."""
        try:
            self._pipe.send(packed(message))
        except OSError:  # the trainer has ended, or the user's code has closed our descriptors
            raise process_setup.Leaving(1) from None

    def receive(self) -> list[ToWorker]:
        """From the trainer."""
        ready = connection.wait([self._pipe, self._trainer])
        try:
            if self._pipe in ready:
                return [cast("ToWorker", unpacked(self._pipe.recv()))]
        except EOFError:  # there is nothing more to do
            raise process_setup.Leaving(0) from None
        except OSError:
            pass
        linux.die_within(DEAD)  # the trainer has ended, and no other process would end this one
        raise process_setup.Leaving(1)

    def arrived(self) -> list[ToWorker]:
        """Returns the trainer's messages that have arrived. Leaves when it wants no more."""
        messages: list[ToWorker] = []
        try:
            while self._pipe.poll():
                messages.append(cast("ToWorker", unpacked(self._pipe.recv())))
        except EOFError:
            if not messages:
                raise process_setup.Leaving(0) from None
        except OSError:
            pass
        return messages


def opened(parcel: Payload) -> JobFactory:
    """Returns the job factory of the payload."""
    parts = parcel.open()
    job_factory: JobFactory = parts.pop("assemble")(parts)
    return job_factory


def parcel(stream: Sent, buffers: Sent, places: list[tuple[int, int]]) -> Payload:
    """Returns the payload, still pickled. multiprocessing has prepared this process."""
    packed = open(stream.descriptor, "rb", buffering=0)  # noqa: SIM115 - closed by who opens the parcel
    head = Head(
        entry="",
        fds=[],
        shared=[],
        preparation={},
        modules=[],
        plan=b"",
        buffers=buffers.descriptor,
        places=places,
        tracker=None,
    )
    return Payload(packed, head)


def main(number: int, pipe: Pipe, arena: Sequence[Sent], marks: Sent, workers: int, parcel: Payload) -> None:
    """The work of a spawned worker; multiprocessing does the rest."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the trainer, which then ends us
    nominal.prefer_none()
    mark = SharedActivity(marks.descriptor, workers).of(number)
    os.close(marks.descriptor)
    end_duties.watch(mark, multiprocessing.current_process())
    works = SpawnedWorker(number, pipe, ArenaFiles(file.descriptor for file in arena), mark)
    work(lambda: works.open(JobSource(lambda: opened(parcel), unpickles=True)), works.bye)
