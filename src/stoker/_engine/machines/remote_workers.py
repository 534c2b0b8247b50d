"""The zygote's side of the bridge: carries out the supervisor's commands for remote workers, and says what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, cast

from stoker._engine.activity import IDLE, Activity, Position
from stoker._engine.commands import (
    Command,
    Dismiss,
    Drains,
    Event,
    Exited,
    Heard,
    Inspect,
    Inspected,
    Kill,
    Send,
    Spawn,
    Started,
    StartFailed,
)
from stoker._engine.messages import (
    Activities,
    Broken,
    EndRemote,
    ForRemote,
    FromBridge,
    FromRemote,
    FromWorker,
    InspectRemote,
    Leave,
    PoolUse,
    RemoteDrains,
    RemoteExited,
    RemoteInspected,
    RemoteStarted,
    RemoteStartFailed,
    StartRemote,
    StoreUse,
    ToWorker,
    UnitDone,
    packed,
    unpacked,
)
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import STACKS


class _StacksAsked(NamedTuple):
    """Stacks that were asked for.

    Attributes:
        question: number of the question to each worker.
        missing: workers that have not answered.
        texts: the answers.
        until: time from which on no more are awaited.
        then: is called with all of them.
    """

    question: int
    missing: set[int]
    texts: list[str]
    until: float
    then: Callable[[str], None]


class BridgeEndedError(RuntimeError):
    """The bridge has ended, and the zygote with it."""


class RemoteWorkers:
    """The workers on other machines, from a number on.

    Args:
        channel: to the bridge.
        first: number of the first of them.

    Attributes:
        broken: the message with which the bridge ends the run, or None.
        store: the latest of its kind, for the trainer; None if there is no new one.
    """

    def __init__(self, channel: Channel[FromBridge], first: int) -> None:
        self.channel = channel
        self.broken: Broken | None = None
        self.store: StoreUse | None = None
        self._first = first
        self._marks: dict[int, Position] = {}
        self._duties: set[int] = set()
        self._inspections: dict[int, tuple[int, int | None, float]] = {}  # worker → question, unit, seconds
        self._questions = 0
        self._uses: dict[int, PoolUse] = {}
        self._names: dict[int, str] = {}  # of those that have started: process and host
        self._asked: _StacksAsked | None = None

    def has(self, worker: int) -> bool:
        """Whether a worker is one of them."""
        return worker >= self._first

    def has_duties(self, worker: int) -> bool:
        """Whether a worker has something to do at its end."""
        return worker in self._duties

    def pool_use(self) -> tuple[int, float, float]:
        """Returns the ranks in the pool now, and the seconds of turns in its processes: of this rank, and of all."""
        uses = [*self._uses.values()]
        return max((use.ranks for use in uses), default=0), sum(use.own for use in uses), sum(use.all for use in uses)

    def send(self, worker: int, message: ToWorker) -> None:
        """Sends a message to a worker."""
        self.channel.send(ForRemote(worker, packed(message)))

    def carries_out(self, command: Command) -> bool:
        """Carries out a command if it is for one of them; returns whether it is."""
        if not isinstance(command, (Send, Spawn, Dismiss, Kill, Inspect)) or not self.has(command.worker):
            return False
        worker = command.worker
        match command:
            case Send():
                self.send(worker, command.message)
            case Spawn():
                self._marks[worker] = IDLE
                self._duties.discard(worker)
                self.channel.send(StartRemote(worker))
            case Dismiss():
                self.send(worker, Leave())
            case Kill():
                self.channel.send(EndRemote(worker))
            case Inspect():
                self._questions += 1
                self._inspections[worker] = self._questions, command.unit, command.seconds
                self.channel.send(InspectRemote(worker, self._questions))
        return True

    def ask_stacks(self, local: str, then: Callable[[str], None]) -> None:
        """Calls a function with the stacks of the local workers, and of all others that answer before long: at once, or
        from a later `events()`.
        """
        self._questions += 1
        self._asked = _StacksAsked(
            self._questions, {*self._names}, [local] if local else [], time.monotonic() + STACKS, then
        )
        for worker in self._names:
            self.channel.send(InspectRemote(worker, self._questions))
        self._answer_stacks()

    def _answer_stacks(self) -> None:
        asked = self._asked
        if asked is not None and (time.monotonic() >= asked.until or not asked.missing & self._names.keys()):
            self._asked = None
            asked.then("\n".join(asked.texts))

    def events(self) -> list[Event]:
        """Returns what the bridge has said.

        Raises:
            BridgeEndedError: the bridge has ended.
        """
        events: list[Event] = []
        for message in self.channel.receive():
            match message:
                case FromRemote(worker, wire):
                    heard = cast("FromWorker", unpacked(wire))
                    if isinstance(heard, UnitDone):
                        self._inspections.pop(worker, None)  # it goes on
                    events.append(Heard(worker, heard))
                case Activities(worker, place, activity, duties):
                    self._marks[worker] = Position.of(place, activity)
                    (self._duties.add if duties else self._duties.discard)(worker)
                case RemoteStarted(worker, process):
                    self._names[worker] = process
                    events.append(Started(worker, process))
                case RemoteStartFailed(worker, why):
                    events.append(StartFailed(worker, OSError(f"worker {worker} could not be started by Ray: {why}")))
                case RemoteExited(worker, code, place, activity, stack, is_lost):
                    self._inspections.pop(worker, None)
                    self._names.pop(worker, None)
                    self._uses.pop(worker, None)
                    position = Position.of(place, activity)
                    if position.activity is Activity.TURN:  # with a unit that it has not begun
                        position = IDLE
                    events.append(Exited(worker, code, position, stack, is_lost))
                case RemoteDrains(worker, reason):
                    events.append(Drains(worker, reason))
                case PoolUse(worker):
                    self._uses[worker] = message
                case RemoteInspected():
                    events += self._inspected(message)
                case Broken():
                    self.broken = message
                case StoreUse():
                    self.store = message
        self._answer_stacks()
        if self.channel.ended and self.broken is None:
            raise BridgeEndedError(
                "Its bridge to the workers on other machines has ended. Ray ends it where the head node of the "
                "cluster, or this machine's node, is gone."
            )
        return events

    def _inspected(self, message: RemoteInspected) -> list[Event]:
        worker, question, stack, place, activity = message
        if self._asked is not None and self._asked.question == question:
            self._asked.missing.discard(worker)
            text = stack.partition("\n")[2]  # behind the agent's own name for it
            self._asked.texts.append(f"Worker {worker} (pid {self._names.get(worker, 'unknown')}):\n{text}")
            return []
        asked = self._inspections.get(worker)
        if asked is None or asked[0] != question:
            return []
        del self._inspections[worker]
        return [Inspected(worker, asked[1], asked[2], Position.of(place, activity), stack)]
