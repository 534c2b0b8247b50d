"""One zygote, from its start to its end, with all that the trainer holds for it, and the queries to it beside the
units.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time

from stoker._core.machine import reserve
from stoker._core.machine.timer import Timer
from stoker._engine.backends import Assemble, Parts, StartMethod
from stoker._engine.fork import start_zygote
from stoker._engine.fork.births import Births, HelperProcess
from stoker._engine.fork.zygote import Ends
from stoker._engine.machines.cluster import Ray
from stoker._engine.messages import Flushing, Question, ReportAnswer, ToTrainer, WorkerPids
from stoker._engine.process import linux
from stoker._engine.process.channel import Channel, pair
from stoker._engine.process.deadlines import CLOSE, FLUSH, GONE, REAP
from stoker._engine.process.worker_events import MINDER, starting
from stoker._engine.process_guard import allow, time_left
from stoker._engine.supervision.rules import Rules, held_bytes
from stoker._engine.tracebacks import hide_own_frames
from stoker._engine.transport.arena import Board
from stoker._engine.transport.reader import ForkHold, Reader
from stoker._engine.transport.segments import ArenaFiles


class ZygoteHandle:
    """One zygote and all that belongs to it, so that it can be ended without the backend: by garbage, or at exit."""

    def __init__(
        self,
        how: StartMethod,
        workers: int,
        rules: Rules,
        parts: Parts,
        assemble: Assemble,
        cluster: Ray | None = None,
        births: Births | None = None,
    ) -> None:
        self.owner = os.getpid()
        self._bridge: int | None = None  # the pid of the bridge to workers on other machines
        self.workers: list[int] = []
        self._lent: list[object] = []  # memory of tensors that workers open by its name
        with (
            starting(MINDER),
            contextlib.ExitStack() as undo,
            contextlib.ExitStack() as handed_over,
        ):
            reserve.occupy()
            self.arena = ArenaFiles.create()
            undo.callback(self.arena.close)
            board = Board.where_allowed(self.arena[0])
            self.hold = ForkHold()
            undo.callback(self.hold.release)
            ours, theirs = pair()
            undo.callback(ours.close)
            handed_over.callback(theirs.close)
            lifeline, self.lifeline = os.pipe()
            undo.callback(os.close, self.lifeline)
            handed_over.callback(os.close, lifeline)
            asks, answers = pair()
            self.inquiry = QueryChannel(Channel(asks))
            undo.callback(self.inquiry.close)
            handed_over.callback(answers.close)
            self.alarm = Timer()
            undo.callback(self.alarm.close)
            trainer = linux.process_descriptor(self.owner)
            bridge: tuple[socket.socket, ...] = () if cluster is None else pair()
            for end in bridge:
                handed_over.callback(end.close)
            of_bridge = bridge[0].fileno() if bridge else None
            ends = Ends(theirs.fileno(), lifeline, answers.fileno(), trainer, of_bridge, self.arena)
            if ends.trainer is not None:
                handed_over.callback(os.close, ends.trainer)
            if how.forked:
                mine = (ours.fileno(), asks.fileno(), self.lifeline, self.alarm.descriptor, *map(_number, bridge[1:]))
                pid = start_zygote.fork(ends, mine, workers, rules, assemble(parts), self.hold, how.context)
                self._process = HelperProcess(pid)
            else:
                self._process = start_zygote.clean(
                    ends, workers, rules, parts, assemble, how, self._lent, births or Births()
                )
            undo.callback(self._process.end)
            if cluster is not None:  # local workers begin while the dataset is pickled for the others
                from stoker._engine.machines.start_bridge import start_bridge  # here: it pickles

                sent = {**parts, "assemble": assemble}
                local = workers - rules.remote
                self._bridge = start_bridge(bridge[1].fileno(), self.arena, cluster, local, sent, how.once)
                undo.callback(linux.end, self._bridge)
            self.channel: Channel[ToTrainer] = Channel(ours)
            # The limit takes a while to find out, and nothing waits now
            self.reader = Reader(self.arena, held_bytes(rules), board)
            self.status: int | None = None
            self.unopened = 0  # batches that have arrived, and wait in the arena
            self.ended = self.has_answered = False
            self._closed = False
            handed_over.close()
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Returns the zygote's pid; until a template has forked it, the template's."""
        return self._process.pid

    @property
    def descriptor(self) -> int | None:
        """Returns the zygote's pidfd; None without pidfds, and until a template has forked it."""
        return self._process.descriptor

    @property
    def bytes_of_batches(self) -> int:
        """Returns the bytes of its arena; 0 when it is closed, which may be while another thread reports."""
        try:
            return self.arena.reserved_bytes
        except OSError:
            return 0

    def end(self, kill: bool = False) -> None:
        """Ends the zygote and its workers and gives back all that they held. Idempotent; nothing in a forked child."""
        if self._closed:
            return
        self._closed = True
        try:
            self.end_processes(kill)
            if os.getpid() == self.owner:
                self.reader.close()
        finally:
            self.channel.close()
            self.inquiry.close()
            self.alarm.close()
            self._process.close()
            self.arena.close()
            os.close(self.lifeline)
            self.hold.release()
            self._lent.clear()

    def end_processes(self, kill: bool = False) -> None:
        """Ends the zygote and its workers. Batches that have arrived can still be opened. Idempotent."""
        if self.ended:
            return
        self.ended = True
        if os.getpid() != self.owner:
            return
        try:
            seconds = time_left(CLOSE)
            if kill or not seconds:
                self._process.kill()
            else:
                self.channel.hang_up()
            self._await_end(seconds or REAP)
            self._reap_orphans()
            self._end_bridge(GONE)
        except BaseException:  # Ctrl-C once more: then at once
            self._process.kill()
            self._process.reap(GONE)
            self._end_bridge(0.0)
            raise

    def _end_bridge(self, seconds: float) -> None:
        """Waits for the bridge's end, which follows that of the zygote."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None and linux.reap(bridge, seconds) is None and not linux.reaped(bridge):
            linux.end(bridge)

    def _await_end(self, seconds: float) -> None:
        """Waits this long for the zygote's end; longer if it reports workers with duties at their end."""
        until, channel, descriptor = time.monotonic() + seconds, self.channel, self.descriptor
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        while ready := [number for number, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)]:
            if descriptor in ready:
                break
            if self._hear_last():
                until = time.monotonic() + FLUSH + CLOSE
                allow(FLUSH)
            if channel.ended:
                if descriptor is None:
                    break
                poll.unregister(channel.fileno())
        else:
            self._process.kill()
        self.status = self._process.reap(GONE)

    def _hear_last(self) -> bool:
        """Takes the zygote's messages at its end; returns whether it waits for workers with duties."""
        flushing = False
        for message in self.channel.receive():
            if isinstance(message, WorkerPids):
                self.workers = message.pids
            flushing |= isinstance(message, Flushing)
        return flushing

    def _reap_orphans(self) -> None:
        """Reaps workers of a killed zygote: they fall to PID 1, or to this process if it is the subreaper."""
        if self.status == 0:
            return  # it has reaped them, and their numbers may be others' by now
        self._hear_last()
        for pid in self.workers:
            linux.reap(pid, REAP)


