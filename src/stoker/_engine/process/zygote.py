"""The zygote: forks the workers, hands units to whoever is free, owns the arena, watches, reaps. One thread.

It is idle by nature: everything here answers in microseconds, except forking. It has nothing that a new one could not
have again: units are kept by the trainer until they are delivered.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from stoker._engine.base import Failure, Recipe, Said
from stoker._engine.blame import Blame, Death
from stoker._engine.process import fates, immortal, kernel, settle, worker
from stoker._engine.process.admission import Admission, Starved
from stoker._engine.process.alarm import Alarm
from stoker._engine.process.channel import Channel, Message, pair
from stoker._engine.process.deadlines import HELD_BACK, LEAVE, LOOK, PATIENCE, REAP, SICK_AFTER
from stoker._engine.process.headroom import Headroom
from stoker._engine.process.lending import Lending
from stoker._engine.process.marks import Marks
from stoker._engine.process.sharing import Sharing
from stoker._engine.process.sickness import Sickness
from stoker._engine.process.stacks import Stacks
from stoker._machine import memory
from stoker._supervision import retirement
from stoker._supervision.cut import Cut
from stoker._supervision.dispatch import Dispatch
from stoker._supervision.rest import Rest
from stoker._supervision.retirement import Retirement
from stoker._supervision.rules import Rules
from stoker._supervision.stalls import Stall, Stalls
from stoker._transport import board, leaves
from stoker._transport.arena import Arena

TOLD = (4, 32, 256)
"""Answers after which the trainer is told what a row costs, and what a unit takes: in the next epoch that is known from
the start."""


class Ends(NamedTuple):
    """The descriptors that a zygote is born with."""

    channel: int
    """Socket to the trainer."""
    arena: int
    """The arena's shared file."""
    lifeline: int
    """A pipe whose other end the trainer holds."""
    inquiry: int
    """Socket to whoever asks in the trainer."""
    trainer: int | None = None
    """pidfd of the trainer, where there is such a thing."""


class _Child:
    """One worker, as the zygote sees it."""

    def __init__(self, pid: int, channel: Channel) -> None:
        self.pid = pid
        self.channel = channel
        self.descriptor = kernel.process_descriptor(pid)
        self.unseen = LOOK  # seconds that it has worked since its memory was looked at
        self.asked = 0  # number of its latest question for a slot
        self.retires = False
        self.stays = False  # though it should retire: nobody could go on with its stream
        self.stall: Stall | None = None  # for which it was ended
        self.stack = ""  # as it was then


