"""The supervisor of the workers: one state machine for all backends. Events in, commands out.

It assigns units and slots to workers, decides when workers begin, rest, retire and are replaced, and handles the units
of workers that die or stall. It has no clock, no process and no I/O. The backend is the shell round it: it reports
events (`handle`), and carries out the commands that `handle` returns. See `docs/design/16-supervisor.md`.

Each part decides one thing: `Dispatch`, `SplitPolicy` and `SplitUnits` (units), `SlotAllocator`, `Admission` and
`WorkerMemory` (memory), `Stalls`, `Blame` and `RecyclingPolicy` (workers), `IdlePolicy`. This file joins them in one
place, so that all consequences of an event can be read together: that is why it is long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from stoker import errors
from stoker._engine.activity import Activity
from stoker._engine.backend import Failure, UnitReport
from stoker._engine.commands import (
    AllStarted,
    Away,
    CheckLocks,
    Command,
    Dismiss,
    Drains,
    Event,
    Exited,
    Facts,
    Heard,
    Inspect,
    Inspected,
    Kill,
    Notify,
    Send,
    SetTimer,
    Spawn,
    Started,
    StartFailed,
    Stop,
    StreamStates,
    Tell,
    Tick,
    Trim,
)
from stoker._engine.messages import (
    Alive,
    Broken,
    Costs,
    Crowded,
    DeathsCounted,
    Delivered,
    Delivery,
    Drop,
    Fed,
    Freed,
    FromWorker,
    Grow,
    HeldBack,
    LastDeath,
    Leaves,
    NeedsMemory,
    PlainSlot,
    Pulse,
    Replaced,
    Resume,
    Retires,
    RowsWanted,
    Shares,
    SlotGiven,
    SlotWanted,
    Stalled,
    Starved,
    Stays,
    Streams,
    Submit,
    ToWorker,
    TrimMemory,
    Unit,
    UnitDone,
    Unpickled,
    WorkerExit,
    WorkerPids,
    plain,
)
from stoker._engine.process.deadlines import FLUSH, HELD_BACK, LOCKED_AFTER, LOOK, OPENED, PATIENCE, REAP
from stoker._engine.process.split_units import SplitUnits
from stoker._engine.process.worker_events import Blame, WorkerDeath, not_started
from stoker._engine.supervision import rules
from stoker._engine.supervision.admission import Admission, Refused
from stoker._engine.supervision.demand import Demand
from stoker._engine.supervision.dispatch import Dispatch
from stoker._engine.supervision.restarts import ends_itself
from stoker._engine.supervision.rules import IdlePolicy, RecyclingPolicy, Rules, Stall, Stalls
from stoker._engine.supervision.slot_allocator import SlotAllocator, WorkerMemory
from stoker._engine.supervision.split_policy import SplitPolicy
from stoker._engine.transport import leaves
from stoker._engine.transport.arena import Arena, Board, Slot

TOLD = (4, 32, 256)
"""Numbers of answers after which the trainer gets the cost of a row and the memory of a unit: the next epoch knows them
from the start.
"""

UNKNOWN = 9
"""Multiple of `stall_warning` that a worker may unpickle before it is late, while it is unknown how long that takes."""

TWICE = 2
"""Multiple of the longest unpickling so far that another worker may take before it is late."""

LEAST = 10.0
"""Seconds that a worker may unpickle in any case before it is late: it imports modules, on a busy machine."""


class _Worker:
    """One worker that has been started."""

    def __init__(self, pid: int | str) -> None:
        self.pid = pid
        self.unseen = LOOK  # seconds of work since its memory was last read
        self.asked = 0  # number of its latest request for a slot
        self.has_joined = False  # whether it gets units
        self.is_warm = False  # whether it has answered: its first samples may import modules and open files
        self.retires = False
        self.drains: str | None = None  # why its machine is to be taken away
        self.is_released = False  # it is not needed, and no other takes its place
        self.stays = False  # it should retire, but no other worker could continue its stream
        self.stall: tuple[Stall, str] | None = None  # the stall for which it was ended, and its stack then


class Supervisor:
    """Supervises the workers of one backend.

    Args:
        workers: number of workers that the backend starts by itself.
        rules: limits of the workers.
        arena: has the slots.
        facts: measures the workers and the machine.
        board: receives the slots that the trainer has let go of; None if messages carry all of them.
        unpickles: whether workers unpickle the job, and report the end of it (`Unpickled`). They begin then.
        ahead: whether the first workers get units while they unpickle.
        may_be_locked: whether workers inherit the locks that their parent's threads hold.
    """

    def __init__(
        self,
        workers: int,
        rules: Rules,
        arena: Arena,
        facts: Facts,
        board: Board | None = None,
        unpickles: bool = False,
        ahead: bool = False,
        may_be_locked: bool = False,
    ) -> None:
        self._rules = rules
        self._facts = facts
        self._now = 0.0
        self._out: list[Command] = []
        self._split_policy = SplitPolicy(workers, rules.row_seconds, rules.dearer)
        self._dispatch = Dispatch(workers, self._split_policy, rules.units_at_once, rules.remote)
        self._local = workers - rules.remote if rules.remote else sys.maxsize  # workers from here on are remote
        self._memory = WorkerMemory(facts.own_bytes, rules.growth, self._local)
        self._slots = SlotAllocator(arena, self._dispatch, board, self._memory)
        self._admission = Admission(self._dispatch, self._slots, self._memory, facts.available, lambda: self._now)
        self._split_units = SplitUnits(self._split_policy, self._dispatch, self._slots)
        self._stalls = Stalls(rules.stall_warning)
        self._blame = Blame(rules, self._stalls)
        self._recycling_policy = RecyclingPolicy(rules.max_samples_per_worker, None)
        self._idle_policy = IdlePolicy()
        self._workers = self._needed = workers
        self._there: dict[int, _Worker] = {}
        self._unpickling: dict[int, float] = {}  # worker that unpickles the job → its deadline; the next one first
        self._leaving: dict[int, float] = {}  # worker → when it was dismissed, or announced that it leaves
        self._demand = Demand(rules.remote) if rules.on_demand else None
        elsewhere = range(0 if rules.on_demand else rules.remote)
        self._due = {self._local + place: 0.0 for place in elsewhere}  # number of an absent worker → when it is started
        self._starting: set[int] = set()  # the absent workers that have a command to start
        self._held_back: set[int] = set()  # the absent workers that, as the trainer knows, cannot be started
        self._alone_since: float | None = None  # since when no worker can continue, and none can be started
        self._unpickles, self._ahead = unpickles, ahead
        self._ever_began = not unpickles
        self._unpickled_in: float | None = None  # the longest unpickling so far, in seconds
        self._work: dict[int, bytes | list[bytes]] = {}  # of units that are not answered; of a run by its first unit
        self._streams = StreamStates()
        self._dropped_below = 0
        self._answered = 0
        self._troubled = False  # whether a worker has died or stalled: faults of units are kept then
        self._is_crowded = False  # whether the trainer knows that fewer than all workers work at once
        self._shares: bool | None = None  # whether workers share units, as the trainer knows
        self._starved_for: int | None = None  # the unit that waits for memory, as the trainer knows
        self._timer: float | None = None
        self._is_due = False  # whether to check deadlines at the end of this call
        self._watching = False  # whether there was work at the last check for late workers
        self._stalled: list[Inspected] = []  # stalls reported in this call
        self._stuck: list[Inspected] = []  # workers that unpickle for too long, inspected in this call
        self._looks_at = 0.0  # time of the next check for stalls
        self._may_be_locked = may_be_locked
        self._checks_locks_at: float | None = None

    def handle(self, events: Iterable[Event], now: float) -> list[Command]:
        """Returns the commands that follow from events, in order.

        Args:
            events: events that have arrived together, in order.
            now: seconds of a monotonic clock.
        """
        self._now = now
        out: list[Command] = []
        self._out = out
        for event in events:
            match event:
                case Heard():
                    self._hear(event.worker, event.message)
                case Submit(unit, number, work, freed, rows):
                    self._slots.put_back(freed)
                    self._work[unit] = work
                    if not (self._watching and self._timer is not None):  # no unit was watched
                        self._is_due = True
                    self._dispatch.submitted(unit, number, rows, len(work) if isinstance(work, list) else 1)
                case Freed():
                    self._slots.put_back(event.slots)
                case NeedsMemory():
                    self._slots.put_back(event.slots)
                    self._slots.unregistered(event.unregistered)
                    self._grant(hungry_for=event.unit)
                case Tick():
                    self._timer, self._is_due = None, True
                case Started():
                    self._started(event)
                case StartFailed():
                    self._start_failed(event)
                case AllStarted():
                    self._is_due = True
                    self._recycling_policy.most_bytes = self._most_growth(event.available)
                    self._tell_pids()
                case Exited():
                    self._bury(event)
                case Drains(number, reason):
                    self._drains(number, reason)
                case Inspected():
                    self._inspected(event)
                case Away():
                    self._stalls.forgive(event.seconds)
                    self._looks_at += event.seconds
                case Streams():
                    self._streams = StreamStates(event.states)
                    for number, state in event.states.items():
                        if number in self._there:
                            self._send(number, Resume(state))
                case Drop():
                    self._drop(event.before)
                case Grow():
                    self._grow(event.workers)
                case Pulse():
                    out.append(Tell(Alive()))
        if self._slots.is_asked:
            self._grant()  # earlier units have their slots now
        self._hand_out()
        if self._stalled:
            self._end_stalled()
        if self._stuck:
            self._give_up_on_stuck()
        if self._is_due:
            self._attend()
        return out

    @property
    def outstanding(self) -> Iterable[int]:
        """The units that are not answered."""
        return self._work

    def _send(self, worker: int, message: ToWorker) -> None:
        self._out.append(Send(worker, message))

    def _tell_pids(self) -> None:
        pids: list[int] = []
        machines: dict[int, str] = {}
        for number, worker in self._there.items():
            if isinstance(worker.pid, int):
                pids.append(worker.pid)
            else:
                machines[number] = worker.pid.rpartition(" on host ")[2]
        self._out.append(Tell(WorkerPids(pids, machines)))

    # Births and deaths

    def _most_growth(self, available: int) -> int:
        """Returns the bytes of private memory by which each worker may grow."""
        budget = self._rules.memory_budget
        growth = available * rules.SHARE if budget is None else budget // 2
        return int(growth / max(1, self._workers - self._rules.remote))

    def _grow(self, workers: int) -> None:
        """Raises the number of workers. The new workers start like replacements, but one at a time, and a failure to
        start one does not end the run.
        """
        self._dispatch.grow(workers)
        self._split_policy.grow(workers)
        self._due.update(dict.fromkeys(range(self._workers, workers), self._now))
        self._workers = max(self._workers, workers)
        self._is_due = True

    def _started(self, event: Started) -> None:
        number, pid = event
        self._there[number] = _Worker(pid)
        self._due.pop(number, None)
        if number in self._starting:
            self._starting.remove(number)
            self._held_back.discard(number)
            self._tell_pids()
        unpickles = self._unpickles and number < self._local  # a remote worker has done it
        if unpickles:
            self._unpickling[number] = self._now + OPENED
            self._is_due = True
        else:
            self._alone_since = None
            self._ever_began = True
        if not unpickles or (
            self._ahead and not self._ever_began
        ):  # otherwise other workers can take its units at once
            self._join(number)

    def _start_failed(self, event: StartFailed) -> None:
        number, error = event
        if number not in self._starting:  # the backend starts it
            self._refuse(number, error)
            return
        self._starting.remove(number)
        if number < self._needed:
            self._hold_back(number, error)
        else:  # an additional worker, which is not needed
            self._due = {other: when for other, when in self._due.items() if other < self._needed}

    def _refuse(self, number: int, error: OSError) -> None:
        """Ends the run, because a worker cannot be started and no other can continue."""
        self._end(not_started(f"worker {number} of {self._workers}", error))

    def _hold_back(self, number: int, error: OSError) -> None:
        """Delays the start of a worker while the others continue; ends the run if none can for `PATIENCE` seconds.

        Workers that wait for memory do not count: they may wait for an earlier unit, which only the missing worker
        would make.
        """
        self._due[number] = self._now + HELD_BACK
        self._is_due = True
        if number not in self._held_back:
            self._held_back.add(number)
            self._out.append(Notify(HeldBack(number, str(error), bool(self._there))))
        if not all(map(self._slots.waits_for_others, self._there)):
            self._alone_since = None
            return
        self._alone_since = self._alone_since or self._now
        if self._now - self._alone_since > PATIENCE and self._starting <= self._held_back:
            self._refuse(number, error)

    def _begin(self, number: int, worker: _Worker, own: int) -> None:
        """Lets a worker begin that has unpickled the job. Its memory at that time belongs to no sample; it may have
        more by now.
        """
        self._unpickling.pop(number, None)
        self._stalls.answered(unpickling(number))
        self._ever_began = True
        self._alone_since = None
        if worker.has_joined:
            self._recycling_policy.born(number)
        else:
            self._join(number)
        self._memory.born(number, own)

    def _join(self, number: int) -> None:
        """Lets the worker receive units."""
        self._there[number].has_joined = True
        if (state := self._streams.of(number)) is not None:  # it continues another worker's stream
            self._send(number, Resume(state))
        self._recycling_policy.born(number)
        self._memory.born(number)
        self._dispatch.joined(number)

    def _bury(self, event: Exited) -> None:
        """Handles the end of a worker: frees its slots, and queues its units again unless the run ends."""
        number, code, position, stack, is_lost, in_hand = event
        self._troubled = self._is_due = True
        worker, now = self._there.pop(number), self._now
        was_unpickling = self._unpickling.pop(number, None) is not None
        self._leaving.pop(number, None)
        runs = self._dispatch.died(number)
        units = [run.unit for run in runs]
        units[:1] = [self._in_hand(unit, in_hand) for unit in units[:1]]
        lost = [unit for run in runs if not run.is_part for unit in self._apart(run.unit)]
        self._slots.lost(number, lost)
        self._stalls.works_on(number, None, now)
        if worker.retires and not runs:
            self._memory.left(number)
            if worker.is_released:
                self._tell_pids()
            else:
                self._due[number] = now
            return
        if was_unpickling:  # it had not begun its units
            units = []
            self._stalls.answered(unpickling(number))
        unit = units[0] if units else None
        death = WorkerDeath(units, position, worker.pid, code, stack, worker.stall, is_lost)
        verdict = self._blame.died(death, now)
        end = WorkerExit(number, worker.pid, code, unit, position, stack, is_lost=is_lost)
        if verdict.pause is None or (
            not self._ever_began and ends_itself(code)
        ):  # the others unpickle the same job and would end as well
            self._out.append(Tell(LastDeath(end, len(self._blame.deaths))))
            return
        self._dispatch.requeued(lost)
        for each in lost:
            self._split_units.refused(each)
        for run in runs:
            if run.is_part:
                self._split_units.lost(run)
                self._conclude(run.unit, number)
        self._forget_dropped()
        self._due[number] = now + verdict.pause
        stalled = worker.stall is not None and worker.stall[0].unit in (unit, unpickling(number))
        self._out.append(Notify(Replaced(end._replace(stalled=stalled, blamed=verdict.blamed))))
        self._out.append(Tell(DeathsCounted(self._blame.deaths)))

    def _replace(self) -> None:
        """Starts the replacements that are due, and at most one additional worker."""
        due = [number for number, due in self._due.items() if due <= self._now and number not in self._starting]
        more = [number for number in due if number >= self._needed]
        for number in [*(number for number in due if number < self._needed), *more[:1]]:
            self._starting.add(number)
            self._out.append(Spawn(number))

    def _meet(self, demand: Demand) -> None:
        """Asks for workers on other machines, or releases some: those with the highest numbers first."""
        elsewhere = range(self._local, self._workers)
        there = [number for number in elsewhere if number in self._there and not self._there[number].retires]
        absent = [number for number in elsewhere if number not in self._there and number not in self._due]
        asked = sum(number in self._due for number in elsewhere)
        more = demand.look(len(self._dispatch.alive - self._dispatch.busy), len(there), asked, self._now, self._work)
        self._due.update(dict.fromkeys(absent[: max(0, more)], self._now))
        idle = [number for number in reversed(there) if not self._dispatch.assignments(number)]
        for number in idle[: max(0, -more)]:
            worker = self._there[number]
            worker.retires = worker.is_released = True
            self._dispatch.retires(number)
            self._dismiss_if_idle(worker, number)

    def _drains(self, number: int, reason: str) -> None:
        worker = self._there.get(number)
        if worker is None or worker.retires or worker.drains is not None:
            return
        worker.drains = reason
        if self._streams.of(number) is None:  # a stream may have to stay: its next report says so
            self._retire(worker, number, reason)
            self._dismiss_if_idle(worker, number)

    def _retire(self, worker: _Worker, number: int, reason: str) -> None:
        worker.retires = True
        self._dispatch.retires(number)
        self._out.append(Notify(Retires(number, worker.pid, reason)))

    def _dismiss_if_idle(self, worker: _Worker, number: int) -> None:
        if worker.retires and number not in self._leaving and not self._dispatch.assignments(number):
            self._leaving[number] = self._now
            self._is_due = True
            self._out.append(Dismiss(number))

    def _care_for(self, worker: _Worker, number: int, report: UnitReport) -> None:
        """Checks after an answer whether the worker should retire. Its replacement starts when it has left."""
        self._recycling_policy.count_samples(number, report.samples)
        if worker.unseen >= LOOK:
            worker.unseen = 0.0
            self._recycling_policy.has(number, self._facts.own_bytes(number))
        reason = worker.drains or self._recycling_policy.reason(number)
        if not worker.retires and report.movable and reason:
            self._retire(worker, number, reason)
        if not report.movable and not worker.stays and reason:
            worker.stays = True
            self._out.append(Notify(Stays(number, worker.pid, reason)))
        self._dismiss_if_idle(worker, number)

    # Units

    def _hear(self, number: int, message: FromWorker) -> None:
        worker = self._there.get(number)
        if worker is None:
            return
        match message:
            case UnitDone():
                self._take_answer(number, message)
            case SlotWanted(unit, size, question, own):
                worker.asked = question
                self._slots.asked(number, unit, size, own)
            case RowsWanted(unit, size, question, own, layout):
                if self._split_units.agrees(unit, layout):
                    slot = self._slots.share(unit, size, number, own)
                    self._send(number, SlotGiven(question, slot and _plain_slot(slot)))
                else:
                    self._send(number, SlotGiven(question, "its rows have another layout than other rows"))
            case Unpickled():
                self._out.append(Tell(message))
                self._unpickled_in = max(self._unpickled_in or 0.0, message.seconds)
                self._begin(number, worker, message.own)
            case Leaves():
                self._leaving.setdefault(number, self._now)
                self._is_due = True
            case Broken():  # it could not unpickle the job, and neither could another
                self._out += [Tell(message), Stop()]

    def _take_answer(self, number: int, message: UnitDone) -> None:
        unit, kind, value, seconds, fields, processor = message
        report = UnitReport(*fields)
        self._answered += 1
        self._alone_since = None
        run = self._dispatch.assignments(number)[0]  # a worker answers its units in the order in which it received them
        works = self._work.get(unit)
        if isinstance(works, list) and (rest := works[1:]):  # of a run, which it makes next
            self._work[unit + 1] = rest
            self._dispatch.answered(number, run, seconds, left=len(rest))
        else:
            self._dispatch.answered(number, run, seconds)
        is_joined = self._split_units.is_joined(unit)
        worker = self._there[number]
        if kind not in ("misfit", "short") and not is_joined:
            dearer = self._split_policy.dearer
            if worker.is_warm and kind in ("batch", "rows"):
                self._split_policy.spent(run.is_part, report.samples, seconds, processor)
            self._split_policy.learned(report.samples, seconds)
            if self._answered in TOLD or dearer != self._split_policy.dearer:
                self._tell_costs()
        worker.is_warm = True
        if run.is_part:
            self._split_units.answered(run, kind, value, report)
            self._conclude(unit, number)
        else:
            if self._shares is None:
                self._tell_whether_shared(report.samples)
            if is_joined:
                report = self._split_units.joined(unit, report)
            self._deliver(number, unit, cast("Delivered", kind), value, report, seconds)
        if self._memory.growth is None:  # it needed no memory for its batch
            self._memory.showed(number, self._facts.own_bytes(number))
        if self._admission.is_short and not self._dispatch.assignments(number):
            self._send(
                number, TrimMemory()
            )  # frees memory that `malloc` keeps for the next unit: other workers need it
        worker.unseen += seconds
        if self._recycling_policy.counts or worker.retires or worker.drains or worker.unseen >= LOOK:
            self._care_for(worker, number, report)

    def _apart(self, first: int, made: int = 0) -> list[int]:
        """Makes single units of those of a run behind the first ones that are `made`; returns their numbers, or the
        unit itself if it is no run.
        """
        works = self._work.get(first)
        if not isinstance(works, list):
            return [first][made:]
        left = dict(enumerate(works[made:], first + made))
        self._work.update(left)
        return list(left)

    def _in_hand(self, unit: int, in_hand: int) -> int:
        """Returns the unit that a worker had in hand: `in_hand`, if that is one of the run that begins with `unit`."""
        works = self._work.get(unit)
        return in_hand if isinstance(works, list) and unit <= in_hand < unit + len(works) else unit

    def _conclude(self, unit: int, number: int) -> None:
        """Delivers a shared unit if all its rows are made, or queues it again if one worker has to join them."""
        if not self._split_units.is_over(unit):
            return
        result = self._split_units.result(unit)
        if result is not None:
            kind, value, report = result
            self._dispatch.done(unit)
            self._tell_whether_shared(report.samples)
            self._deliver(number, unit, kind, value, report)
        elif unit < self._dropped_below:
            self._dispatch.done(unit)
            self._split_units.refused(unit)
            self._deliver(number, unit, "dropped", None, UnitReport())
        else:
            self._tell_whether_shared(self._dispatch.rows(unit))
            self._dispatch.requeued([unit])

    def _tell_whether_shared(self, rows: int) -> None:
        """Reports a change of whether workers share units: then the trainer has fewer units under way. Once true, it
        changes only when sharing is given up.
        """
        shares = self._split_policy.shares(rows)
        if shares is None or shares == self._shares or (self._shares and not self._split_policy.gave_up):
            return
        self._shares = shares
        self._out.append(Tell(Shares(shares)))
        if self._split_policy.gave_up:
            self._tell_costs()

    def _tell_costs(self) -> None:
        """Sends the costs to the trainer. If units cannot be shared, the cost of a row is None, so that later workers
        measure it again.
        """
        seconds = None if self._split_policy.gave_up else self._split_policy.seconds
        self._out.append(Tell(Costs(seconds, self._memory.growth, self._split_policy.dearer)))

    def _deliver(
        self, number: int, unit: int, kind: Delivered, value: object, report: UnitReport, seconds: float = 0.0
    ) -> None:
        """Sends the answer of a unit to the trainer."""
        self._work.pop(unit, None)
        if self._troubled:
            self._blame.answered(unit)
        self._streams.take(number, report)
        slot = self._slots.answered(unit, kind, value)
        if unit < self._dropped_below:
            self._slots.put_back([] if slot is None else [slot.number])
            kind, value, slot = "dropped", None, None
        self._out.append(Tell(Delivery(unit, kind, value, slot and _plain_slot(slot), number, plain(report), seconds)))

    def _drop(self, before: int) -> None:
        self._dropped_below = before
        self._forget_dropped()
        for number in self._there:
            if any(isinstance(self._work.get(run.unit), list) for run in self._dispatch.assignments(number)):
                self._send(number, Drop(before))

    def _forget_dropped(self) -> None:
        for unit in (*self._dispatch.dropped(self._dropped_below), *self._split_units.dropped(self._dropped_below)):
            self._dispatch.done(unit)
            self._split_units.refused(unit)
            self._work.pop(unit, None)

    def _hand_out(self) -> None:
        admission = self._admission
        for number, run in self._dispatch.hand_out(admission.gate()):
            unit, part, parts = run.unit, None, self._split_units.to_join(run.unit)
            known = self._blame.known(unit) if self._troubled else ()
            if parts and known:  # it is made with care, from the beginning
                self._split_units.refused(unit)
                parts = ()
            if run.is_part:
                part = self._split_units.handed_out(run)
            work, slots = self._work[unit], []
            if part is None and not parts:
                slots = self._slots.offer(unit, len(work) if isinstance(work, list) else 1)
            elif part is None or part[3] is not None:  # rows whose layout is not known may not fit the others
                slots = [slot for slot in (self._slots.offer_to_share(unit),) if slot is not None]
            message = Unit(unit, work, [*map(_plain_slot, slots)], known, part, parts)
            self._out.append(Send(number, message))
        if admission.refused is not None and not self._is_crowded:
            self._is_crowded = True
            busy, there, growth = len(self._dispatch.busy), admission.refused, self._memory.growth or 0
            self._out.append(Notify(Crowded(busy, self._workers, growth, there.bytes, there.limit, there.source)))
        if admission.looks_at is not None:
            self._is_due = True
        if admission.starved is not None and self._slots.is_wanted_now(admission.starved.unit):
            self._give_up(admission.starved)
            self._hand_out()
        elif admission.starved is not None or self._starved_for is not None:
            self._tell_who_starves()

    # The arena

    def _grant(self, hungry_for: int | None = None) -> None:
        """Gives slots to the workers that wait; reports to the trainer when the earliest must wait, and when it no
        longer does.
        """
        for number, reply in self._slots.grant(hungry_for):
            slot = reply if isinstance(reply, str) else _plain_slot(reply)
            self._send(number, SlotGiven(self._there[number].asked, slot))
        self._tell_who_starves()

    def _tell_who_starves(self) -> None:
        is_asked, starved = self._slots.is_asked, self._admission.starved
        starved_for = self._slots.starved_for if is_asked else starved and starved.unit
        if starved_for is not None and starved_for != self._starved_for:
            self._out.append(Tell(Starved(starved_for)))
            self._starved_for = starved_for
        elif self._starved_for is not None and starved_for is None and not is_asked:
            self._out.append(Tell(Fed()))
            self._starved_for = None

    def _give_up(self, starved: Refused) -> None:
        """Fails a unit that no worker can ever begin or continue."""
        unit, number, why = starved
        failure = replace(Failure.of(why, "before a worker began the batch"), traceback="")
        self._dispatch.refused(unit)
        self._split_units.refused(unit)
        self._dispatch.requeued(self._apart(unit, made=1))
        self._deliver(number, unit, "error", dumps(failure), UnitReport())  # the state of a stream does not change

    # What is due

    def _attend(self) -> None:
        """Acts on deadlines: ends and starts workers, checks locks and stalls, trims idle memory."""
        now, tick = self._now, self._stalls.tick
        self._is_due = False
        due: list[float] = []
        for number, since in self._leaving.items():
            exits_slowly = number >= self._local or self._facts.has_duties(number)  # by duties, or a clean interpreter
            until = since + (FLUSH if exits_slowly else REAP)
            if until <= now:
                self._out.append(Kill(number))
            due.append(until if until > now else now + REAP)
        while self._unpickling:
            number, until = next(iter(self._unpickling.items()))
            if until > now:
                due.append(until)
                break
            del self._unpickling[number]
            self._unpickling[number] = now + OPENED
            self._out.append(Inspect(number, None, OPENED))
        demand = self._demand
        if demand is not None and (
            self._work or now < demand.looks_until or any(number >= self._local for number in self._there)
        ):
            if now >= demand.looks_at:
                self._meet(demand)
            due.append(demand.looks_at)
        if self._due:
            self._replace()
            due += [when for number, when in self._due.items() if number not in self._starting]
        self._watching = bool(self._work)
        if self._work:  # without work, no worker is late
            if not self._answered and self._may_be_locked:
                due.append(self._check_locks())
            if tick is not None:
                if now >= self._looks_at:
                    self._look_for_stalls(tick)
                due.append(self._looks_at)
        if (looks_at := self._admission.looks_at) is not None and now >= looks_at:
            self._hand_out()
            looks_at, self._is_due = self._admission.looks_at, False
        if looks_at is not None:
            due.append(looks_at)
        if self._idle_policy.begins(bool(self._work), self._answered, now):
            for number in self._there:
                self._send(number, TrimMemory())
            self._out.append(Trim())
        if self._idle_policy.looks_at is not None:
            due.append(self._idle_policy.looks_at)
        if due and (at := min(due)) != self._timer:
            self._timer = at
            self._out.append(SetTimer(at))

    def _check_locks(self) -> float:
        """Checks busy workers for inherited locks if it is time; returns the time of the next check."""
        if self._checks_locks_at is not None and self._now >= self._checks_locks_at:
            began = [number for number in self._there if number not in self._unpickling]
            busy = tuple(number for number in began if self._dispatch.assignments(number))
            self._out.append(CheckLocks(busy))
            self._checks_locks_at = None
        self._checks_locks_at = self._checks_locks_at or self._now + LOCKED_AFTER / 5
        return self._checks_locks_at

    def _look_for_stalls(self, tick: float) -> None:
        """Inspects the workers that take too long for a unit."""
        now = self._now
        late = now - self._looks_at
        if late > tick:  # this process was stopped, by a signal or with the whole machine, and the workers as well
            self._stalls.forgive(late + tick)
        self._looks_at = now + tick
        for number in self._there:
            assignments = self._dispatch.assignments(number)
            unit = assignments[0].unit if assignments and not self._slots.waits(number) else None
            if (begins_by := self._unpickling.get(number)) is not None:
                unit = unpickling(number) if now >= self._late_from(begins_by - OPENED) else None
            self._stalls.works_on(number, unit, now)
        for stall in self._stalls.due(now):
            self._troubled = True
            self._out.append(Inspect(*stall))

    def _late_from(self, began: float) -> float:
        """Returns the time from which on a worker takes long to unpickle the job, where it began at this time."""
        if self._unpickled_in is None:
            return began + max(LEAST, UNKNOWN * (self._rules.stall_warning or 0.0))
        return began + max(LEAST, TWICE * self._unpickled_in)

    def _inspected(self, event: Inspected) -> None:
        """Reports a unit, or an unpickling, that takes too long."""
        number, unit, seconds, position, stack, in_hand = event
        if unit is None:
            self._stuck.append(event)
            return
        if position.activity is Activity.TURN:  # other ranks of its pool work: it has not begun
            self._stalls.begins(number, unit, self._now)
            return
        self._out.append(Notify(Stalled(number, self._in_hand(unit, in_hand), position, seconds, stack)))
        if self._rules.stall_action == "restart":
            self._stalled.append(event)

    def _end_stalled(self) -> None:
        """Ends the workers whose stalls were reported, unless they have answered since."""
        for number, unit, seconds, _, stack, in_hand in self._stalled:
            worker, assignments = self._there.get(number), self._dispatch.assignments(number)
            if worker is None or unit is None:
                continue
            if number in self._unpickling:
                goes_on = unit == unpickling(number)
            else:
                goes_on = bool(assignments) and assignments[0].unit == unit
            if goes_on:
                worker.stall = Stall(number, self._in_hand(unit, in_hand), seconds), stack
                self._out.append(Kill(number))
        self._stalled.clear()

    def _give_up_on_stuck(self) -> None:
        """Ends the run if a worker has not finished unpickling: another worker would not finish either."""
        for number, _, seconds, _, stack, _ in self._stuck:
            if number in self._unpickling:
                why = errors.WorkerStartError(
                    f"worker {number} of {self._workers} has been unpickling the dataset for {seconds:g} s, and is not "
                    f"done. Its Python stack:\n{stack}"
                )
                self._end(why)
        self._stuck.clear()

    def _end(self, why: errors.StokerError) -> None:
        """Ends the run with this error."""
        failure = Failure.of(why, "in the supervisor of the workers")
        self._out += [Tell(Broken(dumps(failure))), Stop()]


def unpickling(worker: int) -> int:
    """Returns the number that stands for the unpickling of the job by this worker where a stall has a unit: below 0."""
    return -1 - worker


def _plain_slot(slot: Slot) -> PlainSlot:
    return slot.number, slot.offset, slot.capacity


def dumps(failure: Failure) -> bytes:
    """Returns a failure, pickled."""
    return leaves.dumps(failure, lambda leaf: None)
