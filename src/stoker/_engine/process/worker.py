"""A worker: takes units, runs the job, answers. One thread, one connection, until somebody ends."""

from __future__ import annotations

import os
import pickle
import select
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from stoker import errors
from stoker._engine.base import IDLE, WRITE, Failure, Job, Known, NothingLeft, Recipe, Said, StreamEnd, located
from stoker._engine.process import kernel, settle
from stoker._engine.process.channel import Channel, Message
from stoker._engine.process.sharing import Part
from stoker._machine import reserve
from stoker._transport import leaves
from stoker._transport.arena import Slot
from stoker._transport.rows import Layout, MisfitError, RowWriter
from stoker._transport.segments import Mapping
from stoker._transport.writer import SlotWriter

SOON = 2e-3
"""Seconds in which nobody makes much: to look takes a hundredth of that."""


class Worker(ABC):
    """The loop of one worker process; subclasses know who minds it, and how messages travel."""

    def __init__(self, number: int, arena: int, mark: Any = None) -> None:
        self._number = number
        self._mark: Any = [IDLE] if mark is None else mark
        self._writer = SlotWriter(arena, self._ask)
        self._inbox: list[Message] = []
        self._announced: set[int] = set()  # units in it that the job knows of
        self._unit = -1
        self._offered: Slot | None = None  # with the unit
        self._asked = 0  # questions for a slot
        self._most = 0  # bytes of its own that it had with the unit in hand, as far as somebody looked
        self._start = 0.0  # of it
        self._is_short = False  # whether there was no memory for the unit in hand
        self._waited = 0.0  # seconds for memory, with the unit in hand: they say nothing about what it costs
        self._resume: bytes | None = None

    @abstractmethod
    def send(self, *message: Any) -> None:
        """Sends a message; waits until it is on its way."""

    @abstractmethod
    def receive(self) -> list[Message]:
        """Waits for messages. Leaves when there is nobody left to work for."""

    @abstractmethod
    def arrived(self) -> list[Message]:
        """Messages that have arrived by now."""

    def run(self, recipe: Recipe) -> None:
        """Works until there is nobody left to work for."""
        where = f"in DataLoader worker process {self._number}"
        job: Job | None = None
        sick: Failure | None = None
        try:
            job = recipe(self._number)
            job.mark = self._mark
            job.upcoming = self._upcoming
            job.weigh = self._weigh
        except Exception as error:
            sick = Failure.of(error, where)
        while True:
            _, self._unit, blob, slot, known, part = self._next("unit")
            self._announced.discard(self._unit)
            if job is not None and (resume := self._resume) is not None:
                self._resume = None
                job.resume(resume)
            start = self._start = time.perf_counter()
            self._most = 0
            self._offered = None if slot is None else Slot(*slot)
            self._writer.begin(self._offered if part is None else None)
            if job is None:
                self._answer("error", dumps(sick), start, None)
            elif part is None:
                self._do(job, blob, start, where, known)
            else:
                self._do_part(job, blob, start, where, part)
            del blob

    def _do(self, job: Job, blob: bytes, start: float, where: str, known: Known) -> None:
        settle.one_thread()
        kind, value = self._made(job, blob, where, known)
        self._writer.let_go()
        self._answer(kind, value, start, job)

    def _made(self, job: Job, blob: bytes, where: str, known: Known) -> tuple[str, Any]:
        try:
            return "batch", self._writer.finish(job.run(pickle.loads(blob), self._writer.lend, known)).packed()
        except StreamEnd:
            return "end", b""
        except NothingLeft:
            return "empty", b""
        except Exception as error:
            return "error", dumps(Failure.of(error, located(where, job.failed_index())))

    def _do_part(self, job: Job, blob: bytes, start: float, where: str, part: Part) -> None:
        """Rows of a batch that others make as well."""
        settle.one_thread()
        first, last, count, layout = part
        known = None if layout is None else Layout(*layout)
        writer = RowWriter(first, last, count, known, self._ask_for_rows, self._check_for_rows)
        kind, value = self._made_rows(job, blob, where, writer, (first, last))
        self._writer.let_go(writer.lent)
        self._answer(kind, value, start, job)

    def _made_rows(
        self, job: Job, blob: bytes, where: str, writer: RowWriter, rows: tuple[int, int]
    ) -> tuple[str, Any]:
        try:
            written = writer.finish(job.run(pickle.loads(blob), writer.lend, rows=rows))
            return "rows", (tuple(written.layout), written.texts)
        except MisfitError as error:
            return "short" if self._is_short else "misfit", error.for_good
        except Exception as error:
            return "error", dumps(Failure.of(error, located(where, job.failed_index())))

    def _answer(self, kind: str, value: Any, start: float, job: Job | None) -> None:
        said = Said() if job is None else job.said()
        if self._is_short:
            self._is_short = False
            kernel.give_back()  # what its samples had is for others, and `malloc` keeps tens of megabytes
        self._mark[0] = WRITE
        seconds, self._waited = time.perf_counter() - start - self._waited, 0.0
        self.send("answer", self._unit, kind, value, seconds, tuple(said))
        self._mark[0] = IDLE

    def _ask(self, size: int) -> Slot:
        """Exchanges the slot held for one of at least `size` bytes. Who has the arena answers or ends, and so do we."""
        asked = time.perf_counter()
        given = self._given("ask", size)
        self._waited += time.perf_counter() - asked
        if isinstance(given, str):
            self._is_short = True
            raise errors.MemoryLimitError(given)
        return Slot(*given)

    def _ask_for_rows(self, size: int) -> Mapping:
        """The slot in which several workers write this unit."""
        offered = self._offered
        if offered is not None and size <= offered.capacity:
            return self._writer.map(offered)
        given = self._given("ask_for_rows", size)
        if given is None:
            self._is_short = True
            raise MisfitError("there is no memory for it now")
        return self._writer.map(Slot(*given))

    def _check_for_rows(self, size: int) -> None:
        """Whether there is so much that workers can take for rows that have no place yet."""
        try:
            reserve.check(size)
        except errors.MemoryLimitError:
            self._is_short = True
            raise

    def _weigh(self) -> None:
        """Now it has most of the unit in hand. What was made in no time is little."""
        if time.perf_counter() - self._start > SOON:
            self._most = max(self._most, kernel.private_bytes(os.getpid()))

    def _given(self, name: str, size: int) -> Any:
        """The answer to a question for a slot. Those to earlier ones are passed over: an exception of the user's may
        have ended the wait for them, as a signal's handler raises one."""
        self._asked += 1
        self.send(name, self._unit, size, self._asked, max(self._most, kernel.private_bytes(os.getpid())))
        while True:
            _, question, given = self._next("slot")
            if question == self._asked:
                return given

    def _next(self, name: str) -> Message:
        """The next message of this name; units that arrive meanwhile wait."""
        while True:
            for place, message in enumerate(self._inbox):
                if message[0] == name:
                    return self._inbox.pop(place)
            self._keep(self.receive())

    def _keep(self, messages: list[Message]) -> None:
        for message in messages:
            if message[0] == "resume":
                self._resume = message[1]
            elif message[0] == "rest":
                kernel.give_back()
            else:
                self._inbox.append(message)

    def _upcoming(self) -> Iterator[Any]:
        """Whole units, up to one of which something is known: that is made when nothing else is."""
        self._keep(self.arrived())
        for name, *message in self._inbox:
            if name == "unit":
                unit, blob, _, known, part = message
                if known or part is not None:
                    return
                if unit not in self._announced:
                    self._announced.add(unit)
                    yield pickle.loads(blob)


