"""The process backend, as the trainer sees it: one socket and one pidfd to the zygote. No thread, no lock."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stoker import errors
from stoker._engine import ending, interruption, owner
from stoker._engine.base import START, Answer, Backend, Said, Where, Witness
from stoker._engine.process import fates, kernel, telling
from stoker._engine.process.birth import Assemble, Birth, Parts
from stoker._engine.process.channel import Message
from stoker._engine.process.deadlines import (
    FROZEN,
    HELD_BACK,
    HUNG,
    OPENED,
    PATIENCE,
    PULSE,
    SERVED,
    STACKS,
)
from stoker._engine.process.life import Life, end_all
from stoker._events import Event
from stoker._machine import memory
from stoker._supervision.restarts import TOLD, Restarts
from stoker._supervision.rules import Rules
from stoker._transport import leaves
from stoker._transport.arena import Slot
from stoker._transport.writer import Written

_BIRTH = -1
"""Stands for a unit: what a zygote does before its workers are born."""


class ProcessBackend(Backend):
    """Runs units in worker processes, through a zygote.

    Args:
        parts: what the job is made of, by name: these names begin the paths in `CannotSendError`.
        assemble: makes the recipe from the parts; a function of a module.
        workers: how many processes.
        how: which birth.
        rules: what the workers may do, and how many deaths are survived.
        witness: who is told of what happens.
    """

    def __init__(
        self, parts: Parts, assemble: Assemble, workers: int, how: Birth, rules: Rules, witness: Witness
    ) -> None:
        self._parts = parts
        self._assemble = assemble
        self._workers = workers
        self._grown_to = 0
        self._how = how
        self._rules = rules
        self._witness = witness
        self._events: deque[Event] = deque()  # not told yet
        self._deaths = Restarts(rules.max_restarts)
        self._died: deque[str] = deque(maxlen=TOLD)  # the latest deaths of workers, in short
        self._streams: dict[int, bytes] = {}  # worker → where its stream stood behind its last answer
        self._lives: list[Life] = []  # those that hold anything; the last one works
        self._units: dict[int, tuple[bytes, int | None, int]] = {}  # submitted, not answered: work, worker, rows
        self._inbox: deque[Answer] = deque()
        self._dropped_below = 0
        self._fatal: BaseException | None = None
        self._starved_for: int | None = None  # the earliest unit that waits for memory
        self._gave_back = 0.0  # when some was given back to such a one
        self._hungry_for: int | None = None  # the unit that the zygote was last told we wait for
        self._shares: bool | None = None  # whether workers share units
        self._sick_births = 0
        self._ever_worked = False
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, end_all, self._lives)
        self._bear()

    def _bear(self) -> None:
        ending.leave_if_left_behind()
        rules = self._rules._replace(deaths=self._deaths.times)
        self._life = Life(self._how.forked, self._workers, rules, self._parts, self._assemble)
        self._lives.append(self._life)
        if self.is_closed:  # meanwhile, by the end of the interpreter
            end_all(self._lives)
            ending.leave_if_left_behind()
        self._marks = False  # whether it marks the heap before it forks workers
        self._gone = False  # whether the last poll found the zygote ended
        self._last_words = ""  # of it
        self._poll = select.poll()
        self._poll.register(self._life.channel.fileno(), select.POLLIN)
        self._polls_for_room = False
        if self._life.alarm.descriptor is not None:
            self._poll.register(self._life.alarm.descriptor, select.POLLIN)
        if self._life.descriptor is not None:
            self._poll.register(self._life.descriptor, select.POLLIN)

    def _bear_again(self) -> None:
        """Another zygote does what the last one has not answered; `_fatal` is set where there can be none."""
        self._starved_for = self._hungry_for = None
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._bear()
                break
            except (errors.WorkerStartError, errors.MemoryLimitError) as error:  # both may pass
                if time.monotonic() > until:
                    self._fatal = error
                    return
                time.sleep(HELD_BACK)
        if self._streams:
            self._life.channel.send("streams", self._streams)
        if self._grown_to > self._workers:
            self._life.channel.send("grow", self._grown_to)
        for unit, (blob, worker, rows) in sorted(self._units.items()):
            self._life.channel.send("unit", unit, worker, blob, [], rows)

    @contextlib.contextmanager
    def _between_lives(self) -> Iterator[None]:
        """One life is ended here, and another begun. Where that fails, by Ctrl-C too, there is none to listen to."""
        try:
            yield
        except BaseException as error:
            fatal: BaseException = error
            if not isinstance(error, errors.StokerError):
                fatal = errors.WorkerStartError(
                    f"the process that minds the workers has ended, and no other was started: {error!r}. Make a new "
                    "iterator with iter(loader)."
                )
                fatal.__cause__ = error
            self._fatal = self._fatal or fatal
            raise

    @property
    def pids(self) -> list[int]:
        """Process numbers: the zygote's, then the workers' as far as they are known."""
        return [self._life.pid, *self._life.workers]

    can_grow = True

    def grow(self, workers: int) -> None:
        self._grown_to = workers
        self._life.channel.send("grow", workers)

    @property
    def workers_there(self) -> int:
        return len(self._life.workers)

    def cpu_seconds(self) -> dict[int, float]:
        return {pid: kernel.cpu_seconds_wanted(pid) for pid in self._life.workers}

    def submit(self, unit: int, work: Any, worker: int | None, rows: int = 0) -> None:
        owner.check(self._owner)
        blob = leaves.dumps_unit(work)
        self._units[unit] = (blob, worker, rows)
        reader = self._life.reader
        if self._starved_for is not None and reader.has_returned():
            self._gave_back = time.monotonic()
        self._life.channel.queue("unit", unit, worker, blob, reader.returned(), rows)

    def flush(self) -> None:
        self._life.channel.flush()

    @property
    def ready(self) -> int:
        owner.check(self._owner)
        if self._units and self._fatal is None:
            self._listen()
        return len(self._inbox)

    @property
    def shares(self) -> bool | None:
        return self._shares

    def receive(self, timeout: float | None) -> Answer:
        owner.check(self._owner)
        if self._inbox and not self._events:
            return self._inbox.popleft()
        self.flush()
        start = heard = time.monotonic()
        until = None if timeout is None else start + timeout
        asked = start
        while True:
            self._listen()
            while self._events:  # here nothing is lost if the user's listener raises
                self._witness.tell(self._events.popleft())
            if self._inbox:
                return self._inbox.popleft()
            if self._fatal is not None:
                raise self._fatal
            now = time.monotonic()
            if until is not None and now >= until:
                raise self._timed_out(timeout)
            wait = self._feed(now)
            if until is not None:
                wait = min(wait, until - now)
            ready = self._poll_for(wait)
            if (frozen := time.monotonic() - now) > wait + FROZEN:
                heard, asked, until = heard + frozen, asked + frozen, until and until + frozen
            if ready:
                heard = time.monotonic()
            elif now - heard > (limit := self._longest_silence()):
                with self._between_lives():
                    self._life.end_processes(kill=True)
                    self._lost_zygote(
                        f"DataLoader worker (pid(s) {self._life.pid}) exited unexpectedly: the helper process gave no "
                        f"sign of life for {limit:g} s and was ended. It is idle by nature: was it stopped by a "
                        "signal or a debugger?",
                        is_silent=True,
                    )
                heard = time.monotonic()
            elif time.monotonic() - asked > PULSE:
                asked = time.monotonic()
                self._life.channel.send("pulse")

    def _feed(self, now: float) -> float:
        """Gives back what memory it can where the next unit waits for some; returns after how many seconds to go on."""
        if self._starved_for is None:
            return PULSE
        due = min(self._units, default=-1)
        if due < self._starved_for or due == self._hungry_for:
            return PULSE
        reader = self._life.reader
        if reader.has_returned():
            self._gave_back = now
            self._life.channel.send("freed", reader.returned())
        if now - self._gave_back < SERVED:
            return SERVED
        gc.collect()  # batches in cycles hold slots
        self._hungry_for = due
        self._life.channel.send("hungry", reader.returned(), due)
        return PULSE

    def _longest_silence(self) -> float:
        return OPENED if not self._life.workers and (self._marks or not self._how.forked) else HUNG

    def _poll_for(self, seconds: float) -> bool:
        """Waits for a word of the zygote's, or its end, and returns whether there is one."""
        life = self._life
        if life.channel.unsent != self._polls_for_room:
            self._polls_for_room = life.channel.unsent
            events = select.POLLIN | (select.POLLOUT if self._polls_for_room else 0)
            self._poll.modify(life.channel.fileno(), events)
        if seconds == PULSE:  # nearly every wait
            if not life.alarm.is_set:
                life.alarm.set(PULSE)
            patience = life.alarm.patience()
        else:
            patience = seconds
        said = [descriptor for descriptor, _ in _wait(self._poll, patience)]
        if not said or life.alarm.descriptor in said:
            life.alarm.quiet()
            said = [descriptor for descriptor in said if descriptor != life.alarm.descriptor]
        self._gone = life.descriptor in said
        life.channel.flush()
        return bool(said)

    def _listen(self) -> None:
        """Takes what has arrived; notices the zygote's end."""
        if self._life.ended:
            return
        life = self._life
        gone = self._gone  # seen before this reading: what it said last is still there
        for message in life.channel.receive():
            if life.ended:  # it was born sick: what else it has said is not to be taken for the next one's
                break
            self._hear(message)
        if life.ended:
            return
        if (gone or life.channel.ended) and self._fatal is None:
            with self._between_lives():
                life.end_processes()
                self._lost_zygote(
                    f"DataLoader worker (pid(s) {', '.join(map(str, self.pids))}) exited unexpectedly: the "
                    f"helper process (pid {self._life.pid}) that minds the workers {kernel.told(self._life.status)}. "
                    f"Was it killed for want of memory (see `dmesg`), or by hand?{self._last_words}"
                )

    def _lost_zygote(self, story: str, is_silent: bool = False) -> None:
        """The zygote has ended, and its workers: another does the rest, unless they died too often.

        Not where it was so long silent at its birth that the user has waited long enough.
        """
        if self._life.has_answered:
            self._deaths.answered(_BIRTH)  # what kills may have passed: no pause before the next
        unit, place = (None, None) if self._ever_worked else (_BIRTH, START)  # what it is sent may be to blame
        pause, blamed = self._deaths.died(unit, place, self._life.status, time.monotonic())
        if pause is None or blamed or (is_silent and not self._ever_worked):
            self._fatal = errors.WorkerDiedError(story)
            self._events.append(Event("zygote_death", story, details={"ends": True}))
            return
        self._tell("zygote_death", f"{story}\nAnother is started, and what was under way is done again.")
        before = self._life
        time.sleep(pause)
        self._bear_again()
        self._release(before)

    def _tell(self, kind: str, message: str) -> None:
        self._events.append(Event(kind, message))

    def _release(self, life: Life) -> None:
        """Gives back what a life holds that has ended, as soon as all its batches are delivered."""
        if life.ended and life is not self._life and not life.unopened:
            life.end()
            self._lives.remove(life)

    def _hear(self, message: Message) -> None:
        name = message[0]
        if name == "answer":
            _, unit, kind, value, slot, worker, said = message
            self._life.has_answered = True
            self._units.pop(unit, None)
            place = None if slot is None else Slot(*slot)
            answer = Answer(unit, kind, (self._life, place, value), worker, Said(*said))
            if answer.said.stream_state is not None:
                self._streams[worker] = answer.said.stream_state
            if kind == "dropped":
                return
            self._life.unopened += kind == "batch"
            if unit < self._dropped_below:
                self.discard(answer)
            else:
                if kind == "error":
                    answer.value = pickle.loads(value)
                self._inbox.append(answer)
        elif name == "workers":
            self._life.workers = message[1]
            self._ever_worked = True
        elif name == "starved":
            self._starved_for, self._hungry_for = message[1], None  # answered when there is nothing left to deliver
        elif name == "fed":
            self._starved_for = None
        elif name == "died":
            *about, count = message[1:]
            self._last_death(telling.Death(*about), count)
        elif name == "counted":
            self._deaths.recounted(message[1])
        elif name == "happened":
            _, when, what, *about = message
            self._events.append(replace(self._happened(what, *about), time=when))
        elif name == "costs":
            self._witness.learned(*message[1:])
        elif name == "marking":
            self._marks = True
        elif name == "marked":
            self._witness.marked(*message[1:])
        elif name == "shares":
            self._shares = message[1]
        elif name == "sick":
            with self._between_lives():
                self._born_sick(message[1])
        elif name == "gave_up":
            self._last_words = f"\nIt raised:\n{message[1]}"
        elif name == "broken":
            self._fatal = fates.broken(pickle.loads(message[1]))

    def _happened(self, what: str, *about: Any) -> Event:
        """The event of what the zygote has told."""
        if what == "replaced":
            end = telling.Death(*about)
            where = self._where(end.unit, end.mark)
            self._died.append(fates.in_short(end.worker, end.code, where and where.told))
            return telling.death(self._rules, end, where)
        if what == "stalled":
            worker, unit, mark, seconds, stack = about
            where = self._witness.locate(unit, mark)
            if self._rules.stall_action == "raise":
                self._fatal = telling.stall_error(worker, where, seconds, stack)
            return telling.stall(self._rules, worker, unit, mark, where, seconds, stack)
        if what == "held_back":
            return telling.held_back(*about)
        if what == "crowded":
            return telling.crowded(*about)
        return telling.retired(*about) if what == "retired" else telling.stays(*about)

    def _last_death(self, end: telling.Death, count: int) -> None:
        """It ends the run, with those before it."""
        where = self._where(end.unit, end.mark)
        told = where and where.told
        error = fates.died(end.worker, end.pid, end.code, told, count, end.stack, before=self._died)
        self._fatal = error
        self._events.append(telling.last_death(end, where, error))

    def _where(self, unit: int | None, mark: int) -> Where | None:
        return None if unit is None else self._witness.locate(unit, mark)

    def _born_sick(self, stacks: str) -> None:
        """All workers wait for locks since birth: another birth, which may find the lock free; after that, an error."""
        self._life.end(kill=True)
        self._lives.remove(self._life)
        self._sick_births += 1
        if self._sick_births > 1 or not self._how.forked:
            self._fatal = errors.SickBirthError(
                f"all {self._workers} workers wait for locks in their first samples, also after a second birth. A lock "
                "that another thread of this process holds while it forks stays locked in the workers for ever. Use "
                "multiprocessing_context='forkserver', or let no other thread hold it while iter(loader) runs.\n"
                + stacks
            )
            return
        self._tell(
            "sick_birth",
            f"all {self._workers} workers waited for locks in their first samples: another thread held one while they "
            f"were forked. They are started again. multiprocessing_context='forkserver' avoids this.\n{stacks}",
        )
        self._bear_again()

    def _timed_out(self, timeout: float | None) -> errors.LoaderTimeoutError:
        stacks = self.stacks()
        return errors.LoaderTimeoutError(
            f"DataLoader timed out after {timeout:g} seconds: no batch arrived from {self._workers} worker(s). Raise "
            f"`timeout`, or see below where they are.\n{stacks}"
        )

    def stacks(self) -> str:
        """The Python stacks of the workers now, or what is known instead."""
        if os.getpid() != self._owner:
            return "(the workers' stacks are told to the process that has the iterator)"
        text: str | None = self._life.inquiry.ask("stacks", STACKS * (self._workers + 1))
        return text or "(the workers' stacks could not be read)"

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def memory(self) -> dict[str, int]:
        """The arenas, and what the zygote (to the user: the helper process) and the workers take."""
        zygote, *workers = self.pids
        if os.getpid() == self._owner:  # a forked child would read what its parent waits for
            workers = self._life.inquiry.ask("workers", STACKS) or workers
        return {
            "batches": sum(life.bytes_of_batches for life in list(self._lives)),
            "helper process": memory.proportional(zygote),
            f"{len(workers)} workers": sum(memory.proportional(pid) for pid in workers),
        }

    def open(self, answer: Answer) -> Any:
        owner.check(self._owner)
        life, slot, value = answer.value
        answer.value = None
        try:
            return life.reader.read(slot, Written.unpacked(value))
        finally:
            life.unopened -= 1
            self._release(life)

    def discard(self, answer: Answer) -> None:
        if answer.kind == "batch":
            life, slot, _ = answer.value
            if slot is not None:
                life.reader.discard(slot)
            life.unopened -= 1
            self._release(life)

    def drop(self, before: int) -> None:
        owner.check(self._owner)
        self._dropped_below = before
        for answer in self._inbox:
            if answer.unit < before:
                self.discard(answer)
        self._inbox = deque(answer for answer in self._inbox if answer.unit >= before)
        self._units = {unit: item for unit, item in self._units.items() if unit >= before}
        self._life.channel.send("drop", before)

    def close(self) -> None:
        self._finalizer()
        if self._fatal is None:
            self._fatal = errors.IteratorClosedError("the iterator is closed: make a new one with iter(loader)")


@interruption.harmless
def _wait(poll: select.poll, seconds: float | None) -> list[tuple[int, int]]:
    return poll.poll(None if seconds is None else seconds * 1000)
