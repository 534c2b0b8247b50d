"""The process of a pool on one host: holds the parts once, forks a worker for each rank, and gives them their turns.

It is a clean interpreter, started by the actor, and its loop is one thread. Modules are imported and arrays are mapped
once, and a dataset whose class declares `unpickle_once` is unpickled here; any other is unpickled by each worker, as
with clean workers on the trainer's machine. A worker ends as a clean interpreter does, and its parent reaps it.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from multiprocessing import spawn
from typing import NamedTuple, TypeVar

from stoker._engine.activity import ACTIVITY, Activity, Mark
from stoker._engine.backend import JobFactory
from stoker._engine.backends import OWN, Parts
from stoker._engine.machines.pool.pool_parts import number_as
from stoker._engine.machines.pool.turns import Turns
from stoker._engine.machines.remote_worker import RemoteWorker, Role, set_up, source_of
from stoker._engine.messages import FromWorker, SlotGiven, ToWorker, Unit, UnitDone
from stoker._engine.process import linux, process_setup
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import REAP
from stoker._engine.process.worker import work
from stoker._engine.serialize.payload import Payload

M = TypeVar("M", Unit, SlotGiven)

NUMBER, SIZE_OF = struct.Struct("<q"), struct.Struct("<Q")

WANTS, DONE, BEGINS, END = b"?", b".", b"!", b"x"
"""A worker wants its turn, and ends it; its parent begins it; the actor has the worker killed."""

TOLD = 1.0
"""Seconds between two records of the shares."""

SHARES = 8
"""Index of the words, in the memory of a worker's mark, for `PoolUse`, in microseconds."""


class PoolPlan(NamedTuple):
    """What the process is told at its start."""

    once: bool
    """Whether it unpickles the dataset, for all workers."""
    classes: tuple[str, ...]
    """cloudpickle's numbers in the pickle (`PoolParts`)."""


class Seat(NamedTuple):
    """What a new worker is told."""

    number: int
    place: str
    preparation: dict[str, object]
    settings: bytes
    classes: tuple[str, ...]


class PooledWorker(RemoteWorker):
    """A worker that begins a unit when it is its turn, and hands the turn on before it sends the batch.

    Args:
        role: what it is told at its start.
        channel: to the bridge of its rank.
        turn: to the process of the pool.
        mark: receives its place and activity.
    """

    def __init__(self, role: Role, channel: Channel[ToWorker], turn: socket.socket, mark: Mark) -> None:
        super().__init__(role, channel, mark)
        self._turn = turn
        self._has_turn = False
        self._either = select.poll()
        self._either.register(turn.fileno(), select.POLLIN)
        self._either.register(channel.fileno(), select.POLLIN)

    def send(self, message: FromWorker) -> None:
        """Sends a message, and the batch that belongs to it."""
        if self._has_turn and isinstance(message, UnitDone):
            self._has_turn = False
            self._say(DONE)
        super().send(message)

    def _next(self, kind: type[M]) -> M:
        message = super()._next(kind)
        if kind is Unit:
            self._await_turn()
        return message

    def _await_turn(self) -> None:
        self._mark[ACTIVITY] = Activity.TURN
        self._say(WANTS)
        while not self._has_turn:
            for descriptor, _ in self._either.poll():
                if descriptor == self._turn.fileno():
                    if not self._turn.recv(1):
                        raise process_setup.Leaving(1)
                    self._has_turn = True
                else:
                    self._keep(self.receive())
        self._mark[ACTIVITY] = Activity.IDLE

    def _say(self, word: bytes) -> None:
        try:
            self._turn.send(word)
        except OSError:  # the process of the pool has ended, or the user's code has closed our descriptors
            raise process_setup.Leaving(1) from None


class _Tenant:
    """One worker, as the process of the pool sees it."""

    def __init__(self, pid: int, actor: socket.socket, turn: socket.socket, shares: memoryview, before: float) -> None:
        self.pid, self.actor, self.turn = pid, actor, turn
        self.shares, self.before = shares, before  # seconds of turns before it was there
        self.descriptor = linux.process_descriptor(pid)
        self.is_killed = False

    def close(self) -> None:
        self.actor.close()
        self.turn.close()
        if self.descriptor is not None:
            os.close(self.descriptor)


