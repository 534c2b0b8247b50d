"""The zygote: forks the workers, carries out the supervisor's commands, owns the arena, reaps. One thread.

It is mostly idle: every step takes microseconds, except forking. A new zygote can replace it without loss: the trainer
keeps units until they are delivered. The file is long because its loop hears trainer, workers, bridge and supervisor.
"""

from __future__ import annotations

import functools
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn, cast

from stoker._core.machine import memory
from stoker._core.machine.timer import Timer
from stoker._engine.activity import WorkerActivity
from stoker._engine.backend import Failure, JobSource
from stoker._engine.commands import (
    AllStarted,
    CheckLocks,
    Command,
    Dismiss,
    Event,
    Exited,
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
    Tell,
    Tick,
    Trim,
)
from stoker._engine.fork import heap_sharing, native_pools
from stoker._engine.fork.forked_process import Lineage, Stacks, live
from stoker._engine.fork.native_pools import ForkDeadlockCheck
from stoker._engine.machines.remote_workers import RemoteWorkers
from stoker._engine.messages import (
    AskPool,
    AskWorkers,
    Flushing,
    FromBridge,
    FromTrainer,
    FromWorker,
    Grow,
    Happened,
    HeapMarked,
    MarkingHeap,
    Question,
    ReportAnswer,
    WorkerPids,
    WorkersLocked,
)
from stoker._engine.process import linux, process_setup, worker
from stoker._engine.process.channel import Channel, pair
from stoker._engine.process.deadlines import FLUSH, LEAVE, REAP
from stoker._engine.supervision.rules import Rules
from stoker._engine.supervisor import Supervisor, dumps
from stoker._engine.transport.arena import SIZE, Arena, Board
from stoker._engine.transport.segments import ArenaFiles


class Ends(NamedTuple):
    """The descriptors of a zygote at its birth."""

    channel: int
    """Socket to the trainer."""
    lifeline: int
    """A pipe whose other end the trainer holds."""
    inquiry: int
    """Socket for requests from any thread of the trainer."""
    trainer: int | None = None
    """pidfd of the trainer, or None if pidfds are not available."""
    bridge: int | None = None
    """Socket to the bridge to workers on other machines, or None without them."""
    arena: ArenaFiles = ArenaFiles()
    """The arena's shared files."""

    def flat(self) -> list[int | None]:
        """Returns all descriptors, for `of`."""
        return [*self[:-1], *self.arena]

    @classmethod
    def of(cls, flat: Sequence[int | None]) -> Ends:
        """Returns the ends of these descriptors."""
        channel, lifeline, inquiry, trainer, bridge, *arena = cast("list[int]", flat)
        return cls(channel, lifeline, inquiry, trainer, bridge, ArenaFiles(arena))


class _ForkedWorker:
    """One worker, as the zygote sees it."""

    def __init__(self, pid: int, channel: Channel[FromWorker]) -> None:
        self.pid = pid
        self.channel = channel
        self.descriptor = linux.process_descriptor(pid)
        self.is_killed = False


