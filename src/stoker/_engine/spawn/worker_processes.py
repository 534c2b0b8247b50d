"""Spawned worker processes, as the trainer sees them: one of them with its pipe, and all with what they share.

A pipe makes its writer wait while it is full. So a unit that might fill a pipe is sent only to a worker that waits for
it, and the two ends never wait for each other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Mapping
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, cast

from stoker._core.machine import memory, standard_streams
from stoker._engine.messages import FromWorker, ToWorker, Unit, UnitDone, Unpickled, packed, unpacked
from stoker._engine.process import linux
from stoker._engine.process.deadlines import FLUSH, LEAVE, REAP
from stoker._engine.process.worker_events import not_started
from stoker._engine.process_guard import allow, time_left
from stoker._engine.spawn import worker as spawned
from stoker._engine.spawn.worker_payload import WorkerPayload
from stoker._engine.supervision.rules import Rules, held_bytes
from stoker._engine.transport import segments
from stoker._engine.transport.arena import Arena
from stoker._engine.transport.arena_files import ArenaFiles
from stoker._engine.transport.reader import Reader

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
            self._sent += 1
            self._send(self._unsent.popleft())

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
        self.process.join(REAP)
        if self.process.is_alive():  # it is stopped, or its pipe alone was closed
            self.process.kill()
            self.process.join(REAP)
        code = self.process.exitcode
        with contextlib.suppress(ValueError):  # it has not ended yet
            self.process.close()
        return code


def _fits(unit: Unit) -> bool:
    return len(unit.work) <= FITS and not unit.known


class WorkerProcesses:
    """The workers and all that belongs to them, ended without the backend too: by garbage, or at exit."""

    def __init__(self, parts: Mapping[str, object], workers: int, rules: Rules) -> None:
        standard_streams.occupy()
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
