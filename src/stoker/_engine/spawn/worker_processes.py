"""Spawned worker processes, as the trainer sees them: one with its pipe, all with what they share, and the payload that
they receive.

A pipe makes its writer wait while it is full. So a unit that might fill a pipe is sent only to a worker that waits for
it, and the two ends never wait for each other.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Mapping
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, cast

import numpy as np

from stoker._core.machine import memory, reserve
from stoker._engine.messages import FromWorker, ToWorker, Unit, UnitDone, Unpickled, packed, unpacked
from stoker._engine.process import linux
from stoker._engine.process.deadlines import FLUSH, GONE_BY_ITSELF, LEAVE, REAP
from stoker._engine.process.worker_events import not_started
from stoker._engine.process_guard import allow, time_left
from stoker._engine.serialize import pickler, unpicklable
from stoker._engine.serialize.main_module import names_after_import, preparation_of
from stoker._engine.serialize.payload import Block
from stoker._engine.spawn import worker
from stoker._engine.spawn import worker as spawned
from stoker._engine.supervision.rules import Rules, held_bytes
from stoker._engine.transport import segments
from stoker._engine.transport.arena import Arena
from stoker._engine.transport.reader import Reader
from stoker._engine.transport.segments import ArenaFiles, Sent

if TYPE_CHECKING:
    from stoker._engine.spawn.worker import Pipe


FITS = 4096
"""Bytes that a pipe takes without a reader: that of Windows holds 8 KiB."""


class WorkerProcess:
    """One worker, as the trainer sees it."""

    def __init__(self, process: SpawnProcess, pipe: Pipe) -> None:
        self.process = process
        self.pid = process.pid or 0
        self.pipe = pipe
        self.is_ready = False
        self._unsent: deque[Unit] = deque()
        self._sent = 0  # units that it has not answered

    def send(self, message: ToWorker) -> None:
        """Sends a message; a unit may be sent later."""
        if isinstance(message, Unit):
            self._unsent.append(message)
            self._send_units()
        else:
            self._send(message)

    def _send_units(self) -> None:
        while self._unsent and (not self._sent or _fits(self._unsent[0])):
            message = self._unsent.popleft()
            self._sent += len(message.work) if isinstance(message.work, list) else 1
            self._send(message)

    def _send(self, message: ToWorker) -> None:
        with contextlib.suppress(OSError):  # it has ended, as its pipe will tell
            self.pipe.send(packed(message))

    def received(self) -> tuple[list[FromWorker], bool]:
        """Returns the messages that have arrived, and whether the pipe has ended."""
        messages: list[FromWorker] = []
        try:
            while self.pipe.poll():
                messages.append(cast("FromWorker", unpacked(self.pipe.recv())))
        except (EOFError, OSError):
            return messages, True
        finally:
            self.is_ready = self.is_ready or any(isinstance(message, Unpickled) for message in messages)
            self._sent -= sum(isinstance(message, UnitDone) for message in messages)
            self._send_units()
        return messages, False

    def bury(self) -> int | None:
        """Ends the process if it has not ended, and returns its exit code. An idle worker leaves when its pipe is
        closed.
        """
        self.pipe.close()
        self.process.join(GONE_BY_ITSELF)
        if self.process.is_alive():  # it is stopped, or its pipe alone was closed
            self.process.kill()
            self.process.join(REAP)
        code = self.process.exitcode
        with contextlib.suppress(ValueError):  # it has not ended yet
            self.process.close()
        return code


def _fits(message: Unit) -> bool:
    work = message.work
    return (len(work) if isinstance(work, bytes) else sum(map(len, work))) <= FITS and not message.known


class WorkerProcesses:
    """The workers and all that belongs to them, ended without the backend too: by garbage, or at exit."""

    def __init__(self, parts: Mapping[str, object], workers: int, rules: Rules) -> None:
        reserve.occupy()
        budget = rules.memory_budget
        self.arena = Arena(ArenaFiles.create(), None if budget is None else budget // 2)
        self.reader = Reader(self.arena.files, held_bytes(rules))
        self.children: dict[int, WorkerProcess] = {}
        self._workers = workers
        self._marked = segments.create()
        self._shipment: WorkerPayload | None = None
        try:
            self.marks = spawned.SharedActivity(self._marked, 0)
            self.marks.grow(workers)
            self._shipment = WorkerPayload(parts)  # kept: replacements of workers get the same payload
            for number in range(workers):
                try:
                    self.start(number)
                except OSError as error:
                    raise not_started(f"worker {number}", error) from error
        except BaseException:
            self.end()
            raise

    def start(self, number: int) -> None:
        """Starts a worker. Raises OSError if no other process can be started."""
        self.marks.forget(number)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        files = [segments.Sent(file) for file in self.arena.files], segments.Sent(self._marked)
        arguments = (number, theirs, *files, self._workers, self._shipment)
        process = context.Process(target=spawned.main, args=arguments, name=f"stoker-worker-{number}", daemon=True)
        try:
            with theirs:
                process.start()
        except BaseException:
            ours.close()
            raise
        self.children[number] = WorkerProcess(process, ours)

    def grow(self, workers: int) -> None:
        """Makes room for this number of workers. Raises OSError if there is no memory for it."""
        self.marks.grow(workers)
        self._workers = max(self._workers, workers)

    def own_bytes(self, worker: int) -> int:
        """Returns the private memory of a worker; 0 if unknown."""
        return linux.private_bytes(self.children[worker].pid)

    def has_duties(self, worker: int) -> bool:
        """Returns whether a worker has duties at its end."""
        return self.marks.has_duties(worker)

    def available(self) -> memory.Available:
        """Returns the memory that is available."""
        return memory.available()

    def end(self) -> None:
        """Ends the workers, idle ones at once, busy ones after a moment, those with duties later, and frees all that
        they held.
        """
        children, self.children = self.children, {}
        try:
            for child in children.values():
                child.pipe.close()
            until = time.monotonic() + time_left(LEAVE)
            for child in children.values():
                child.process.join(max(0.0, until - time.monotonic()))
            late = []
            for number, child in children.items():
                if child.process.is_alive():
                    if self.marks.has_duties(number):
                        late.append(child)
                    else:
                        child.process.kill()
            if late:
                allow(FLUSH)
                until = time.monotonic() + FLUSH - LEAVE
            for child in late:
                child.process.join(max(0.0, until - time.monotonic()))
        finally:  # Ctrl-C as well: then at once
            for child in children.values():
                if child.process.is_alive():
                    child.process.kill()
            for child in children.values():
                child.bury()
            if self._shipment is not None:
                self._shipment.close()
            self.reader.close()
            self.arena.files.close()
            os.close(self._marked)


class WorkerPayload:
    """The parts, as an argument of processes that multiprocessing spawns; arrives as a `Parcel`. Closed after that.

    Raises:
        CannotSendError: some part cannot be pickled: named by its path, before anything is started.
        MemoryLimitError: there is not enough memory for a copy.
        RuntimeError: called while this process is itself being prepared: the script lacks its main guard.
    """

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = parts
        self._importable = names_after_import(preparation_of("stoker"))
        self._buffers = Block()
        self._stream = Block()
        self._written: dict[tuple[int, int], tuple[tuple[int, int], memoryview]] = {}  # by address and size
        with pickler.spawning() as handles:
            try:
                self._places = self._write()
            except BaseException as error:
                self.close()
                if isinstance(error, Exception) and not isinstance(error, MemoryError):
                    raise unpicklable.named(parts, self._importable, error) from error
                raise
        self._for_one = bool(handles)  # a lock of multiprocessing is made over to each process by itself

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        if self._for_one:
            self._places = self._write()
        return worker.parcel, (Sent(self._stream.fd), Sent(self._buffers.fd), self._places)

    def _write(self) -> list[tuple[int, int]]:
        """Pickles the parts into a new stream; returns where the buffers lie. Who got the last one has a descriptor of
        its own by now."""
        last, self._stream = self._stream, Block()
        last.close()
        written = pickler.write(self._parts, self._importable, self._stream)
        self._lent = written.lent  # kept as long as workers can be started
        return [self._place(view) for view in written.large]

    def _place(self, view: memoryview) -> tuple[int, int]:
        """A buffer is written once, and kept until the end so that no other comes to have its address."""
        key = np.frombuffer(view, np.uint8).ctypes.data, view.nbytes
        if key not in self._written:
            self._written[key] = (self._buffers.align(mmap.PAGESIZE), self._buffers.write(view)), view
        return self._written[key][0]

    def close(self) -> None:
        """Workers that were started have their own descriptors."""
        self._buffers.close()
        self._stream.close()
