"""A worker on another machine: the loop of every worker, with memory of its own, and a socket to the bridge."""

from __future__ import annotations

import faulthandler
import mmap
import multiprocessing
import os
import select
import socket
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import NamedTuple

from stoker import errors
from stoker._core.exceptions import summary_of
from stoker._engine.activity import SIZE, Mark, views_of
from stoker._engine.backend import Failure, JobFactory, JobSource
from stoker._engine.machines.batch_link import size_behind
from stoker._engine.messages import FromWorker, ToWorker
from stoker._engine.process import end_duties, linux, process_setup
from stoker._engine.process.channel import Channel
from stoker._engine.process.worker import Worker, work
from stoker._engine.serialize.payload import Payload
from stoker._engine.spawn.worker import opened
from stoker._engine.transport.arena import Arena, Slot
from stoker._engine.transport.segments import ArenaFiles

ELSEWHERE = (
    "The worker runs on another host (remote=), which has its own files and packages: put data where all hosts read it "
    "under the same path (a network file system, object storage), install packages there, and send modules with "
    'remote=stoker.Ray(runtime_env={"working_dir": "."}).'
)


class Role(NamedTuple):
    """What a remote worker is told at its start."""

    number: int
    agent: int
    """The pid of its agent."""
    place: str
    """Its host and address, for messages."""


class RemoteWorker(Worker):
    """A worker with a socket to the bridge. It writes a batch into memory of its own, and sends the bytes behind the
    answer.

    Args:
        role: what it is told at its start.
        channel: to the bridge.
        mark: receives its place and activity.
    """

    def __init__(self, role: Role, channel: Channel[ToWorker], mark: Mark | None = None) -> None:
        self._own = Arena(ArenaFiles.create())
        super().__init__(role.number, self._own.files, mark)
        self._where += f" on {role.place}"
        self._channel = channel
        self._held: Slot | None = None
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def send(self, message: FromWorker) -> None:
        """Sends a message, and the batch that belongs to it; waits until the kernel has both."""
        self._channel.queue(message)
        self._drain()
        if size := size_behind(message):
            assert self._held is not None
            self._own.wrote(size)
            self._channel.queue_bytes(memoryview(self._writer.map(self._held).part(0, size)).cast("B"))
            self._drain()
        self._put_back()

    def receive(self) -> list[ToWorker]:
        """Returns messages of the bridge, waiting for the first."""
        self._poll.poll()
        messages = self._channel.receive()
        if self._channel.ended:
            raise process_setup.Leaving(0)
        return messages

    def arrived(self) -> list[ToWorker]:
        """Returns the messages of the bridge that have arrived."""
        return self._channel.receive()

    def _drain(self) -> None:
        self._channel.flush()
        if self._channel.unsent:
            self._poll.modify(self._channel.fileno(), select.POLLOUT)
            while self._channel.unsent:
                self._poll.poll()
                self._channel.flush()
            self._poll.modify(self._channel.fileno(), select.POLLIN)
        if self._channel.ended:
            raise process_setup.Leaving(1)

    def _ask(self, size: int) -> Slot:
        """Returns memory of this machine; the bridge asks for a slot of the trainer's when the batch is there."""
        self._put_back()
        try:
            self._held = self._own.take(size)
        except errors.MemoryLimitError:
            self._is_short = True
            raise
        return self._held

    def _put_back(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._own.put_back(held.number)

    def _failure(self, error: Exception, where: str) -> Failure:
        failure = Failure.of(error, where)
        if isinstance(error, (FileNotFoundError, ModuleNotFoundError)):
            failure.advice = failure.advice or f"Stoker: {ELSEWHERE}"
        return failure


def run(parcel: Payload, descriptors: Sequence[int | None]) -> None:
    """Entry of the clean interpreter of a remote worker; its agent gave it the socket, its mark and a file for stacks.

    Large arrays of the dataset lie in the agent's memory, and are private to this worker where it writes to them.
    """
    data, marks, stacks = (int(number) for number in descriptors if number is not None)
    role: Role = parcel.prepare()
    linux.die_with_parent(role.agent)
    mark = set_up(role, marks, stacks)
    works = RemoteWorker(role, Channel(socket.socket(fileno=data)), mark)
    work(lambda: works.open(source_of(role, lambda: opened(parcel))), works.bye, stacks)


def set_up(role: Role, marks: int, stacks: int) -> Mark:
    """Sets up the process of a worker; returns its mark.

    Args:
        role: what it is told.
        marks: descriptor of the file of its mark.
        stacks: descriptor of the file for its stacks.
    """
    linux.name_process(f"stoker-{role.number}")
    faulthandler.register(process_setup.STACKS_SIGNAL, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks, all_threads=True)
    process_setup.one_thread()
    (mark,) = views_of(mmap.mmap(marks, SIZE))
    os.close(marks)
    end_duties.watch(mark, multiprocessing.current_process())
    return mark


def source_of(role: Role, open_parts: Callable[[], JobFactory]) -> JobSource:
    """Returns the source of the worker's job; an error says where the worker is."""

    def job_factory() -> JobFactory:
        try:
            return open_parts()
        except Exception as error:
            # the advice of that error is for workers of the trainer's host
            cause = error.__cause__ if isinstance(error, errors.WorkerStartError) else None
            text = f"worker {role.number} on {role.place} could not unpickle the dataset: {summary_of(cause or error)}."
            if "cloudpickle" in text:
                text += f" cloudpickle {metadata.version('cloudpickle')} is there: install the trainer's version."
            raise errors.WorkerStartError(f"{text} {ELSEWHERE}") from error

    return JobSource(job_factory, unpickles=True)