class ZygotesWorker(Worker):
    """A worker that a zygote has forked.

    Args:
        number: the worker's.
        channel: to the zygote.
        arena: the arena's shared file.
        zygote: its pid.
        trainer: pidfd of the trainer, where there is such a thing.
        mark: where it leaves what it is doing.
    """

    def __init__(self, number: int, channel: Channel, arena: int, zygote: int, trainer: int | None, mark: Any) -> None:
        super().__init__(number, arena, mark)
        self._channel = channel
        self._zygote = zygote
        self._trainer = trainer
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        if trainer is not None:
            self._poll.register(trainer, select.POLLIN)

    def send(self, *message: Any) -> None:
        """To the zygote."""
        self._channel.send(*message)
        if self._channel.ended:  # the zygote has ended, or the user's code has closed our descriptors: die where we are
            settle.leave(1)
        if self._channel.unsent:
            self._poll.modify(self._channel.fileno(), select.POLLOUT)
            while self._channel.unsent:
                self._wait()
                self._channel.flush()
            self._poll.modify(self._channel.fileno(), select.POLLIN)

    def receive(self) -> list[Message]:
        """From the zygote."""
        self._wait()
        messages = self._channel.receive()
        if self._channel.ended:
            settle.leave(0)
        return messages

    def arrived(self) -> list[Message]:
        """From the zygote. That it has ended is found out by whoever waits for it."""
        return self._channel.receive()

    def _wait(self) -> None:
        """For the zygote; ends if the trainer has ended."""
        if any(descriptor == self._trainer for descriptor, _ in self._poll.poll()):
            if kernel.has_ended(self._trainer):
                self._end()
            settle.leave(1)  # the user's code has closed it, and only we are to go

    def _end(self) -> None:
        """The trainer is gone. The zygote ends by itself, unless it is stopped: so we see to it, and to the others."""
        if os.getppid() == self._zygote:
            kernel.kill(self._zygote)
        settle.leave(0)


def dumps(failure: Failure | None) -> bytes:
    """A failure as it travels."""
    return leaves.dumps(failure, lambda leaf: None)


def live(run: Callable[[], None], last_words: int | None = None) -> NoReturn:
    """A worker's whole life: does this, and leaves however it ends.

    Args:
        run: the life.
        last_words: a descriptor that is read when it has ended.
    """
    code = 1
    try:
        run()
    except SystemExit as left:  # sys.exit() in the user's code ends the worker, as in any process
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if left.code is not None and not isinstance(left.code, int):
            print(left.code, file=sys.stderr)
        if last_words is not None:
            os.write(last_words, traceback.format_exc().encode(errors="replace"))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        settle.leave(code)
