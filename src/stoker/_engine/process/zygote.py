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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stoker import errors
from stoker._engine.base import Failure, Recipe
from stoker._engine.process import immortal, kernel, settle, worker
from stoker._engine.process.channel import Channel, Message, pair
from stoker._engine.process.deadlines import LEAVE, REAP, SICK_AFTER, STACKS
from stoker._engine.process.lending import Lending
from stoker._supervision.dispatch import Dispatch
from stoker._supervision.restarts import Restarts
from stoker._transport import leaves, segments
from stoker._transport.arena import Arena

if TYPE_CHECKING:
    from stoker._engine.process.clean import Parcel


class Ends(NamedTuple):
    """The descriptors that a zygote is born with."""

    channel: int
    """Socket to the trainer."""
    arena: int
    """The arena's shared file."""
    lifeline: int
    """A pipe whose other end the trainer holds."""
    trainer: int | None = None
    """pidfd of the trainer, where there is such a thing."""


class _Child:
    """One worker, as the zygote sees it."""

    def __init__(self, pid: int, channel: Channel) -> None:
        self.pid = pid
        self.channel = channel
        self.descriptor = kernel.process_descriptor(pid)
        self.cpu = 0.0


class Zygote:
    """The loop of the zygote.

    Args:
        channel: to the trainer.
        ends: what it was born with.
        workers: how many to fork.
        restarts: how many of their deaths to survive.
        recipe: makes the job in each worker.
        collecting: whether workers run Python's garbage collector, as the trainer does.
    """

    def __init__(
        self, channel: Channel, ends: Ends, workers: int, restarts: int, recipe: Recipe, collecting: bool
    ) -> None:
        self._trainer = channel
        self._trainer_descriptor = ends.trainer
        self._arena = ends.arena
        self._recipe = recipe
        self._collecting = collecting
        self._dispatch = Dispatch(workers)
        self._lending = Lending(Arena(ends.arena), self._dispatch)
        self._restarts = Restarts(restarts)
        self._due: dict[int, float] = {}  # number of a dead worker → when it is replaced
        self._children: dict[int, _Child] = {}
        self._work: dict[int, bytes] = {}  # of units that are not answered
        self._streams: dict[int, bytes] = {}  # worker → where its stream stood behind its last answer
        self._starved_for: int | None = None  # the unit of which the trainer was told that it waits for memory
        self._dropped_below = 0
        self._answered = 0
        self._born = time.monotonic()
        self._sick_since: float | None = None
        self._stacks = segments.create()
        self._selector = selectors.DefaultSelector()
        self._full: set[int] = set()  # sockets that are watched for room to write
        self._workers = workers

    def run(self) -> None:
        """Until the trainer or its iterator ends; does not return."""
        if immortal.worth_it():
            immortal.mark_heap()
        self._watch(self._trainer.fileno(), self._from_trainer)
        if self._trainer_descriptor is not None:
            self._watch(self._trainer_descriptor, self._end)
        for number in range(self._workers):
            self._fork(number)
            self._from_trainer()  # the first unit does not wait for the last worker
        self._trainer.send("workers", [child.pid for child in self._children.values()])
        while True:
            for key, _ in self._selector.select(self._next_look()):
                key.data()
            self._replace()
            self._look_for_sickness()
            self._flush()

    def _watch(self, descriptor: int, call: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def _flush(self) -> None:
        """Sends what is queued, and asks to be woken where the peer was not ready."""
        for channel in (self._trainer, *(child.channel for child in self._children.values())):
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
        try:
            pid = os.fork()
        except OSError as error:
            refusal = errors.WorkerStartError(
                f"could not start worker {number} of {self._workers}: {error}. The limit on processes (`ulimit -u`, or "
                "the container's `pids.max`) or the memory is reached: use fewer workers, or raise it."
            )
            self._trainer.send("broken", _dumped(refusal))
            self._end()
        if pid == 0:
            settle.worker(number, me, self._stacks, self._collecting)
            self._selector.close()
            self._trainer.close()
            ours.close()
            for child in self._children.values():
                child.channel.close()
                if child.descriptor is not None:
                    os.close(child.descriptor)
            worker.main(number, Channel(theirs), self._arena, self._trainer_descriptor, self._recipe)
        theirs.close()
        child = self._children[number] = _Child(pid, Channel(ours))
        self._watch(child.channel.fileno(), lambda: self._from_worker(number))
        if child.descriptor is not None:
            self._watch(child.descriptor, lambda: self._from_worker(number, ended=True))
        if number in self._streams:  # it goes on where another one stood
            child.channel.send("resume", self._streams[number])
        self._dispatch.joined(number)

    def _bury(self, number: int) -> None:
        """The worker has ended: its units are named to the trainer, its slots are free."""
        child = self._children.pop(number)
        self._selector.unregister(child.channel.fileno())
        self._full.discard(child.channel.fileno())
        if child.descriptor is not None:
            self._selector.unregister(child.descriptor)
            os.close(child.descriptor)
        child.channel.close()
        kernel.kill(child.pid)  # its socket may have closed before it ended
        status = kernel.reap(child.pid, REAP)
        lost = self._dispatch.died(number)
        self._lending.lost(number, lost)
        now = time.monotonic()
        pause = self._restarts.died(lost[0] if lost else None, now)
        if pause is None:
            self._trainer.send("died", number, child.pid, status, lost, self._restarts.count)
            return
        self._dispatch.requeued(lost)
        self._forget_dropped()
        self._due[number] = now + pause
        self._trainer.send("replaced", number, child.pid, status, lost)

    def _replace(self) -> None:
        """Forks those who are to take a dead worker's place, when it is time."""
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._fork(number)
            self._trainer.send("workers", [child.pid for child in self._children.values()])
        self._hand_out()

    def _end(self) -> None:
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
                _, unit, number, blob, freed = message
                self._put_back(freed)
                self._work[unit] = blob
                self._dispatch.submitted(unit, number)
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
            elif name == "pulse":
                self._trainer.send("alive")
            elif name == "stacks":
                self._trainer.send("stacks", self._read_stacks())
        if self._trainer.ended:
            self._end()
        self._hand_out()

    def _from_worker(self, number: int, ended: bool = False) -> None:
        child = self._children.get(number)
        if child is None:
            return
        for message in child.channel.receive():
            if message[0] == "answer":
                self._take_answer(number, message)
            else:
                self._lending.asked(number, *message[1:])
        if ended or child.channel.ended:
            self._bury(number)
        if self._lending.is_asked:
            self._grant()  # who waited for earlier units to have their slots
        self._hand_out()

    def _take_answer(self, number: int, message: Message) -> None:
        _, unit, kind, value, held, seconds, said = message
        self._answered += 1
        self._dispatch.answered(number, unit, seconds)
        self._restarts.answered(unit)
        self._work.pop(unit, None)
        if said[1] is not None:
            self._streams[number] = said[1]
        slot = self._lending.answered(unit, kind, value, held)
        if unit < self._dropped_below:
            self._lending.put_back([] if slot is None else [slot.number])
            kind, value, slot = "dropped", None, None
        self._trainer.send("answer", unit, kind, value, slot and tuple(slot), number, said)

    def _drop(self, before: int) -> None:
        self._dropped_below = before
        self._forget_dropped()

    def _forget_dropped(self) -> None:
        for unit in self._dispatch.dropped(self._dropped_below):
            self._work.pop(unit, None)

    def _hand_out(self) -> None:
        for number, unit in self._dispatch.hand_out():
            slot = self._lending.offer(unit)
            self._children[number].channel.send("unit", unit, self._work[unit], slot and tuple(slot))

    # The arena

    def _grant(self, hungry_for: int | None = None) -> None:
        """Gives waiting workers their slots; tells the trainer when the earliest must wait, and when that is over."""
        for number, reply in self._lending.grant(hungry_for):
            self._children[number].channel.send("slot", reply if isinstance(reply, str) else tuple(reply))
        starved_for = self._lending.starved_for
        if starved_for is not None and starved_for != self._starved_for:
            self._trainer.send("starved")
            self._starved_for = starved_for
        elif self._starved_for is not None and not self._lending.is_asked:
            self._trainer.send("fed")
            self._starved_for = None

    def _put_back(self, numbers: list[int]) -> None:
        self._lending.put_back(numbers)
        if numbers and self._lending.is_asked:
            self._grant()

    # Sick births

    def _next_look(self) -> float | None:
        """Seconds until the next look at workers that have not yet answered anything; None when there is no need."""
        watching = not self._answered and any(self._dispatch.held(number) for number in self._children)
        waits = [max(0.0, due - time.monotonic()) for due in self._due.values()]
        return min([*waits, SICK_AFTER / 5] if watching else waits, default=None)

    def _look_for_sickness(self) -> None:
        """All workers wait for locks since birth, and use no CPU: somebody held a lock when the zygote was forked."""
        if self._answered or self._sick_since == 0.0:
            return
        busy = [child for number, child in self._children.items() if self._dispatch.held(number)]
        idle = bool(busy)
        for child in busy:
            used = kernel.cpu_seconds(child.pid)
            if used != child.cpu or not kernel.waits_for_a_lock(child.pid):
                idle = False
            child.cpu = used
        if not idle:
            self._sick_since = None
        elif self._sick_since is None:
            self._sick_since = time.monotonic()
        elif time.monotonic() - self._sick_since > SICK_AFTER:
            self._sick_since = 0.0
            self._trainer.send("sick", self._read_stacks())

    def _read_stacks(self) -> str:
        """The Python stacks of all workers, as they write them on a signal."""
        out = []
        for number, child in self._children.items():
            start = os.fstat(self._stacks).st_size
            os.kill(child.pid, settle.STACKS_SIGNAL)
            text = self._new_text(start)
            out.append(f"Worker {number} (pid {child.pid}):\n{text}")
        return "\n".join(out)

    def _new_text(self, start: int) -> str:
        """What a worker has written behind `start`, once it has come to rest."""
        until = time.monotonic() + STACKS
        size = start
        while time.monotonic() < until:
            time.sleep(0.01)
            before, size = size, os.fstat(self._stacks).st_size
            if size == before > start:
                break
        return os.pread(self._stacks, size - start, start).decode(errors="replace")


def _dumped(error: BaseException) -> bytes:
    return leaves.dumps(Failure.of(error, "in the zygote"), lambda leaf: None)


def main(
    ends: Ends, make: Callable[[], tuple[Recipe, int, int, bool]], signals: set[signal.Signals | int] | None = None
) -> None:
    """The zygote's whole life, in the process that was born for it; does not return.

    Args:
        ends: what it was born with.
        make: gives the recipe, the number of workers, how many of their deaths are survived, and whether they run
            Python's garbage collector.
        signals: the mask of blocked signals to go back to, now that no handler of the trainer is left.
    """
    kernel.die_with_writers(ends.lifeline)
    channel = Channel(socket.socket(fileno=ends.channel))
    try:
        settle.zygote()
        if signals is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        recipe, workers, restarts, collecting = make()
        Zygote(channel, ends, workers, restarts, recipe, collecting).run()
    except BaseException as error:
        channel.send("broken", _dumped(error))
        until = time.monotonic() + REAP
        while channel.unsent and time.monotonic() < until:
            time.sleep(0.001)
            channel.flush()
    os._exit(1)


def run_clean(parcel: Parcel, descriptors: Sequence[int]) -> None:
    """Entry of a clean interpreter: what was sent is opened here, so that what goes wrong can be reported."""

    def make() -> tuple[Recipe, int, int, bool]:
        parts = parcel.open()
        settle.write_out()  # else every worker would print again what was printed meanwhile
        assemble, workers, restarts = (parts.pop(name) for name in ("assemble", "workers", "restarts"))
        return assemble(parts), workers, restarts, True

    main(Ends(*descriptors), make)
