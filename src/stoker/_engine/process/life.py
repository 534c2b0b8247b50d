"""One zygote, from its birth to its end, with all that the trainer holds for it."""

from __future__ import annotations

import contextlib
import os
import select

from stoker._engine import ending
from stoker._engine.process import birth, fates, kernel
from stoker._engine.process.alarm import Alarm
from stoker._engine.process.birth import Assemble, Parts
from stoker._engine.process.channel import Channel, pair
from stoker._engine.process.deadlines import CLOSE, REAP
from stoker._engine.process.inquiry import Inquiry
from stoker._engine.process.zygote import Ends
from stoker._machine import memory, standard
from stoker._supervision.rules import Rules
from stoker._transport import segments
from stoker._transport.board import Board
from stoker._transport.reader import ForkHold, Reader

SHARE_OF_MEMORY = 0.5
"""Share of the memory that is free at the start which batches in the user's hands may take before they are copied."""


class Life:
    """One zygote and all that belongs to it, so that it can be ended without the backend: by garbage, or at exit."""

    def __init__(self, forked: bool, workers: int, rules: Rules, parts: Parts, assemble: Assemble) -> None:
        self.owner = os.getpid()
        self.workers: list[int] = []
        with fates.starting(fates.MINDER), contextlib.ExitStack() as undo, contextlib.ExitStack() as handed_over:
            standard.occupy()
            self.arena = segments.create()
            undo.callback(os.close, self.arena)
            board = Board.where_allowed(self.arena)
            self.hold = ForkHold()
            undo.callback(self.hold.release)
            ours, theirs = pair()
            undo.callback(ours.close)
            handed_over.callback(theirs.close)
            lifeline, self.lifeline = os.pipe()
            undo.callback(os.close, self.lifeline)
            handed_over.callback(os.close, lifeline)
            asks, answers = pair()
            self.inquiry = Inquiry(Channel(asks))
            undo.callback(self.inquiry.close)
            handed_over.callback(answers.close)
            self.alarm = Alarm()
            undo.callback(self.alarm.close)
            trainer = kernel.process_descriptor(self.owner)
            ends = Ends(theirs.fileno(), self.arena, lifeline, answers.fileno(), trainer)
            if ends.trainer is not None:
                handed_over.callback(os.close, ends.trainer)
            if forked:
                mine = (ours.fileno(), asks.fileno(), self.lifeline, self.alarm.descriptor)
                self.pid = birth.fork(ends, mine, workers, rules, assemble(parts), self.hold)
            else:
                self.pid = birth.clean(ends, workers, rules, parts, assemble)
            undo.callback(kernel.end, self.pid)
            self.descriptor = kernel.process_descriptor(self.pid)
            if self.descriptor is not None:
                undo.callback(os.close, self.descriptor)
            self.channel = Channel(ours)
            # How much may be held takes a while to find out, and nobody waits now
            self.reader = Reader(self.arena, held_bytes(rules), board)
            self.status: int | None = None
            self.unopened = 0  # batches that have arrived, and wait in the arena
            self.ended = self.has_answered = False
            self._closed = False
            handed_over.close()
            undo.pop_all()

    @property
    def bytes_of_batches(self) -> int:
        """What its arena holds; nothing when it is closed, which may be while another thread reports."""
        try:
            return os.fstat(self.arena).st_blocks * 512
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
            if self.descriptor is not None:
                os.close(self.descriptor)
            os.close(self.arena)
            os.close(self.lifeline)
            self.hold.release()

    def end_processes(self, kill: bool = False) -> None:
        """Ends the zygote and its workers. Batches that have arrived can still be opened. Idempotent."""
        if self.ended:
            return
        self.ended = True
        if os.getpid() != self.owner:
            return
        try:
            seconds = ending.time_left(CLOSE)
            if kill or not seconds:
                kernel.kill(self.pid, self.descriptor)
            else:
                self.channel.hang_up()
            self._await_end(seconds or REAP)
            self._reap_orphans()
        except BaseException:  # Ctrl-C once more: then at once
            kernel.kill(self.pid, self.descriptor)
            kernel.reap(self.pid, REAP)
            raise

    def _await_end(self, seconds: float) -> None:
        if self.descriptor is not None:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            if not poll.poll(seconds * 1000):
                kernel.kill(self.pid, self.descriptor)
                poll.poll(REAP * 1000)
            self.status = kernel.reap(self.pid, REAP)
            return
        self.status = kernel.reap(self.pid, seconds)
        if self.status is None:
            kernel.kill(self.pid)
            self.status = kernel.reap(self.pid, REAP)

    def _reap_orphans(self) -> None:
        """Workers whose zygote was killed fall to PID 1, or to a subreaper: if that is us, nobody else reaps them."""
        if self.status == 0:
            return  # it has reaped them, and their numbers may be others' by now
        for message in self.channel.receive():
            if message[0] == "workers":
                self.workers = message[1]
        for pid in self.workers:
            kernel.reap(pid, REAP)


def held_bytes(rules: Rules) -> int:
    """How much of the arena batches in the user's hands may take before they are copied out of it."""
    budget = rules.memory_budget
    return int(memory.available().bytes * SHARE_OF_MEMORY) if budget is None else budget // 4


def end_all(lives: list[Life]) -> None:
    """Ends them all; what a finalizer calls."""
    for life in lives:
        life.end()
