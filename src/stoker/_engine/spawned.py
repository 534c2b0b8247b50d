"""A spawned worker, from its first step: opens what it was sent, then works as every worker does. Imports little."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import signal
from multiprocessing import connection
from typing import Any, NoReturn

from stoker import _nominal
from stoker._engine.base import Failure
from stoker._engine.process import settle
from stoker._engine.process.channel import Message
from stoker._engine.process.marks import SIZE, Marks, views_of
from stoker._engine.process.parcel import Head, Parcel
from stoker._engine.process.worker import Worker, dumps, live
from stoker._transport.segments import Sent


class SharedMarks(Marks):
    """Marks of workers that are not forked: in a file of `SIZE` bytes for each, which they are sent."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self._views = views_of(mmap.mmap(descriptor, SIZE * workers))


class SpawnedWorker(Worker):
    """A worker with a pipe to the trainer. Leaves when the pipe or the trainer ends."""

    def __init__(self, number: int, pipe: Any, arena: int, mark: memoryview) -> None:
        super().__init__(number, arena, mark)
        self._pipe = pipe
        trainer = multiprocessing.parent_process()
        assert trainer is not None
        self._trainer = trainer.sentinel

    def send(self, *message: Any) -> None:
        """To the trainer; waits while it has no time."""
        try:
            self._pipe.send(message)
        except OSError:  # the trainer has ended, and asks nobody, or the user's code has closed our descriptors
            settle.leave(1)

    def receive(self) -> list[Message]:
        """From the trainer."""
        ready = connection.wait([self._pipe, self._trainer])
        try:
            if self._pipe in ready:
                return [self._pipe.recv()]
        except EOFError:  # there is nothing more to do
            settle.leave(0)
        except OSError:
            pass
        settle.leave(1)

    def arrived(self) -> list[Message]:
        """From the trainer. That it has ended is found out by whoever waits for it."""
        messages = []
        with contextlib.suppress(EOFError, OSError):
            while self._pipe.poll():
                messages.append(self._pipe.recv())
        return messages

    def open(self, parcel: Parcel) -> None:
        """Opens what was sent, and works from then on."""
        try:
            parts = parcel.open()
            recipe = parts.pop("assemble")(parts)
        except Exception as error:
            self.send("broken", dumps(Failure.of(error, f"in DataLoader worker process {self._number}")))
            settle.leave(1)
        self.send("ready")
        self.run(recipe)


def parcel(stream: Sent, buffers: Sent, places: list[tuple[int, int]]) -> Parcel:
    """What was sent, still packed. Mapped, because the workers' descriptors of one file share their position."""
    packed: Any = mmap.mmap(stream.descriptor, 0, access=mmap.ACCESS_READ)
    os.close(stream.descriptor)
    head = Head(entry="", fds=[], preparation={}, buffers=buffers.descriptor, places=places, tracker=None)
    return Parcel(packed, head)


def main(number: int, pipe: Any, arena: Sent, marks: Sent, workers: int, parcel: Parcel) -> NoReturn:
    """The whole life of a spawned worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the trainer, which then ends us
    _nominal.prefer_none()
    mark = SharedMarks(marks.descriptor, workers).of(number)
    os.close(marks.descriptor)
    live(lambda: SpawnedWorker(number, pipe, arena.descriptor, mark).open(parcel))
