"""The starts of workers on other machines: each is placed, placed again where its host is lost or silent, and reported
when it is late. A part of the bridge's loop, which has the connections.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from stoker import errors
from stoker._engine.backend import Failure
from stoker._engine.machines.agent import CONNECTING, TOKEN, AgentOrder
from stoker._engine.machines.cluster import Ray
from stoker._engine.machines.placement import (
    NOBODY,
    UNSAID,
    Connected,
    Draining,
    Ended,
    Launcher,
    Reached,
    Report,
    Shortage,
    Unreachable,
)
from stoker._engine.machines.pool.pool_parts import PoolOrder, RankParts
from stoker._engine.machines.remote import Remote
from stoker._engine.messages import (
    Broken,
    EndRemote,
    InspectRemote,
    RemoteDrains,
    RemoteExited,
    RemoteStarted,
    RemoteStartFailed,
    StoreUse,
    ToAgent,
    ToBridge,
)
from stoker._engine.process import linux
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import OPENED
from stoker._engine.process.worker import dumps

SILENT = 10.0
"""Seconds without a sign of life after which a worker counts as lost: its host is stopped, or the network is down."""

ASKED_AGAIN = 5.0
"""Seconds after which a worker that is still without a place is reported again, while it waits for one."""

TRIED_AGAIN = 1.0
"""Seconds after which a worker that Ray could not start is placed again at once, and not reported."""

REFUSED = "That is an argument of stoker.Ray(...), which Ray refuses: see its runtime_env and resources."

ADVICE = {
    "Version mismatch": "Install the same versions of Ray and Python on all machines.",
    "ObjectStoreFull": "The dataset travels through Ray's object store: keep large data in files, or start the nodes "
    "with a larger one (`ray start --object-store-memory=BYTES`).",
    "AuthenticationError": "The cluster asks for Ray's token: copy ~/.ray/auth_token of the head node to all machines, "
    "and start nodes and trainer with RAY_AUTH_MODE=token.",
    NOBODY: "Is that the head node's address (`ray start --head` prints it, with the port), and does a firewall let "
    "that port through? If its head node is lost, load the last state in another cluster.",
    UNSAID: "A cluster of Ray 2.60 may ask for a token, which an older Ray here does not know: install the same "
    "versions of Ray and Python on all machines.",
    "ValueError: ": REFUSED,
    "TypeError: ": REFUSED,
    "": "A process that uses a cluster runs on one of its nodes: start one here with `ray start --address=HEAD:6379 "
    "--num-cpus=0`, or a cluster with `ray start --head`. If its head node is lost, load the last state in another "
    "cluster.",
}
"""What to change, by words of Ray's error."""


class BridgeSettings(NamedTuple):
    """What the bridge is told at its start."""

    options: Ray
    local: int
    """Number of the workers of this machine."""
    share: RankParts | None = None
    """What this rank says to its pool, or None."""