class PoolProcess:
    """The loop of the process.

    Args:
        actor: the socket on which it asks for workers.
        opened: returns the parts, in the process that calls it.
        classes: cloudpickle's numbers in the pickle.
    """

    def __init__(self, actor: socket.socket, opened: Callable[[], Parts], classes: tuple[str, ...]) -> None:
        self._actor = actor
        self._opened = opened
        self._classes = classes
        self._turns = Turns()
        self._children: dict[int, _Tenant] = {}  # by the number in which they were forked
        self._count = 0
        self._told_at = 0.0

    def run(self) -> Callable[[], None]:
        """Runs until the actor has ended. Returns in each worker that is forked: its work."""
        while True:
            poll = select.poll()
            poll.register(self._actor, select.POLLIN)
            watched: dict[int, tuple[int, Callable[[int], None]]] = {}
            for number, child in self._children.items():
                calls: dict[int | None, Callable[[int], None]] = {
                    child.turn.fileno(): self._from_worker,
                    child.actor.fileno(): self._from_actor,
                    child.descriptor: self._bury,
                }
                for descriptor, call in calls.items():
                    if descriptor is not None:
                        poll.register(descriptor, select.POLLIN)
                        watched[descriptor] = number, call
            while self._children.keys() == {number for number, _ in watched.values()}:
                patience = self._turns.patience(time.monotonic())
                for descriptor, _ in poll.poll(1000 * (TOLD if patience is None else min(patience, TOLD))):
                    if descriptor == self._actor.fileno():
                        if (works := self._seat()) is not None:
                            return works
                        break
                    number, call = watched[descriptor]
                    if number in self._children:
                        call(number)
                self._hand_out()

    def _hand_out(self) -> None:
        now = time.monotonic()
        for number in self._turns.next(now):
            with contextlib.suppress(OSError):  # its end is read elsewhere
                self._children[number].turn.send(BEGINS)
        if now >= self._told_at + TOLD:
            self._told_at = now
            for number, child in self._children.items():
                child.shares[0] = len(self._children)
                child.shares[1] = int(1e6 * self._turns.seconds.get(number, 0.0))
                child.shares[2] = int(1e6 * (self._turns.total - child.before))

    def _from_worker(self, number: int) -> None:
        child, words = self._children[number], b""
        with contextlib.suppress(OSError):
            words = child.turn.recv(16)
        if not words:
            self._bury(number)
        for at in range(len(words)):
            if words[at : at + 1] == WANTS:
                self._turns.wants(number)
            else:
                self._turns.done(number, time.monotonic())

    def _from_actor(self, number: int) -> None:
        """The actor has the worker killed, or has left it alone."""
        child = self._children[number]
        child.is_killed = True
        linux.kill(child.pid)
        self._bury(number)

    def _bury(self, number: int) -> None:
        """Reaps a worker, and tells the actor how it has ended."""
        child = self._children.pop(number)
        self._turns.ended(number, time.monotonic())
        went_on = not linux.is_ending(child.pid)
        linux.kill(child.pid)  # its socket may have closed before it ended
        status = linux.reap(child.pid, REAP)
        if went_on and not child.is_killed and status == -signal.SIGKILL:
            status = linux.CLOSED
        with contextlib.suppress(OSError):
            child.actor.send(NUMBER.pack(-signal.SIGKILL if status is None else status))
        child.close()

    def _seat(self) -> Callable[[], None] | None:
        """Forks a worker; returns its work in it, and None here."""
        head, descriptors, _, _ = socket.recv_fds(self._actor, SIZE_OF.size, 4)
        if not head:  # the actor has ended
            for child in self._children.values():
                linux.kill(child.pid)
            os._exit(0)
        seat: Seat = pickle.loads(_exactly(self._actor, SIZE_OF.unpack(head)[0]))
        data, marks, stacks, actors = descriptors
        ours, theirs = socket.socketpair()
        actor = socket.socket(fileno=actors)
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            self._let_go()
            actor.close()
            ours.close()
            return lambda: self._work(seat, me, data, marks, stacks, theirs)
        theirs.close()
        os.close(data)
        os.close(stacks)
        shares = memoryview(mmap.mmap(marks, 128)).cast("q")[SHARES:]
        os.close(marks)
        if pid < 0:  # there is no memory for it
            ours.close()
            actor.close()
            return None
        linux.die_first(pid)
        with contextlib.suppress(OSError):  # the rank has left meanwhile: its end is read below
            actor.send(NUMBER.pack(pid))
        self._count += 1
        self._children[self._count] = _Tenant(pid, actor, ours, shares, self._turns.total)
        return None

    def _let_go(self) -> None:
        """Closes what a worker that was just forked has no part in."""
        self._actor.close()
        for child in self._children.values():
            child.close()
        self._children.clear()

    def _work(self, seat: Seat, parent: int, data: int, marks: int, stacks: int, turn: socket.socket) -> None:
        linux.die_with_parent(parent)
        spawn.prepare({name: value for name, value in seat.preparation.items() if not name.startswith("init_main")})
        role = Role(seat.number, parent, seat.place)
        mark = set_up(role, marks, stacks)
        works = PooledWorker(role, Channel(socket.socket(fileno=data)), turn, mark)

        def open_parts() -> JobFactory:
            parts = {**self._opened(), OWN: pickle.loads(seat.settings)}
            number_as(self._classes, seat.classes)
            factory: JobFactory = parts.pop("assemble")(parts)
            return factory

        work(lambda: works.open(source_of(role, open_parts)), works.bye, stacks)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        if not (more := connection.recv(size - len(found))):
            raise ConnectionError("the actor has ended")
        found += more
    return bytes(found)


def run(parcel: Payload, descriptors: Sequence[int | None]) -> None:
    """Entry of the process, and in the end of each worker that it forks."""
    actor, lifeline = (int(number) for number in descriptors if number is not None)
    linux.die_with_writers(lifeline)
    process_setup.one_thread()
    plan: PoolPlan = parcel.prepare()
    linux.name_process("stoker-pool")
    opened: Callable[[], Parts] = parcel.open
    if plan.once:
        opened = _opened_once(parcel)
    gc.freeze()
    works = PoolProcess(socket.socket(fileno=actor), opened, plan.classes).run()
    os.close(lifeline)
    works()


def _opened_once(parcel: Payload) -> Callable[[], Parts]:
    try:
        parts = parcel.open()
    except Exception as error:
        failed = error

        def fail() -> Parts:
            raise failed

        return fail
    return lambda: parts