class Zygote:
    """The loop of the zygote.

    Args:
        channel: to the trainer.
        ends: what it was born with.
        workers: how many to fork.
        rules: what they may do.
        recipe: makes the job in each worker.
        collecting: whether workers run Python's garbage collector, as the trainer does.
    """

    def __init__(
        self, channel: Channel, ends: Ends, workers: int, rules: Rules, recipe: Recipe, collecting: bool
    ) -> None:
        self._trainer = channel
        self._inquiry = Channel(socket.socket(fileno=ends.inquiry))
        self._trainer_descriptor = ends.trainer
        self._arena = ends.arena
        self._rules = rules
        self._recipe = recipe
        self._collecting = collecting
        self._cut = Cut(workers, rules.row_seconds)
        self._dispatch = Dispatch(workers, self._cut, rules.units_at_once)
        budget = rules.memory_budget
        arena = Arena(ends.arena, None if budget is None else budget // 2, begin=board.SIZE)
        self._headroom = Headroom(lambda number: kernel.private_bytes(self._children[number].pid), rules.growth)
        self._lending = Lending(arena, self._dispatch, board.Board.where_allowed(ends.arena), self._headroom)
        self._admission = Admission(self._dispatch, self._lending, self._headroom)
        self._is_crowded = False  # whether it was told that fewer than all workers work at once
        self._shares: bool | None = None  # what the trainer was told: whether workers share units
        self._sharing = Sharing(self._cut, self._dispatch, self._lending)
        self._stalls = Stalls(rules.stall_warning)
        self._rest = Rest()
        self._blame = Blame(rules, self._stalls)
        self._retirement = Retirement(rules.max_samples_per_worker, None)
        self._marks = Marks(workers)
        self._due: dict[int, float] = {}  # number of a dead worker → when it is replaced
        self._held_back: set[int] = set()  # numbers of those of which the trainer knows that they cannot be
        self._children: dict[int, _Child] = {}
        self._work: dict[int, bytes] = {}  # of units that are not answered
        self._streams: dict[int, bytes] = {}  # worker → where its stream stood behind its last answer
        self._starved_for: int | None = None  # the unit of which the trainer was told that it waits for memory
        self._dropped_below = 0
        self._answered = 0
        self._sickness = Sickness()
        self._looks_for_sickness_at = time.monotonic() + SICK_AFTER / 5
        self._stacks = Stacks(workers)
        self._leaving: dict[int, tuple[_Child, float]] = {}  # who was told to leave → when it is to be gone
        self._looks_at = 0.0  # when it is looked for stalls next
        self._alarm = Alarm()  # rings when something is due, other than what the peers say
        self._is_due = True
        self._troubled = False  # whether a worker has died or stalled: then more is kept of units than their work
        self._alone_since: float | None = None  # since when no worker can go on, and none can be started
        self._selector = selectors.DefaultSelector()
        self._full: set[int] = set()  # sockets that are watched for room to write
        self._workers = self._needed = workers
        self._workers_die_first = False  # where memory runs out
        self._watching = False  # whether there was work when somebody last looked who is late with it

    def run(self) -> None:
        """Until the trainer or its iterator ends; does not return."""
        if self._rules.mark_heap and immortal.worth_it():
            self._trainer.send("marking")  # it may take long, and nothing is heard of us meanwhile
            if (marked := immortal.mark_heap()) is not None:
                self._trainer.send("marked", marked.objects, marked.seconds)
        self._watch(self._trainer.fileno(), self._from_trainer)
        self._watch(self._inquiry.fileno(), self._from_inquiry)
        if self._alarm.descriptor is not None:
            self._watch(self._alarm.descriptor, self._ring)
        if self._trainer_descriptor is not None:
            self._watch(self._trainer_descriptor, self._end)
        for number in range(self._workers):
            try:
                self._fork(number)
            except OSError as error:
                self._refuse(number, error)
            self._from_trainer()  # the first unit does not wait for the last worker
        kernel.name_process("stoker-zygote")  # what takes long and can wait is done while the workers begin
        kernel.give_back()  # what the trainer had freed and written again since is here alone
        left = memory.available()
        self._retirement.most_bytes = self._most_growth(left.bytes)
        # On a whole machine somebody else may be the one who takes too much
        self._workers_die_first = left.is_of_a_cgroup
        for child in self._children.values() if left.is_of_a_cgroup else ():
            kernel.die_first(child.pid)
        self._trainer.send("workers", [child.pid for child in self._children.values()])
        while True:
            if self._is_due:  # also before the first wait: units may be there already
                self._attend()
            self._flush()
            for key, _ in self._selector.select(self._alarm.patience()):
                key.data()
            if self._alarm.descriptor is None:
                self._ring()

    def _most_growth(self, available: int) -> int:
        """Bytes of private memory by which each worker may grow."""
        budget = self._rules.memory_budget
        growth = available * retirement.SHARE if budget is None else budget // 2
        return int(growth / max(1, self._workers))

    def _watch(self, descriptor: int, call: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def _flush(self) -> None:
        """Sends what is queued, and asks to be woken where the peer was not ready."""
        for channel in (self._trainer, self._inquiry, *(child.channel for child in self._children.values())):
            descriptor = channel.fileno()
            if channel.unsent:
                channel.flush()
            if channel.unsent != (descriptor in self._full):
                self._full ^= {descriptor}
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.unsent else 0)
                self._selector.modify(descriptor, events, self._selector.get_key(descriptor).data)

    # Births and deaths

    def _fork(self, number: int) -> None:
        ours, theirs = pair()
        me = os.getpid()
        self._marks.forget(number)
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            worker.live(lambda: self._become_worker(number, ours, theirs, me), self._stacks.descriptor(number))
        theirs.close()
        if self._workers_die_first:
            kernel.die_first(pid)
        child = self._children[number] = _Child(pid, Channel(ours))
        self._watch(child.channel.fileno(), lambda: self._from_worker(number))
        if child.descriptor is not None:
            self._watch(child.descriptor, lambda: self._from_worker(number, ended=True))
        if number in self._streams:  # it goes on where another one stood
            child.channel.send("resume", self._streams[number])
        self._retirement.born(number)
        self._headroom.born(number)
        self._dispatch.joined(number)

    def _grow(self, workers: int) -> None:
        """There are to be so many. They are born as those are who take another's place, but one at a time, and nobody
        insists."""
        try:
            self._stacks.grow(workers)
            self._marks.grow(workers)
        except OSError:  # no descriptor or memory is left: those that there are go on
            return
        self._dispatch.grow(workers)
        self._cut.grow(workers)
        self._due.update(dict.fromkeys(range(self._workers, workers), time.monotonic()))
        self._workers = max(self._workers, workers)
        self._is_due = True

    def _become_worker(self, number: int, zygotes: socket.socket, own: socket.socket, zygote: int) -> None:
        """In the child that was just forked: lets go of what is the zygote's, and works."""
        settle.worker(number, zygote, self._stacks.descriptor(number), self._collecting)
        self._selector.close()
        self._alarm.close()
        self._trainer.close()
        self._inquiry.close()
        zygotes.close()
        for child in self._children.values():
            child.channel.close()
            if child.descriptor is not None:
                os.close(child.descriptor)
        mark = self._marks.of(number)
        worker.ZygotesWorker(number, Channel(own), self._arena, zygote, self._trainer_descriptor, mark).run(
            self._recipe
        )

    def _refuse(self, number: int, error: OSError) -> NoReturn:
        """A worker cannot be started, and there is no way on."""
        refusal = fates.not_started(f"worker {number} of {self._workers}", error)
        self._trainer.send("broken", dumped(refusal))
        self._end()

    def _bury(self, number: int) -> None:
        """The worker has ended: its units are named to the trainer, its slots are free."""
        self._troubled = True
        self._is_due = True
        child = self._children.pop(number)
        self._selector.unregister(child.channel.fileno())
        self._full.discard(child.channel.fileno())
        if child.descriptor is not None:
            self._selector.unregister(child.descriptor)
            os.close(child.descriptor)
        child.channel.close()
        mark, went_on = self._marks.read(number), not kernel.is_ending(child.pid)
        kernel.kill(child.pid)  # its socket may have closed before it ended
        status = kernel.reap(child.pid, REAP)
        if went_on and child.stall is None and status == -signal.SIGKILL:
            status = kernel.CLOSED
        stack = self._stacks.last_words(number)
        runs = self._dispatch.died(number)
        lost, units = [run.unit for run in runs if not run.is_part], [run.unit for run in runs]
        self._lending.lost(number, lost)
        now = time.monotonic()
        self._stalls.works_on(number, None, now)
        if child.retires and not runs:
            self._headroom.left(number)
            self._due[number] = now
            return
        unit = units[0] if units else None
        stall = None if child.stall is None else (child.stall, child.stack)
        verdict = self._blame.died(Death(units, mark, child.pid, status, stack, stall), now)
        at = (unit, mark, stack)
        if verdict.pause is None:
            self._trainer.send("died", number, child.pid, status, *at, len(self._blame.deaths))
            return
        self._dispatch.requeued(lost)
        for run in runs:
            if run.is_part:
                self._sharing.lost(run)
                self._conclude(run.unit, number)
        self._forget_dropped()
        self._due[number] = now + verdict.pause
        stalled = child.stall is not None and child.stall.unit == unit
        self._tell("replaced", number, child.pid, status, *at, stalled, verdict.blamed)
        self._trainer.send("counted", self._blame.deaths)

    def _replace(self, now: float) -> None:
        """Forks those who are to take a worker's place, when it is time. Where none can be forked, a little later."""
        due = [number for number, due in self._due.items() if due <= now]
        more = [number for number in due if number >= self._needed]
        for number in [*(number for number in due if number < self._needed), *more[:1]]:
            try:
                self._fork(number)
            except OSError as error:
                if number < self._needed:
                    self._hold_back(number, error, now)
                else:  # it can be done without
                    self._due = {other: when for other, when in self._due.items() if other < self._needed}
                continue
            del self._due[number]
            self._held_back.discard(number)
            self._alone_since = None
            self._trainer.send("workers", [child.pid for child in self._children.values()])
        self._hand_out()

    def _hold_back(self, number: int, error: OSError, now: float) -> None:
        """The others go on meanwhile; where none can, there is an end to waiting.

        Those that wait for memory may wait for a unit before theirs to have it, which nobody else would make.
        """
        self._due[number] = now + HELD_BACK
        if number not in self._held_back:
            self._held_back.add(number)
            self._tell("held_back", number, str(error), bool(self._children))
        if not all(map(self._lending.waits_for_others, self._children)):
            self._alone_since = None
            return
        self._alone_since = self._alone_since or now
        if now - self._alone_since > PATIENCE:
            self._refuse(number, error)

    def _see_off(self, now: float) -> None:
        """Ends those who were told to leave and have not."""
        for number, (child, until) in list(self._leaving.items()):
            if self._children.get(number) is not child:
                del self._leaving[number]
            elif until <= now:
                kernel.kill(child.pid)

    def _care_for(self, child: _Child, number: int, made: Said) -> None:
        """A worker has answered: whether it is to go on. Its place is taken when it has left."""
        self._retirement.made(number, made.samples)
        if child.unseen >= LOOK:
            child.unseen = 0.0
            self._retirement.has(number, kernel.private_bytes(child.pid))
        if not child.retires and made.movable and (reason := self._retirement.reason(number)):
            child.retires = True
            self._dispatch.retires(number)
            self._tell("retired", number, child.pid, reason)
        if not made.movable and not child.stays and (reason := self._retirement.reason(number)):
            child.stays = True
            self._tell("stays", number, child.pid, reason)
        if child.retires and not self._dispatch.held(number):
            child.channel.hang_up()  # it leaves, unless it is stopped
            self._leaving.setdefault(number, (child, time.monotonic() + LEAVE))
            self._is_due = True

    def _tell(self, name: str, *message: Any) -> None:
        """Something has happened, which the trainer may hear of much later: after a long step."""
        self._trainer.send("happened", time.time(), name, *message)

    def _end(self) -> NoReturn:
        """Ends the workers and this process: the idle at once, the busy after a moment."""
        for child in self._children.values():
            child.channel.close()
        until = time.monotonic() + LEAVE
        if kernel.has_ended(self._trainer_descriptor):
            until = 0.0
        for child in self._children.values():
            if kernel.reap(child.pid, max(0.0, until - time.monotonic())) is None:
                kernel.kill(child.pid)
        for child in self._children.values():
            kernel.reap(child.pid, REAP)
        os._exit(0)  # nothing of the trainer's is to be written out here

    # Messages

    def _from_trainer(self) -> None:
        for message in self._trainer.receive():
            name = message[0]
            if name == "unit":
                _, unit, number, blob, freed, rows = message
                self._put_back(freed)
                self._work[unit] = blob
                if not (self._watching and self._alarm.is_set):  # nobody had work, and nobody was looked at
                    self._is_due = True
                self._dispatch.submitted(unit, number, rows)
            elif name == "freed":
                self._put_back(message[1])
            elif name == "hungry":
                self._put_back(message[1])
                self._grant(hungry_for=message[2])
            elif name == "streams":
                self._streams = message[1]
                for number, state in self._streams.items():
                    if number in self._children:
                        self._children[number].channel.send("resume", state)
            elif name == "drop":
                self._drop(message[1])
            elif name == "grow":
                self._grow(message[1])
            elif name == "pulse":
                self._trainer.send("alive")
        if self._trainer.ended:
            self._end()
        self._hand_out()

    def _from_inquiry(self) -> None:
        for name, number in self._inquiry.receive():
            if name == "stacks":
                self._inquiry.send(number, self._stacks_of(*self._children))
            elif name == "workers":
                self._inquiry.send(number, [child.pid for child in self._children.values()])
        if self._inquiry.ended:  # the trainer goes on to its end
            self._selector.unregister(self._inquiry.fileno())

    def _from_worker(self, number: int, ended: bool = False) -> None:
        child = self._children.get(number)
        if child is None:
            return
        for message in child.channel.receive():
            if message[0] == "answer":
                self._take_answer(number, message)
            elif message[0] == "ask_for_rows":
                _, unit, size, question, own = message
                slot = self._lending.share(unit, size, number, own)
                child.channel.send("slot", question, slot and tuple(slot))
            else:
                _, unit, size, child.asked, own = message
                self._lending.asked(number, unit, size, own)
        if ended or child.channel.ended:
            self._bury(number)
        if self._lending.is_asked:
            self._grant()  # who waited for earlier units to have their slots
        self._hand_out()

    def _take_answer(self, number: int, message: Message) -> None:
        _, unit, kind, value, seconds, said = message
        made = Said(*said)
        self._answered += 1
        self._alone_since = None
        run = self._dispatch.held(number)[0]  # a worker answers in the order in which it was handed units
        self._dispatch.answered(number, run, seconds)
        if kind not in ("misfit", "short"):
            self._cut.learned(made.samples, seconds)
            if self._answered in TOLD:
                self._tell_costs()
        if run.is_part:
            self._sharing.answered(run, kind, value, made)
            self._conclude(unit, number)
        else:
            if self._shares is None:
                self._tell_whether_shared(made.samples)
            self._deliver(number, unit, kind, value, made)
        child = self._children[number]
        if self._headroom.growth is None:  # it needed no memory for its batch
            self._headroom.showed(number, kernel.private_bytes(child.pid))
        if self._admission.is_short and not self._dispatch.held(number):
            child.channel.send("rest")  # what `malloc` keeps for its next unit is for those who have one
        child.unseen += seconds
        if self._retirement.counts or child.retires or child.unseen >= LOOK:
            self._care_for(child, number, made)

    def _conclude(self, unit: int, number: int) -> None:
        """Sees whether a unit that was shared is whole, or has to be made again."""
        if not self._sharing.is_over(unit):
            return
        result = self._sharing.result(unit)
        if result is not None:
            kind, value, said = result
            self._dispatch.done(unit)
            self._tell_whether_shared(said.samples)
            self._deliver(number, unit, kind, value, said)
        elif unit < self._dropped_below:
            self._dispatch.done(unit)
            self._deliver(number, unit, "dropped", None, Said())
        else:
            self._tell_whether_shared(self._dispatch.rows(unit))
            self._dispatch.requeued([unit])

    def _tell_whether_shared(self, rows: int) -> None:
        """The trainer has fewer units under way where workers share them; that they do holds until it cannot be."""
        shares = self._cut.shares(rows)
        if shares is None or shares == self._shares or (self._shares and not self._cut.gave_up):
            return
        self._shares = shares
        self._trainer.send("shares", shares)
        if self._cut.gave_up:
            self._tell_costs()

    def _tell_costs(self) -> None:
        """Where units cannot be shared, those who come later are to see for themselves what rows cost."""
        self._trainer.send("costs", None if self._cut.gave_up else self._cut.seconds, self._headroom.growth)

    def _deliver(self, number: int, unit: int, kind: str, value: Any, made: Said) -> None:
        """The answer of a unit goes to the trainer."""
        self._work.pop(unit, None)
        if self._troubled:
            self._blame.answered(unit)
        if made.stream_state is not None:
            self._streams[number] = made.stream_state
        slot = self._lending.answered(unit, kind, value)
        if unit < self._dropped_below:
            self._lending.put_back([] if slot is None else [slot.number])
            kind, value, slot = "dropped", None, None
        self._trainer.send("answer", unit, kind, value, slot and tuple(slot), number, tuple(made))

    def _drop(self, before: int) -> None:
        self._dropped_below = before
        self._forget_dropped()
        if self._lending.is_asked:
            self._grant()  # what was kept for those that are dropped

    def _forget_dropped(self) -> None:
        for unit in (*self._dispatch.dropped(self._dropped_below), *self._sharing.dropped(self._dropped_below)):
            self._dispatch.done(unit)
            self._work.pop(unit, None)

    def _hand_out(self) -> None:
        admission = self._admission
        for number, run in self._dispatch.hand_out(admission.gate()):
            unit, slot, part = run.unit, None, None
            known = self._blame.known(unit) if self._troubled else ()
            if run.is_part:
                part, slot = self._sharing.handed_out(run), self._lending.offer_to_share(unit)
            else:
                slot = self._lending.offer(unit)
            self._children[number].channel.send("unit", unit, self._work[unit], slot and tuple(slot), known, part)
        if admission.refused is not None and not self._is_crowded:
            self._is_crowded = True
            busy, there = len(self._dispatch.busy), admission.refused
            self._tell("crowded", busy, self._workers, self._headroom.growth, there.bytes, there.limit, there.source)
        if admission.looks_at is not None:
            self._is_due = True
        if admission.starved is not None and self._lending.is_wanted_now(admission.starved.unit):
            self._give_up(admission.starved)
            self._hand_out()
        elif admission.starved is not None or self._starved_for is not None:
            self._tell_who_starves()

    # The arena

    def _grant(self, hungry_for: int | None = None) -> None:
        """Gives waiting workers their slots; tells the trainer when the earliest must wait, and when that is over."""
        for number, reply in self._lending.grant(hungry_for):
            child = self._children[number]
            child.channel.send("slot", child.asked, reply if isinstance(reply, str) else tuple(reply))
        self._tell_who_starves()

    def _tell_who_starves(self) -> None:
        is_asked, starved = self._lending.is_asked, self._admission.starved
        starved_for = self._lending.starved_for if is_asked else starved and starved.unit
        if starved_for is not None and starved_for != self._starved_for:
            self._trainer.send("starved", starved_for)
            self._starved_for = starved_for
        elif self._starved_for is not None and starved_for is None and not is_asked:
            self._trainer.send("fed")
            self._starved_for = None

    def _give_up(self, starved: Starved) -> None:
        """Nobody can begin the unit, nor the rest of it, nor ever will."""
        unit, number, why = starved
        failure = replace(Failure.of(why, "before a worker began the batch"), traceback="")
        self._dispatch.refused(unit)
        self._sharing.refused(unit)
        self._deliver(number, unit, "error", worker.dumps(failure), Said())  # a stream stands where it stood

    def _put_back(self, numbers: list[int]) -> None:
        self._lending.put_back(numbers)
        if self._lending.is_asked:  # there may be more on the board
            self._grant()

    # What is due

    def _ring(self) -> None:
        self._is_due = self._alarm.quiet() or self._is_due

    def _attend(self) -> None:
        """Does what is due: workers that are to be ended or born, that are sick, stall, or have nothing to do."""
        now, tick = time.monotonic(), self._stalls.tick
        self._is_due = False
        if self._leaving:
            self._see_off(now)
        if self._due:
            self._replace(now)
        self._watching = bool(self._work)
        due = [*self._due.values(), *(until for _, until in self._leaving.values())]
        if self._work:  # else nobody is late with it
            if not self._answered:
                if now >= self._looks_for_sickness_at:
                    self._look_for_sickness(now)
                due.append(self._looks_for_sickness_at)
            if tick is not None:
                if now >= self._looks_at:
                    self._look_for_stalls(now, tick)
                due.append(self._looks_at)
        if (looks_at := self._admission.looks_at) is not None and now >= looks_at:
            self._hand_out()
        elif looks_at is not None:
            due.append(looks_at)
        if self._rest.begins(bool(self._work), self._answered, now):
            self._let_rest()
        if self._rest.looks_at is not None:
            due.append(self._rest.looks_at)
        if due:
            self._alarm.set(min(due) - now)

    def _let_rest(self) -> None:
        """Nobody has had work for a while: what processes keep for more of it goes back, as long as there is none."""
        for child in self._children.values():
            child.channel.send("rest")
        kernel.give_back()

    def _look_for_stalls(self, now: float, tick: float) -> None:
        """Reports units that take too long, and ends their workers where that is wished."""
        late = now - self._looks_at
        if late > tick:  # we were stopped, by a signal or with the whole machine, and the workers as well
            self._stalls.forgive(late + tick)
        self._looks_at = now + tick
        for number in self._children:
            held = self._dispatch.held(number)
            waits_for_memory = self._lending.waits(number)
            self._stalls.works_on(number, held[0].unit if held and not waits_for_memory else None, now)
        for stall in self._stalls.due(now):
            self._troubled = True
            number, unit, seconds = stall
            mark, stack = self._marks.read(number), self._stacks_of(number)
            self._tell("stalled", number, unit, mark, seconds, stack)
            if self._rules.stall_action == "restart":
                self._from_worker(number)  # meanwhile its stack was read: it may have answered
                child = self._children.get(number)
                held = self._dispatch.held(number)
                if child is not None and held and held[0].unit == unit:
                    child.stall, child.stack = stall, stack
                    kernel.kill(child.pid)

    def _look_for_sickness(self, now: float) -> None:
        self._looks_for_sickness_at = now + SICK_AFTER / 5
        busy = [child.pid for number, child in self._children.items() if self._dispatch.held(number)]
        if self._sickness.shows(busy, now):
            self._trainer.send("sick", self._stacks_of(*self._children))

    def _stacks_of(self, *numbers: int) -> str:
        return self._stacks.read((number, self._children[number].pid) for number in numbers)


def dumped(error: BaseException) -> bytes:
    """An error as it travels to the trainer."""
    return leaves.dumps(Failure.of(error, "in the zygote"), lambda leaf: None)