class Starts:
    """The workers on other machines, from their orders to their ends.

    Args:
        zygote: the connection to it.
        settings: what the bridge is told.
        preparation: multiprocessing's data for a new process of the trainer.
        pool: the one that this rank shares, or None.
        port: at which agents reach the bridge.
        send: sends a message to the agent of a worker.
        forget: closes the connections of a worker.
        memory: returns the first bytes of a slot, for `Remote`.

    Attributes:
        launcher: the scheduler, once the bridge has it.
        remotes: the workers by number.
        by_token: the same by token.
    """

    launcher: Launcher

    def __init__(
        self,
        zygote: Channel[ToBridge],
        settings: BridgeSettings,
        preparation: dict[str, object],
        pool: PoolOrder | None,
        port: int,
        send: Callable[[Remote, ToAgent], None],
        forget: Callable[[Remote], None],
        memory: Callable[[int, int, int, int], memoryview],
    ) -> None:
        self.remotes: dict[int, Remote] = {}
        self.by_token: dict[bytes, Remote] = {}
        self._zygote = zygote
        self._settings, self._timeout = settings, settings.options.start_timeout
        self._preparation = preparation
        self._pool = pool
        self._port = port
        self._send, self._forget, self._memory = send, forget, memory
        self._address: str | None = None  # of this host, as agents reach it; None until the cluster is reached
        self._ever = False  # whether a remote worker has started
        self._again: dict[int, tuple[float, float]] = {}  # worker → when it is placed again, and when that is too late
        self._copy = secrets.token_hex()  # names the parts towards agents
        self._by_ray: set[int] = set()  # workers that no connection reaches
        self._draining = frozenset[str]()  # machines that are to be taken away
        self._moves: dict[int, int] = {}  # worker → how often its machine was to be taken away
        self._replaced: set[int] = set()  # workers that are placed again, because nothing came from their host
        self._asked_at = math.inf  # time of the first question to Ray that is not answered
        self._asks_at = 0.0  # time of the next question at the earliest
        self._connects_by = time.monotonic() + self._timeout + CONNECTING

    def start(self, number: int) -> None:
        """The zygote waits for a worker to start."""
        remote = self.remotes.get(number)
        if remote is None:
            if number not in self._again:
                self._begin(number, time.monotonic() + self._timeout)
        else:
            remote.is_wanted, remote.until = True, max(remote.until, time.monotonic() + ASKED_AGAIN)
            self.tell_started(remote)

    def _begin(self, number: int, until: float) -> None:
        remote = self.remotes[number] = Remote(number, secrets.token_bytes(TOKEN), self._zygote, self._memory)
        self.by_token[remote.token] = remote
        remote.is_wanted, remote.until, remote.lasts, remote.begun = True, until, until, time.monotonic()
        self._place(remote)

    def _place(self, remote: Remote) -> None:
        if self._address is None:  # it is placed when the cluster is reached
            return
        keeps = "working_dir" in (self._settings.options.runtime_env or {})
        way = remote.number in self._by_ray
        number, moves = remote.number - self._settings.local, self._moves.get(remote.number, 0)
        pool = None if self._pool is None else self._pool.at(number, moves)
        address = self._address, self._port
        order = AgentOrder(remote.number, address, remote.token, self._preparation, keeps, pool, way, self._copy)
        self.launcher.place(order)

    def came(self, remote: Remote) -> None:
        """The agent of a worker is there: from now on, time is for the dataset."""
        remote.until = remote.came + self._timeout

    def tell_started(self, remote: Remote) -> None:
        """Tells the zygote of a worker that it waits for, if it has started."""
        if remote.is_wanted and remote.is_ready:
            remote.is_wanted, remote.is_started, self._ever = False, True, True
            self._replaced.discard(remote.number)
            self._zygote.send(RemoteStarted(remote.number, remote.name))
            self._tell_drained(remote)

    def hear(self, report: Report) -> None:
        """The scheduler has reported something."""
        match report:
            case Reached():
                self._connects_by = math.inf
            case Connected():
                self._address = report.address
                for remote in self.remotes.values():
                    remote.until = remote.lasts = time.monotonic() + self._timeout
                    self._place(remote)
            case Unreachable():
                self._unreachable(report.why)
            case Draining():
                self._draining = report.nodes
                for remote in self.remotes.values():
                    self._tell_drained(remote)
            case StoreUse():
                self._zygote.send(report)
            case Shortage():
                self._lacks_place(report)
            case Ended():
                self._has_no_actor(report)

    def _unreachable(self, why: str) -> None:
        advice = next(text for words, text in ADVICE.items() if words in why)
        address = self._settings.options.address
        self.end_run(f"the Ray cluster at address={address!r} cannot be used: {why.rstrip('. ')}. {advice}")

    def _tell_drained(self, remote: Remote) -> None:
        if remote.node in self._draining and remote.is_started and not remote.drains:
            remote.drains = True
            self._moves[remote.number] = self._moves.get(remote.number, 0) + 1
            why = "its machine is to be taken away, and gets no new batch"
            self._zygote.send(RemoteDrains(remote.number, why))

    def _has_no_actor(self, report: Ended) -> None:
        remote, now = self.by_token.get(report.token), time.monotonic()
        if remote is None:
            return
        if remote.is_ready or report.why is None:
            self.lost(remote)
        elif report.closed and self._pool is None and remote.is_wanted and remote.number not in self._by_ray:
            self._go_by_ray(remote, report.why.partition(": ")[2])
        elif report.taken and now + TRIED_AGAIN >= remote.lasts:
            self.end_run(f"worker {remote.number} is not shared: {report.why}")
        elif (report.again or report.taken) and remote.is_wanted and (again := now + TRIED_AGAIN / 2) < remote.lasts:
            self.remove(remote)
            self._again[remote.number] = again, remote.lasts
        elif self._ever or report.again or remote.control is not None or not remote.is_wanted:
            self.remove(remote)
            is_told = remote.control is not None or now <= remote.begun + TRIED_AGAIN
            if remote.is_wanted and not is_told and now < remote.until:
                self._begin(remote.number, remote.until)  # Ray takes a while to notice that a node is gone
            elif remote.is_wanted:
                self._zygote.send(RemoteStartFailed(remote.number, report.why))
        else:
            self.end_run(f"worker {remote.number} could not be started by Ray: {report.why}")

    def _go_by_ray(self, remote: Remote, why: str) -> None:
        """Places a worker again whose host cannot connect; the user is told of the first."""
        is_first = not self._by_ray
        self._by_ray.add(remote.number)
        self.remove(remote)
        if is_first:
            why += " Meanwhile batches travel as objects of Ray, which is slower"  # the supervisor starts it again
            self._zygote.send(RemoteStartFailed(remote.number, why))
        else:
            self._begin(remote.number, time.monotonic() + self._timeout)

    def _lacks_place(self, shortage: Shortage) -> None:
        now, self._asked_at = time.monotonic(), math.inf
        late = [each for each in self.remotes.values() if each.control is None and each.is_wanted and now >= each.until]
        for remote in late:
            if shortage.placed.get(remote.token) and remote.number not in self._replaced:
                if remote.is_placed:
                    self._replace(remote, self._lack(remote, shortage))
                else:  # perhaps just now, as a node has joined
                    remote.is_placed, remote.until = True, now + SILENT
        late = [remote for remote in late if self.has(remote) and now >= remote.until]
        if not self._has_others():  # without any worker, the supervisor would end the run
            if late and not self._again and len(late) == len(self.remotes):
                why, number = self._lack(late[0], shortage), self._settings.options.num_workers
                self.end_run(f"none of the {number} remote workers could be started: {why}.")
            self._asks_at = now + TRIED_AGAIN
            return
        for remote in late:
            remote.is_wanted = False
            self._zygote.send(RemoteStartFailed(remote.number, self._lack(remote, shortage)))

    def _replace(self, remote: Remote, why: str) -> None:
        """Places a worker again, once, from whose host nothing has come: Ray gives up only after minutes a call that a
        broken link has lost. The user is told of the first.
        """
        if not self._replaced:
            self._zygote.send(RemoteStartFailed(remote.number, why))
        self._replaced.add(remote.number)
        self.remove(remote)
        again = time.monotonic() + TRIED_AGAIN  # the supervisor waits for it by then
        self._again[remote.number] = again, again + self._timeout

    def _unpickles_long(self, remote: Remote, now: float) -> None:
        """Reports a worker that is there and has not unpickled the dataset in time, and what it does."""
        if not self._has_others() and now < remote.came + max(OPENED, self._timeout):
            return
        if remote.stack is None:
            remote.stack, remote.until = "", now + TRIED_AGAIN
            self._send(remote, InspectRemote(remote.number, 0))
            return
        remote.is_wanted = False
        why = f"it (pid {remote.name}) has not unpickled the dataset {now - remote.came:.0f} s after its start. "
        if remote.stack:
            why += "Its stack shows what it does: put modules and files on a faster disk there, or raise start_timeout "
            why += f"(stoker.Ray).\n{remote.stack}"
        else:
            why += "The dataset is still on its way to that host: keep large data in files, or raise start_timeout"
        if self._has_others():
            self._zygote.send(RemoteStartFailed(remote.number, why))
        else:
            self.end_run(f"worker {remote.number} could not be started: {why}")

    def _has_others(self) -> bool:
        """Whether some workers work."""
        return self._settings.local > 0 or any(remote.is_ready for remote in self.remotes.values())

    def _lack(self, remote: Remote, shortage: Shortage) -> str:
        """Returns why a worker has not started in time, in words."""
        slow = "to start a process: raise start_timeout, and see Ray's logs there (/tmp/ray/session_latest/logs)"
        lacks, advice = "has no room for it", "Ask for fewer workers or less for each (stoker.Ray), or add machines"
        if not shortage.text:
            return (
                f"Ray has not said for {SILENT:g} s what becomes of it: either its head node is lost, or the network "
                "to it is broken. If so, load the last state in another cluster"
            )
        if host := shortage.placed.get(remote.token):
            lacks = f"has placed it on the host at {host}, from which nothing has come"
            advice = f"Either the network between that host and this one is broken, or the host is too busy {slow}"
        elif shortage.is_free:
            lacks = "has not started its process"
            advice = f"Either no node alone has that much free, or the machines are slow {slow}"
        return f"Ray {lacks} after {self._timeout:g} s (start_timeout): {shortage.text}. {advice}"

    def end_run(self, text: str) -> None:
        """Ends the run with an error."""
        failure = Failure.of(errors.WorkerStartError(text), "in the bridge to other machines")
        self._zygote.send(Broken(dumps(failure)))

    def has(self, remote: Remote) -> bool:
        """Whether this is still the worker of its number: it may have been removed since the loop woke."""
        return self.remotes.get(remote.number) is remote

    def lost(self, remote: Remote) -> None:
        """Reports a worker whose host has ended, or cannot be reached."""
        self.remove(remote)
        if remote.is_started:
            self._zygote.send(RemoteExited(remote.number, None, *remote.mark, "", True))
        elif remote.is_wanted:
            self._zygote.send(
                RemoteStartFailed(remote.number, f"its host is lost ({remote.name or 'not reached yet'})")
            )

    def ended(self, remote: Remote, exit_: RemoteExited) -> None:
        """Reports a worker of whose end its agent has told."""
        self.remove(remote)
        how = linux.exit_text(exit_.code)
        if remote.is_started:
            self._zygote.send(exit_)
        elif remote.is_broken or (self._ever and not remote.is_wanted):
            pass  # the run ends, or the zygote has given up this start
        elif self._ever:
            self._zygote.send(RemoteStartFailed(remote.number, f"it {how}"))
        else:
            stack = f"\n{exit_.stack}" if exit_.stack else ""
            self.end_run(
                f"worker {remote.number} (pid {remote.name}) {how} before it had unpickled the dataset.{stack}"
            )

    def remove(self, remote: Remote) -> None:
        """Gives up a worker, and its place."""
        self._forget(remote)
        self.remotes.pop(remote.number, None)
        self.by_token.pop(remote.token, None)
        self.launcher.end(remote.token)

    def look(self, now: float) -> None:
        """Notices what time brings: silence, and workers without a place."""
        if self._address is None and now > self._connects_by:
            self._connects_by = math.inf
            self._unreachable(f"it has not answered for {self._timeout + CONNECTING:g} s.")
        for number, (at, until) in [*self._again.items()]:
            if now >= at:
                del self._again[number]
                self._begin(number, until)
        asks = False
        for remote in [*self.remotes.values()]:
            if remote.control is not None and now - remote.heard > SILENT:
                self.lost(remote)
            elif remote.ends_by is not None and now > remote.ends_by and remote.control is not None:
                remote.ends_by = None  # its socket has ended, and it has not: user code has closed it
                self._send(remote, EndRemote(remote.number))
            elif remote.is_wanted and not remote.is_ready and now >= remote.until:
                if remote.control is not None:
                    self._unpickles_long(remote, now)
                asks = asks or remote.control is None
        if asks and self._address is not None:
            if self._asked_at == math.inf:
                if now >= self._asks_at:
                    self._asked_at = now
                    self.launcher.explain()
            elif now - self._asked_at > SILENT:  # its own calls have no limit
                self._lacks_place(Shortage(""))