def _number(end: socket.socket) -> int:
    return end.fileno()


def end_all(lives: list[ZygoteHandle]) -> None:
    """Ends all lives; called by a finalizer."""
    for life in lives:
        try:
            life.end()
        except KeyboardInterrupt as error:  # which is printed
            hide_own_frames(error, keep_first=True)
            raise


class QueryChannel:
    """The trainer's end. Thread safe: another thread's question waits for its turn.

    Args:
        channel: to the zygote, for nothing else.
    """

    def __init__(self, channel: Channel[ReportAnswer]) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # among threads of the trainer alone
        self._number = 0

    def ask(self, question: type[Question], seconds: float) -> object:
        """Returns the answer; None if there is none within this time, or the zygote has ended."""
        until = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):  # the handler of a signal may stand above a question
            return None
        try:
            return self._answer(question, until)
        except (OSError, ValueError):  # it was closed meanwhile
            return None
        finally:
            self._lock.release()

    def _answer(self, question: type[Question], until: float) -> object:
        self._number += 1
        self._channel.send(question(self._number))
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        while not self._channel.ended and (left := until - time.monotonic()) > 0:
            poll.poll(left * 1000)
            for report in self._channel.receive():
                if report.number == self._number:  # else it came too late for an earlier question
                    return report.answer
        return None

    def close(self) -> None:
        """No more questions."""
        self._channel.close()
