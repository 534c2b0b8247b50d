"""Worker processes where there is no fork: each is an interpreter of its own, which multiprocessing spawns.

The trainer does what elsewhere the zygote does: it hands out units, owns the arena, notices deaths. So all of that
happens only while it asks for a batch or submits a unit: a worker that is done during a long training step waits. There
is a pipe to each worker, no thread and no lock.

A pipe makes its writer wait while it is full. So a unit that might fill one is sent only to a worker that waits for it,
and the two ends never wait for each other.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Mapping
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from typing import Any

from stoker import errors
from stoker._engine import spawned
from stoker._engine.base import IDLE, Answer, Backend, Said, Witness
from stoker._engine.process import fates
from stoker._engine.process.birth import Assemble, Parts
from stoker._engine.process.deadlines import LEAVE, PULSE, REAP
from stoker._engine.process.lending import Lending
from stoker._engine.process.shipment import Shipment
from stoker._engine.process.trainer import held_bytes
from stoker._supervision.dispatch import Dispatch
from stoker._supervision.rules import Rules
from stoker._transport import leaves, segments
from stoker._transport.arena import Arena
from stoker._transport.reader import Reader
from stoker._transport.writer import Written

FITS = 4096
"""Bytes that a pipe takes though nobody reads: that of Windows holds 8 KiB."""

AT_ONCE = 60
"""Windows waits for 63 things at once, before Python 3.13."""


class _Life:
    """The workers and all that belongs to them, ended without the backend too: by garbage, or at exit."""

    def __init__(self, parts: Mapping[str, Any], workers: int, rules: Rules) -> None:
        budget = rules.memory_budget
        self.arena = Arena(segments.create(), None if budget is None else budget // 2)
        self.reader = Reader(self.arena.descriptor, held_bytes(rules))
        self.processes: list[SpawnProcess] = []
        self.pipes: dict[int, Any] = {}
        try:
            with contextlib.closing(Shipment(parts)) as shipment:
                for number in range(workers):
                    self._start(number, shipment)
        except BaseException:
            self.end()
            raise

    def _start(self, number: int, shipment: Shipment) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes[number], theirs = context.Pipe()
        with theirs:
            arguments = (number, theirs, segments.Sent(self.arena.descriptor), shipment)
            process = context.Process(target=spawned.main, args=arguments, name=f"stoker-worker-{number}", daemon=True)
            try:
                process.start()
            except OSError as error:
                raise errors.WorkerStartError(
                    f"could not start worker {number}: {error}. The limit on processes or the memory is reached: use "
                    "fewer workers, or raise it."
                ) from error
        self.processes.append(process)

    def end(self) -> None:
        """Ends the workers, idle ones at once, busy ones after a moment, and gives back all that they held."""
        try:
            for pipe in self.pipes.values():
                pipe.close()
            until = time.monotonic() + LEAVE
            for process in self.processes:
                process.join(max(0.0, until - time.monotonic()))
        finally:  # Ctrl-C as well: then at once
            for process in self.processes:
                if process.is_alive():
                    process.kill()
            for process in self.processes:
                process.join(REAP)
                with contextlib.suppress(ValueError):  # it has not ended yet
                    process.close()
            self.reader.close()
            os.close(self.arena.descriptor)


class SpawnBackend(Backend):
    """Runs units in spawned worker processes.

    Args:
        parts: what the job is made of, by name: these names begin the paths in `CannotSendError`.
        assemble: makes the recipe from the parts; a function of a module.
        workers: how many processes.
        rules: what they may do.
        witness: who is told of what happens.
    """

    def __init__(self, parts: Parts, assemble: Assemble, workers: int, rules: Rules, witness: Witness) -> None:
        self._witness = witness
        self._life = _Life({**parts, "assemble": assemble}, workers, rules)
        self._finalizer = weakref.finalize(self, self._life.end)
        self._dispatch = Dispatch(workers)
        self._lending = Lending(self._life.arena, self._dispatch)
        self._work: dict[int, bytes] = {}  # submitted, not sent
        self._unsent: list[deque[int]] = [deque() for _ in range(workers)]  # handed out, not sent
        self._inbox: deque[Answer] = deque()
        self._dropped_below = 0
        self._fatal: BaseException | None = None

    def submit(self, unit: int, work: Any, worker: int | None) -> None:
        self._work[unit] = leaves.dumps(work, lambda leaf: None)
        self._dispatch.submitted(unit, worker)
        self._hand_out()

    def receive(self, timeout: float | None) -> Answer:
        until = None if timeout is None else time.monotonic() + timeout
        wait = 0.0  # what has arrived comes first
        while self._fatal is None:
            self._listen(wait)
            self._hand_out()
            if self._inbox:
                break
            self._feed_the_next()
            wait = PULSE if until is None else min(PULSE, until - time.monotonic())
            if wait <= 0.0:
                raise errors.LoaderTimeoutError(
                    f"DataLoader timed out after {timeout:g} seconds: no batch arrived from {len(self._unsent)} "
                    "worker(s). Raise `timeout`, or find the slow sample."
                )
        if self._inbox:
            return self._inbox.popleft()
        assert self._fatal is not None
        raise self._fatal

    def open(self, answer: Answer) -> Any:
        slot, value = answer.value
        answer.value = None
        return self._life.reader.read(slot, Written(*value))

    def discard(self, answer: Answer) -> None:
        if answer.kind == "batch" and answer.value[0] is not None:
            self._life.reader.discard(answer.value[0])

    def drop(self, before: int) -> None:
        self._dropped_below = before
        for answer in self._inbox:
            if answer.unit < before:
                self.discard(answer)
        self._inbox = deque(answer for answer in self._inbox if answer.unit >= before)
        for unit in self._dispatch.dropped(before):
            del self._work[unit]

    def close(self) -> None:
        self._finalizer()
        if self._fatal is None:
            self._fatal = errors.IteratorClosedError("the iterator is closed: make a new one with iter(loader)")

    def _hand_out(self) -> None:
        """Slots that came back go to workers that wait for them, units to those that are free."""
        self._lending.put_back(self._life.reader.returned())
        self._grant()
        for worker, unit in self._dispatch.hand_out():
            self._unsent[worker].append(unit)
        for worker, units in enumerate(self._unsent):
            held = self._dispatch.held(worker)
            while units and (len(units) == len(held) or len(self._work[units[0]]) <= FITS):
                unit = units.popleft()
                self._send(worker, "unit", unit, self._work.pop(unit), self._lending.offer(unit), ())

    def _grant(self, hungry_for: int | None = None) -> None:
        for worker, reply in self._lending.grant(hungry_for):
            self._send(worker, "slot", reply)

    def _feed_the_next(self) -> None:
        """If the unit that we wait for waits for memory, nobody else will bring any: it gets it now, or an error."""
        unit = self._lending.starved_for
        if unit is None or any(self._dropped_below <= other < unit for other in self._dispatch.outstanding):
            return
        gc.collect()  # batches in cycles hold slots
        self._lending.put_back(self._life.reader.returned())
        self._grant(hungry_for=unit)

    def _send(self, worker: int, *message: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended, as its pipe will tell
            self._life.pipes[worker].send(message)

    def _listen(self, seconds: float) -> None:
        """Waits for workers to say something or to end, and takes what has arrived."""
        pipes, processes = self._life.pipes, self._life.processes
        things = [*pipes.values(), *(processes[number].sentinel for number in pipes)]
        ready = connection.wait(things[:AT_ONCE], seconds)
        for number, pipe in list(pipes.items()):
            ended = processes[number].sentinel in ready
            messages = []
            try:
                while (pipe in ready or ended) and pipe.poll():
                    messages.append(pipe.recv())
            except (EOFError, OSError):
                ended = True
            for message in messages:
                self._hear(number, *message)
            if ended:
                self._bury(number)

    def _hear(self, number: int, name: str, *message: Any) -> None:
        if name == "answer":
            self._take_answer(number, *message)
        elif name == "ask":
            self._lending.asked(number, *message)
        elif name == "ready":
            self._dispatch.joined(number)
        elif name == "broken":
            self._fatal = self._fatal or fates.broken(pickle.loads(message[0]))

    def _take_answer(
        self, number: int, unit: int, kind: Any, value: Any, held: int | None, seconds: float, said: tuple[Any, ...]
    ) -> None:
        self._dispatch.answered(number, unit, seconds)
        slot = self._lending.answered(unit, kind, value, held)
        answer = Answer(unit, kind, (slot, value), number, Said(*said))
        if unit < self._dropped_below:
            self.discard(answer)
            return
        if kind == "error":
            answer.value = pickle.loads(value)
        self._inbox.append(answer)

    def _bury(self, number: int) -> None:
        """A worker has ended: that is the end of this backend, behind what has arrived."""
        process = self._life.processes[number]
        self._life.pipes.pop(number).close()
        process.join(REAP)
        self._unsent[number].clear()
        lost = self._dispatch.died(number)
        self._lending.lost(number, lost)
        where = self._witness.locate(lost[0], IDLE) if lost else None
        self._fatal = self._fatal or fates.died(number, process.pid or 0, process.exitcode, where)
