"""A worker: takes units, runs the job, answers. One thread, one connection, until a peer ends. The file is long because
the ways of one unit through a worker, whole, in parts and in runs, share their state.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import select
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeVar, cast

from stoker import errors
from stoker._core.machine import reserve
from stoker._engine.activity import ACTIVITY, IN_HAND, NEW_MARK, Activity, Mark
from stoker._engine.backend import (
    Failure,
    Job,
    JobFactory,
    JobSource,
    KnownFaults,
    MadeRows,
    NothingLeft,
    StreamEnd,
    UnitReport,
    located,
)
from stoker._engine.messages import (
    Broken,
    Drop,
    FromWorker,
    Kind,
    Leave,
    Leaves,
    MadePart,
    Part,
    PlainSlot,
    Resume,
    RowsWanted,
    SlotGiven,
    SlotWanted,
    ToWorker,
    TrimMemory,
    Unit,
    UnitDone,
    Unpickled,
    plain,
)
from stoker._engine.process import end_duties, linux, process_setup
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import DEAD
from stoker._engine.timings import Stopwatch
from stoker._engine.transport import leaves
from stoker._engine.transport.arena import Slot
from stoker._engine.transport.rows import HEAVY, Layout, MisfitError, RowWriter
from stoker._engine.transport.segments import ArenaFiles, Mapping
from stoker._engine.transport.writer import SlotWriter

M = TypeVar("M", Unit, SlotGiven)

SOON = 2e-3
"""Seconds. A unit made faster than this takes little memory; reading the memory takes a hundredth of that."""

LOOK = 1e-3
"""Seconds from one look for messages to the next, between the units of a run."""

COPIES = 8
"""Of samples that are handed over: in the worker, in pickles and messages of three processes, and where they go."""


class Worker(ABC):
    """The loop of one worker process; subclasses know its supervisor, and how messages travel."""

    def __init__(self, number: int, arena: ArenaFiles, mark: Mark | None = None) -> None:
        self._number = number
        self._where = f"in DataLoader worker process {number}"
        self._mark: Mark = [*NEW_MARK, 0, -1] if mark is None else mark
        self._writer = SlotWriter(arena, self._ask)
        self._dropped_below = 0  # units of runs that nobody wants
        self._inbox: list[Unit | SlotGiven] = []
        self._look_at = 0.0  # the time from which on it looks for messages between two units of a run
        self._announced: set[int] = set()  # units in the inbox that the job knows of
        self._unit = -1
        self._offered: Slot | None = None  # with the unit
        self._asked = 0  # requests for a slot
        self._most = 0  # most bytes of private memory measured with the unit in hand
        self._start = 0.0  # of the unit in hand
        self._processor = 0.0  # processor time at that moment
        self._is_short = False  # whether there was no memory for the unit in hand
        self._waited = 0.0  # seconds of waiting for memory, which do not count as cost of the unit
        self._stopwatch: Stopwatch | None = None  # the job's
        self._resume: bytes | None = None

    @abstractmethod
    def send(self, message: FromWorker) -> None:
        """Sends a message; waits until it is on its way."""

    @abstractmethod
    def receive(self) -> list[ToWorker]:
        """Returns messages, waiting for the first. Leaves when its peer has ended."""

    def bye(self) -> None:
        """Announces that this worker leaves, if its peer is still there."""
        with contextlib.suppress(process_setup.Leaving):
            self.send(Leaves())

    @abstractmethod
    def arrived(self) -> list[ToWorker]:
        """Returns the messages that have arrived by now."""

    def open(self, source: JobSource) -> None:
        """Makes the job factory and runs. An error in it ends the run: other workers would fail too."""
        start, before = time.perf_counter(), linux.private_bytes(os.getpid()) if source.unpickles else 0
        self._mark[ACTIVITY] = Activity.UNPICKLING if source.unpickles else Activity.IDLE
        try:
            job_factory = source.job_factory()
        except Exception as error:
            self.send(Broken(dumps(Failure.of(error, self._where))))
            raise process_setup.Leaving(1) from None
        self._mark[ACTIVITY] = Activity.IDLE
        end_duties.begin()
        if source.unpickles:
            own = linux.private_bytes(os.getpid())
            self.send(Unpickled(time.perf_counter() - start, max(0, own - before), own))
        self.run(job_factory)

    def run(self, job_factory: JobFactory) -> None:
        """Works until its peer has ended."""
        where = self._where
        job: Job | None = None
        init_failure: Failure | None = None
        try:
            job = job_factory(self._number)
            job.mark = self._mark
            job.upcoming = self._upcoming
            job.weigh = self._weigh
            self._stopwatch = job.stopwatch
        except Exception as error:
            init_failure = Failure.of(error, where)
        end_duties.look()
        try:
            while True:
                self._unit, blob, slots, known, part, made_parts = self._next(Unit)
                self._announced.discard(self._unit)
                is_dropped = False
                if isinstance(blob, list):  # a run, whose other units come next: each is answered by itself
                    blob = self._first_of(blob, slots)
                    is_dropped = self._unit < self._dropped_below
                if job is not None and (resume := self._resume) is not None:
                    self._resume = None
                    job.resume(resume)
                start, self._processor = time.perf_counter(), time.process_time()
                self._start, self._most = start, 0
                self._offered = Slot(*slots[0]) if slots else None
                self._writer.begin(self._offered if part is None else None)
                if job is None:
                    self._answer("error", dumps(init_failure), start, None)
                elif is_dropped:
                    self._answer("empty", b"", start, None)
                elif part is None:
                    self._do(job, blob, start, where, known, made_parts)
                else:
                    self._do_part(job, blob, start, where, part)
                del blob
        finally:
            if job is not None:
                job.close()

    def _failure(self, error: Exception, where: str) -> Failure:
        """Returns the description of an error of a unit."""
        return Failure.of(error, where)

    def _do(
        self, job: Job, blob: bytes, start: float, where: str, known: KnownFaults, made_parts: Sequence[MadePart]
    ) -> None:
        process_setup.one_thread()
        kind, value = self._run_job(job, blob, where, known, made_parts)
        self._writer.let_go()
        self._answer(kind, value, start, job)

    def _first_of(self, works: list[bytes], slots: Sequence[PlainSlot]) -> bytes:
        """Returns the work of the first unit of a run. The others are a run of their own, which comes next: a worker
        makes units in ascending order.
        """
        if (now := time.perf_counter()) >= self._look_at:  # it may have to leave, or nobody wants the run
            self._keep(self.arrived())
            self._look_at = now + LOOK
        self._mark[IN_HAND] = self._unit
        if len(works) > 1:
            self._inbox.insert(0, Unit(self._unit + 1, works[1:], slots[1:], (), None))
        return works[0]

    def _run_job(
        self, job: Job, blob: bytes, where: str, known: KnownFaults, made_parts: Sequence[MadePart]
    ) -> tuple[Kind, object]:
        try:
            work, parts = pickle.loads(blob), self._from_others(made_parts) if made_parts else ()
            return "batch", self._packed(job.run(work, self._writer.lend, known, made_rows=parts))
        except StreamEnd:
            return "end", b""
        except NothingLeft:
            return "empty", b""
        except Exception as error:
            return "error", dumps(self._failure(error, located(where, job.failed_index())))

    def _packed(self, batch: object) -> object:
        """Returns the written batch; raises CannotSendError if part of it does not pickle."""
        try:
            return self._writer.finish(batch).packed()
        except errors.StokerError:
            raise
        except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
            from stoker._engine.serialize import unpicklable  # loads cloudpickle

            raise unpicklable.in_batch(batch, error) from None

    def _from_others(self, parts: Sequence[MadePart]) -> list[MadeRows]:
        """Returns the samples that other workers have made of the unit, out of its slot: that may be given away when
        this worker asks for another. Samples that do not unpickle here are left out, and made again.
        """
        made_rows: list[MadeRows] = []
        for first, last, count, layout, texts, data in parts:
            with contextlib.suppress(Exception):  # the user's classes may raise anything
                content = leaves.loads(data, ())
                if layout is None:
                    made_rows.append(MadeRows(first, content, None))
                else:
                    assert self._offered is not None
                    rows = Layout(*layout).read(self._writer.map(self._offered), count, first, last, texts)
                    made_rows.append(MadeRows(first, rows, content))
        return made_rows

    def _do_part(self, job: Job, blob: bytes, start: float, where: str, part: Part) -> None:
        """Makes rows of a batch of which other workers make the rest."""
        process_setup.one_thread()
        first, last, count, layout = part
        known = None if layout is None else Layout(*layout)
        writer = RowWriter(first, last, count, known, self._ask_for_rows, self._check_for_rows)
        kind, value = self._made_rows(job, blob, where, writer, (first, last), count)
        self._writer.let_go(writer.lent)
        self._answer(kind, value, start, job)

    def _made_rows(
        self, job: Job, blob: bytes, where: str, writer: RowWriter, rows: tuple[int, int], count: int
    ) -> tuple[Kind, object]:
        try:
            written = writer.finish(job.run(pickle.loads(blob), writer.lend, rows=rows))
            return "rows", (tuple(written.layout), written.texts, self._handed_over(job))
        except MisfitError as error:
            parts = math.ceil(count / (rows[1] - rows[0]))
            return "short" if self._is_short else "misfit", (error.for_good, self._handed_over(job, parts))
        except Exception as error:
            return "error", dumps(self._failure(error, located(where, job.failed_index())))

    def _handed_over(self, job: Job, parts: int = 0) -> bytes | None:
        """Returns the form of the samples of a part that is written; else its samples, pickled, where memory holds
        those of all `parts` on their way to the worker that joins them. None if they cannot be handed over: if the unit
        has to be joined, they are made again.
        """
        try:
            handed_over = job.handed_over(not parts)
            if parts:
                samples = cast("list[object]", handed_over)
                size = len(leaves.dumps_samples(samples[:1])) * len(samples) * parts
                if size >= HEAVY:
                    reserve.check(COPIES * size)
            return leaves.dumps_samples(handed_over)
        except Exception:  # the user's classes may raise anything
            return None

    def _answer(self, kind: Kind, value: object, start: float, job: Job | None) -> None:
        report = UnitReport() if job is None else job.report()
        if self._is_short:
            self._is_short = False
            linux.give_back()  # its samples are freed for other processes: `malloc` would keep tens of megabytes
        end_duties.look()
        self._mark[ACTIVITY] = Activity.WRITE
        seconds, self._waited = time.perf_counter() - start - self._waited, 0.0
        processor = time.process_time() - self._processor
        self.send(UnitDone(self._unit, kind, value, seconds, plain(report), processor))
        self._mark[ACTIVITY] = Activity.IDLE

    def _ask(self, size: int) -> Slot:
        """Exchanges the slot held for one of at least `size` bytes. The owner of the arena answers or ends; then this
        worker ends too.
        """
        asked = time.perf_counter()
        slot = self._requested(SlotWanted, size)
        self._waited += time.perf_counter() - asked
        if isinstance(slot, str):
            self._is_short = True
            raise errors.MemoryLimitError(slot)
        return Slot(*cast("PlainSlot", slot))

    def _ask_for_rows(self, size: int, layout: Layout | None) -> Mapping:
        """Returns the slot in which several workers write this unit."""
        offered = self._offered
        if offered is not None and size <= offered.capacity:
            return self._writer.map(offered)
        form = None if layout is None else (layout.rows, layout.pickle)
        slot = self._requested(functools.partial(RowsWanted, layout=form), size)
        if slot is None:
            self._is_short = True
            raise MisfitError("there is no memory for it now")
        if isinstance(slot, str):
            raise MisfitError(slot)
        return self._writer.map(Slot(*slot))

    def _check_for_rows(self, size: int) -> None:
        """Raises MemoryLimitError if workers cannot take this much memory for rows that have no place yet."""
        try:
            reserve.check(size)
        except errors.MemoryLimitError:
            self._is_short = True
            raise

    def _weigh(self) -> None:
        """Measures the memory while the unit takes most, unless it was made too fast to take much."""
        if time.perf_counter() - self._start > SOON:
            self._most = max(self._most, linux.private_bytes(os.getpid()))

    def _requested(self, question: Callable[[int, int, int, int], FromWorker], size: int) -> PlainSlot | str | None:
        """Returns the answer to a request for a slot. Answers to earlier requests are skipped: an exception of the
        user's code, such as from a signal handler, may have ended the wait for them.
        """
        self._asked += 1
        asked = time.perf_counter()
        self.send(question(self._unit, size, self._asked, max(self._most, linux.private_bytes(os.getpid()))))
        while True:
            answer = self._next(SlotGiven)
            if answer.question == self._asked:
                if self._stopwatch is not None:
                    self._stopwatch.waited(time.perf_counter() - asked)
                return answer.given

    def _next(self, kind: type[M]) -> M:
        """Returns the next message of this kind, waiting for it; units that arrive meanwhile are kept."""
        while True:
            for place, message in enumerate(self._inbox):
                if isinstance(message, kind):
                    del self._inbox[place]
                    return message
            self._keep(self.receive())

    def _keep(self, messages: list[ToWorker]) -> None:
        for message in messages:
            if isinstance(message, Resume):
                self._resume = message.state
            elif isinstance(message, Drop):
                self._dropped_below = message.before
            elif isinstance(message, Leave):
                raise process_setup.Leaving(0)
            elif isinstance(message, TrimMemory):
                linux.give_back()
            else:
                self._inbox.append(message)

    def _upcoming(self) -> Iterator[object]:
        """Yields whole units, up to the first with known faults: that one is made alone."""
        self._keep(self.arrived())
        for message in self._inbox:
            if isinstance(message, Unit):
                unit, blob, _, known, part, made_parts = message
                if known or part is not None or made_parts or isinstance(blob, list):
                    return
                if unit not in self._announced:
                    self._announced.add(unit)
                    yield pickle.loads(blob)


class ZygotesWorker(Worker):
    """A worker that a zygote has forked.

    Args:
        channel: to the zygote.
        arena: the arena's shared files.
        zygote: its pid.
        trainer: pidfd of the trainer, or None if pidfds are not available.
        mark: receives its place and activity.
    """

    def __init__(
        self, number: int, channel: Channel[ToWorker], arena: ArenaFiles, zygote: int, trainer: int | None, mark: Mark
    ) -> None:
        super().__init__(number, arena, mark)
        self._channel = channel
        self._zygote = zygote
        self._trainer = trainer
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        if trainer is not None:
            self._poll.register(trainer, select.POLLIN)

    def send(self, message: FromWorker) -> None:
        """Sends a message to the zygote."""
        self._channel.send(message)
        if self._channel.ended:  # the zygote has ended, or the user's code has closed our descriptors
            raise process_setup.Leaving(1)
        if self._channel.unsent:
            self._poll.modify(self._channel.fileno(), select.POLLOUT)
            while self._channel.unsent:
                self._wait()
                self._channel.flush()
            self._poll.modify(self._channel.fileno(), select.POLLIN)

    def receive(self) -> list[ToWorker]:
        """Returns messages of the zygote, waiting for the first."""
        self._wait()
        messages = self._channel.receive()
        if self._channel.ended:
            raise process_setup.Leaving(0)
        return messages

    def arrived(self) -> list[ToWorker]:
        """Returns the messages of the zygote that have arrived. Leaves when it has ended."""
        messages = self._channel.receive()
        if self._channel.ended and not messages:
            raise process_setup.Leaving(0)
        return messages

    def _wait(self) -> None:
        """Waits for the zygote; ends if the trainer has ended."""
        if any(descriptor == self._trainer for descriptor, _ in self._poll.poll()):
            if linux.has_ended(self._trainer):
                self._end()
            raise process_setup.Leaving(1)  # the user's code has closed the pidfd: only this worker ends

    def _end(self) -> NoReturn:
        """Ends after the trainer's end. Kills the zygote, which may be stopped, and thereby the other workers."""
        linux.die_within(DEAD)
        if os.getppid() == self._zygote:
            linux.kill(self._zygote)
        raise process_setup.Leaving(0)


def dumps(failure: Failure | None) -> bytes:
    """Returns a failure, pickled."""
    return leaves.dumps(failure, lambda leaf: None)


def work(run: Callable[[], None], bye: Callable[[], None], last_words: int | None = None) -> None:
    """Runs a worker; returns when its peer has ended.

    Args:
        run: the work.
        bye: announces that it leaves, so that the wait for its end is no longer than for others.
        last_words: a descriptor that another process reads when this one has ended.

    Raises:
        SystemExit: `sys.exit()` in the user's code ends the worker, as in any process, and so does another exception
            that is no Exception, as KeyboardInterrupt; or the worker cannot continue.
    """
    code = 0
    try:
        run()
    except process_setup.Leaving as left:
        code = int(left.code or 0)
    except BaseException as error:
        if last_words is not None:
            os.write(last_words, traceback.format_exc().encode(errors="replace"))
        if last_words is None or isinstance(error, SystemExit):
            raise
        code = 1  # the trainer's error has the traceback
    finally:
        end_duties.look()
        bye()
    if code:  # here, where what the user's code has open is closed already: it does not live on in a traceback
        raise SystemExit(code)