class Zygote:
    """The loop of the zygote.

    Args:
        channel: to the trainer.
        ends: its descriptors at birth.
        workers: number of workers: those to fork, and those on other machines.
        source: origin of the workers' job.
        collecting: whether workers run Python's garbage collector, as the trainer does.
        lineage: of the workers, as multiprocessing sees them.
    """

    def __init__(
        self,
        channel: Channel[FromTrainer],
        ends: Ends,
        workers: int,
        rules: Rules,
        source: JobSource,
        collecting: bool,
        lineage: Lineage,
    ) -> None:
        self._trainer = channel
        self._inquiry: Channel[Question] = Channel(socket.socket(fileno=ends.inquiry))
        self._trainer_descriptor = ends.trainer
        self._lifeline = ends.lifeline
        self._lineage = lineage
        self._arena = ends.arena
        self._rules = rules
        self._source = source
        self._collecting = collecting
        budget = rules.memory_budget
        arena = Arena(ends.arena, None if budget is None else budget // 2, begin=SIZE)
        self._supervisor = Supervisor(
            workers,
            rules,
            arena,
            self,
            Board.where_allowed(ends.arena[0]),
            unpickles=source.unpickles,
            ahead=True,
            may_be_locked=True,
        )
        self._workers = workers = workers - rules.remote
        self._children: dict[int, _ForkedWorker] = {}
        bridge: Channel[FromBridge] | None = None if ends.bridge is None else Channel(socket.socket(fileno=ends.bridge))
        self._remote = None if bridge is None else RemoteWorkers(bridge, workers)
        self._marks = WorkerActivity(workers)
        self._stacks = Stacks(workers)
        self._deadlock_check = ForkDeadlockCheck()
        self._alarm = Timer()  # rings when something is due, other than what the peers say
        self._selector = linux.selector()
        self._full: set[int] = set()  # sockets that are watched for room to write
        self._workers_die_first = False  # whether the kernel prefers workers when memory runs out

    def run(self) -> None:
        """Runs until the trainer or its iterator ends; does not return."""
        if self._rules.mark_heap and heap_sharing.worth_it():
            self._trainer.send(MarkingHeap())  # marking may take long, and the zygote sends nothing meanwhile
            if (marked := heap_sharing.mark_heap()) is not None:
                self._trainer.send(HeapMarked(marked.objects, marked.seconds))
        self._watch(self._trainer.fileno(), self._from_trainer)
        self._watch(self._inquiry.fileno(), self._from_inquiry)
        if self._alarm.descriptor is not None:
            self._watch(self._alarm.descriptor, self._ring)
        if self._trainer_descriptor is not None:
            self._watch(self._trainer_descriptor, self._end)
        if self._remote is not None:
            self._watch(self._remote.channel.fileno(), self._from_bridge)
        for number in range(self._workers):
            self._spawn(number)
            self._from_trainer()  # the first unit does not wait for the last worker, nor does the first batch
            if number:
                self._trainer.queue(WorkerPids([child.pid for child in self._children.values()]))
                self._serve(0.0)
        linux.name_process("stoker-zygote")  # slow steps that can wait run while the workers begin
        linux.give_back()  # pages that the trainer had freed and written again since exist only here
        left = memory.available()
        # On a whole machine, another process may be the one that takes too much
        self._workers_die_first = left.is_of_a_cgroup
        for child in self._children.values() if left.is_of_a_cgroup else ():
            linux.die_first(child.pid)
        self._handle([AllStarted(left.bytes)])
        while True:
            self._serve(self._alarm.patience())
            if self._alarm.descriptor is None:
                self._ring()

    def _serve(self, patience: float | None) -> None:
        """Sends what is queued, and handles what arrives within this time."""
        self._flush()
        for key, _ in self._selector.select(patience):
            key.data()

    def _watch(self, descriptor: int, call: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def _flush(self) -> None:
        """Sends queued messages, and watches sockets that were not ready."""
        workers = [child.channel for child in self._children.values()]
        bridge = () if self._remote is None else (self._remote.channel,)
        all_of: tuple[
            Channel[FromTrainer] | Channel[Question] | Channel[FromWorker] | Channel[FromBridge],
            ...,
        ]
        all_of = (self._trainer, self._inquiry, *workers, *bridge)
        for channel in all_of:
            if not (channel.unsent or self._full):  # nearly always
                continue
            channel.flush()
            descriptor = channel.fileno()
            if channel.unsent != (descriptor in self._full):
                self._full ^= {descriptor}
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.unsent else 0)
                self._selector.modify(descriptor, events, self._selector.get_key(descriptor).data)

    # The supervisor: what it is told, what it has done

    def _handle(self, events: Iterable[Event]) -> None:
        for command in self._supervisor.handle(events, time.monotonic()):
            if self._remote is not None and self._remote.carries_out(command):
                continue
            if isinstance(command, Send):
                self._children[command.worker].channel.send(command.message)
            elif isinstance(command, Tell):
                self._trainer.send(command.message)
            else:
                self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        """Carries out the rare commands."""
        match command:
            case Notify():
                self._trainer.send(Happened(time.time(), command.incident))
            case SetTimer():
                self._alarm.set(command.at - time.monotonic())
            case Spawn():
                self._spawn(command.worker)
            case Dismiss():
                self._children[command.worker].channel.hang_up()  # it leaves, unless it is stopped
            case Kill():
                child = self._children.get(command.worker)
                if child is not None:
                    child.is_killed = True
                    linux.kill(child.pid)
            case Inspect(number, unit, seconds):
                position, in_hand = self._marks.read(number), self._marks.in_hand(number)
                stack = self._stacks_of(number)
                child = self._children[number]  # meanwhile it may have answered
                events = [Heard(number, message) for message in child.channel.receive()]
                self._handle([Inspected(number, unit, seconds, position, stack, in_hand), *events])
            case CheckLocks():
                pids = [self._children[number].pid for number in command.workers if number in self._children]
                if pids and self._deadlock_check.shows(pids, time.monotonic()):
                    self._trainer.send(WorkersLocked(self._stacks_of(*self._children)))
            case Trim():
                linux.give_back()
            case Stop():
                self._end()

    def own_bytes(self, worker: int) -> int:
        """Returns the private memory of a worker; 0 for one on another machine."""
        if self._remote is not None and self._remote.has(worker):
            return 0
        return linux.private_bytes(self._children[worker].pid)

    def has_duties(self, worker: int) -> bool:
        """Returns whether a worker has duties at its end."""
        if self._remote is not None and self._remote.has(worker):
            return self._remote.has_duties(worker)
        return self._marks.has_duties(worker)

    def available(self) -> memory.Available:
        """Returns the memory that is available."""
        return memory.available()

    def _ring(self) -> None:
        if self._alarm.quiet():
            self._handle([Tick()])

    # Births and deaths

    def _spawn(self, number: int) -> None:
        try:
            self._fork(number)
        except OSError as error:
            self._handle([StartFailed(number, error)])

    def _fork(self, number: int) -> None:
        ours, theirs = pair()
        me = os.getpid()
        self._marks.forget(number)
        try:
            with native_pools.quiet_about_forks():
                pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            begin = lambda: self._become_worker(number, ours, theirs, me)  # noqa: E731
            sentinel = self._lifeline if self._trainer_descriptor is None else self._trainer_descriptor
            live(self._lineage, number, self._marks.of(number), sentinel, begin)
        theirs.close()
        if self._workers_die_first:
            linux.die_first(pid)
        child = self._children[number] = _ForkedWorker(pid, Channel(ours))
        self._watch(child.channel.fileno(), lambda: self._from_worker(number, child))
        if child.descriptor is not None:
            self._watch(child.descriptor, lambda: self._from_worker(number, child, ended=True))
        self._handle([Started(number, pid)])

    def _become_worker(
        self, number: int, zygotes: socket.socket, own: socket.socket, zygote: int
    ) -> Callable[[], None]:
        """Releases the zygote's resources in a child that was just forked, and returns its work."""
        process_setup.worker(number, zygote, self._stacks.descriptor(number), self._collecting)
        self._selector.close()
        self._alarm.close()
        self._trainer.close()
        self._inquiry.close()
        if self._remote is not None:
            self._remote.channel.close()
        zygotes.close()
        for child in self._children.values():
            child.channel.close()
            if child.descriptor is not None:
                os.close(child.descriptor)
        mark = self._marks.of(number)
        works = worker.ZygotesWorker(number, Channel(own), self._arena, zygote, self._trainer_descriptor, mark)
        last_words = self._stacks.descriptor(number)
        return lambda: worker.work(lambda: works.open(self._source), works.bye, last_words)

    def _bury(self, number: int) -> None:
        """Reports the end of a worker."""
        child = self._children.pop(number)
        self._selector.unregister(child.channel.fileno())
        self._full.discard(child.channel.fileno())
        if child.descriptor is not None:
            self._selector.unregister(child.descriptor)
            os.close(child.descriptor)
        child.channel.close()
        position, went_on = self._marks.read(number), not linux.is_ending(child.pid)
        linux.kill(child.pid)  # its socket may have closed before it ended
        status = linux.reap(child.pid, REAP)
        if went_on and not child.is_killed and status == -signal.SIGKILL:
            status = linux.CLOSED
        last_words, in_hand = self._stacks.last_words(number), self._marks.in_hand(number)
        self._handle([Exited(number, status, position, last_words, in_hand=in_hand)])

    def _end(self) -> NoReturn:
        """Ends the workers and this process: the idle at once, the busy after a moment, later those with duties."""
        if self._remote is not None:
            self._remote.channel.close()  # the bridge ends, and with it its agents
        for child in self._children.values():
            child.channel.close()
        left = self._await_leaving({number: child.pid for number, child in self._children.items()}, LEAVE)
        late = {number: pid for number, pid in left.items() if self._marks.has_duties(number)}
        for number, pid in left.items():
            if number not in late:
                linux.kill(pid)
        if late:
            self._trainer.send(Flushing())
            for pid in self._await_leaving(late, FLUSH - LEAVE).values():
                linux.kill(pid)
        for pid in left.values():
            linux.reap(pid, REAP)
        os._exit(0)  # nothing of the trainer's is to be written out here

    def _await_leaving(self, pids: dict[int, int], seconds: float) -> dict[int, int]:
        """Waits for workers to end, not beyond the trainer's end; returns those that have not."""
        until, pause = time.monotonic() + seconds, 0.0005
        poll = select.poll()
        for descriptor in {self._children[number].descriptor for number in pids} - {None}:
            poll.register(descriptor, select.POLLIN)  # type: ignore[arg-type]
        while pids := {number: pid for number, pid in pids.items() if not linux.reaped(pid)}:
            if time.monotonic() >= until or self._has_trainer_ended():
                break
            self._trainer.flush()
            for descriptor, _ in poll.poll(pause * 1000):  # those without a pidfd are looked at in between
                poll.unregister(descriptor)
            pause = min(pause * 2, 0.01)
        return pids

    def _has_trainer_ended(self) -> bool:
        descriptor = self._trainer_descriptor
        return linux.has_no_writer(self._lifeline) if descriptor is None else linux.has_ended(descriptor)

    # Messages

    def _from_trainer(self) -> None:
        messages = self._trainer.receive()
        self._handle([message for message in messages if not isinstance(message, Grow) or self._has_room_for(message)])
        if self._trainer.ended:
            self._end()

    def _has_room_for(self, message: Grow) -> bool:
        """Whether there are descriptors and memory for this number of workers; otherwise the present ones continue."""
        try:
            self._stacks.grow(message.workers)
            self._marks.grow(message.workers)
        except OSError:
            return False
        return True

    def _from_inquiry(self) -> None:
        for question in self._inquiry.receive():
            answer = functools.partial(self._answer, question.number)
            if isinstance(question, AskWorkers):
                answer([child.pid for child in self._children.values()])
            elif isinstance(question, AskPool):
                answer(None if self._remote is None else self._remote.pool_use())
            elif self._remote is None:
                answer(self._stacks_of(*self._children))
            else:
                self._remote.ask_stacks(self._stacks_of(*self._children), answer)
        if self._inquiry.ended:  # the trainer goes on to its end
            self._selector.unregister(self._inquiry.fileno())

    def _answer(self, number: int, answer: object) -> None:
        self._inquiry.send(ReportAnswer(number, answer))

    def _from_bridge(self) -> None:
        assert self._remote is not None
        self._handle(self._remote.events())
        if (store := self._remote.store) is not None:
            self._remote.store = None
            self._trainer.send(store)
        if self._remote.broken is not None:
            self._trainer.send(self._remote.broken)
            self._end()

    def _from_worker(self, number: int, child: _ForkedWorker, ended: bool = False) -> None:
        if self._children.get(number) is not child:  # another has taken its place since
            return
        if messages := child.channel.receive():
            self._handle([Heard(number, message) for message in messages])
        if (ended or child.channel.ended) and self._children.get(number) is child:
            self._bury(number)

    def _stacks_of(self, *numbers: int) -> str:
        return self._stacks.read((number, self._children[number].pid) for number in numbers)


def dumped(error: BaseException) -> bytes:
    """Returns an error, pickled for the trainer."""
    return dumps(Failure.of(error, "in the zygote"))
