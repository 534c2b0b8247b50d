"""The bridge: stands for the workers on other machines towards the one supervisor, and receives their batches.

A clean process beside the zygote. To the supervisor each remote worker is a worker whose messages the bridge passes on.
It asks for a slot when the size of a batch is known, and the kernel copies the batch from the socket into the slot:
zygote and trainer carry no bytes, and a worker that gets no slot waits with its batch. Ends with the zygote. It is
long because one loop hears zygote, scheduler, agents and workers.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import selectors
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

from stoker import errors
from stoker._core.exceptions import summary_of
from stoker._engine.backend import Failure
from stoker._engine.machines import tls
from stoker._engine.machines.agent import ALONE, CONNECTING, CONTROL, DATA, TOKEN, AgentOrder, versions
from stoker._engine.machines.cluster import Ray
from stoker._engine.machines.placement import (
    NOBODY,
    Connected,
    Draining,
    Ended,
    Launcher,
    Placement,
    Play,
    Shortage,
    Unreachable,
)
from stoker._engine.machines.pool.pool_parts import PoolOrder, RankParts
from stoker._engine.machines.remote import Remote, shown_by
from stoker._engine.messages import (
    Broken,
    EndRemote,
    ForRemote,
    InspectRemote,
    Pulse,
    RemoteDrains,
    RemoteExited,
    RemoteStarted,
    RemoteStartFailed,
    StartRemote,
    StoreUse,
    ToAgent,
    ToBridge,
)
from stoker._engine.process import linux
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import FLUSH, OPENED
from stoker._engine.process.worker import dumps
from stoker._engine.serialize.payload import Payload
from stoker._engine.transport.segments import ArenaFiles, Mapping

_Read = TypeVar("_Read")

SILENT = 10.0
"""Seconds without a sign of life after which a worker counts as lost: its host is stopped, or the network is down."""

ASKED_AGAIN = 5.0
"""Seconds after which a worker that is still without a place is reported again, while it waits for one."""

TRIED_AGAIN = 1.0
"""Seconds after which a worker that Ray could not start is placed again at once, and not reported."""

PULSES = ALONE / 5
"""Seconds between two signs of life for the agents."""

LOOK = 0.1
"""Seconds at least between two looks at all workers: for each message they would cost more than all else."""

LEAVING = 2.0
"""Seconds in which the bridge leaves the cluster."""

ADVICE = {
    "Version mismatch": "Install the same versions of Ray and Python on all machines.",
    "ObjectStoreFull": "The dataset travels through Ray's object store: keep large data in files, or start the nodes "
    "with a larger one (`ray start --object-store-memory=BYTES`).",
    "AuthenticationError": "The cluster asks for Ray's token: copy ~/.ray/auth_token of the head node to all machines, "
    "and start nodes and trainer with RAY_AUTH_MODE=token.",
    NOBODY: "Is that the head node's address (`ray start --head` prints it, with the port), and does a firewall let "
    "that port through? If its head node is lost, load the last state in another cluster.",
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


class Bridge:
    """The loop of the bridge: one thread.

    Args:
        zygote: the connection to it.
        arena: where batches go.
        settings: what it is told.
        preparation: multiprocessing's data for a new process of the trainer.
        pool: the one that this rank shares, or None.
    """

    def __init__(
        self,
        zygote: Channel[ToBridge],
        arena: ArenaFiles,
        settings: BridgeSettings,
        preparation: dict[str, object],
        pool: PoolOrder | None = None,
    ) -> None:
        self._zygote = zygote
        self._arena = arena
        self._settings = settings
        self._preparation = preparation
        self._pool = pool
        self._listener = _listener(settings.options.port)
        self._address: str | None = None  # of this host, as agents reach it; None until the cluster is reached
        self._launcher: Launcher | None = None
        self._remotes: dict[int, Remote] = {}
        self._by_token: dict[bytes, Remote] = {}
        self._ever = False  # whether a remote worker has started
        self._again: dict[int, tuple[float, float]] = {}  # worker → when it is placed again, and when that is too late
        self._copy = secrets.token_hex()  # names the parts towards agents
        self._by_ray: set[int] = set()  # workers that no connection reaches
        self._moves: dict[int, int] = {}  # worker → how often its machine was to be taken away
        self._mappings: dict[int, Mapping] = {}
        self._ours, self._theirs = socket.socketpair()  # wakes the loop
        self._ours.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._full: set[int] = set()
        self._sent_to: set[Remote] = set()  # and not all of it has left, for all that is known
        self._replaced: set[int] = set()  # workers that are placed again, because nothing came from their host
        self._asked_at = math.inf  # time of the first question to Ray that is not answered
        self._pulse_at = self._look_at = 0.0
        self._connects_by = time.monotonic() + settings.options.start_timeout + CONNECTING

    def wake(self) -> None:
        """Makes the loop look at the launcher's reports. From any thread."""
        with contextlib.suppress(OSError):
            self._theirs.send(b".")

    def use(self, launcher: Launcher) -> None:
        """Sets the scheduler, which calls `wake` when it has something to report."""
        self._launcher = launcher

    def run(self) -> None:
        """Runs until the zygote has ended."""
        self._watch(self._zygote.fileno(), self._from_zygote)
        self._watch(self._listener.fileno(), self._accept)
        self._watch(self._ours.fileno(), self._from_launcher)
        while not self._zygote.ended:
            self._flush()
            before = time.monotonic()
            for key, _ in self._selector.select(1.0):
                key.data()
            if (frozen := time.monotonic() - before - 1.0) > 1.0:  # this process was stopped: so were its eyes
                for remote in self._remotes.values():
                    remote.heard += frozen
            if time.monotonic() >= self._look_at:
                self._look()

    def close(self) -> None:
        """Closes all connections: the agents and their workers end."""
        for remote in self._remotes.values():
            remote.close()
        self._listener.close()
        self._zygote.close()
        if self._launcher is not None:
            self._launcher.close(LEAVING)
        self._selector.close()
        self._ours.close()
        self._theirs.close()

    def _watch(self, descriptor: int, call: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def _forget(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)
        self._full.discard(descriptor)

    def _flush(self) -> None:
        channels: list[Channel[ToBridge] | Channel[object]] = [self._zygote]  # type: ignore[type-var]
        for remote in self._sent_to:
            channels += [channel for channel in (remote.control, remote.data) if channel is not None]  # type: ignore[misc]
        for channel in channels:
            channel.flush()
            descriptor = channel.fileno()
            key = self._selector.get_map().get(descriptor)
            if key is not None and channel.unsent != (descriptor in self._full):
                self._full ^= {descriptor}
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.unsent else 0)
                self._selector.modify(descriptor, events, key.data)
        self._sent_to = {remote for remote in self._sent_to if remote.unsent}

    # The zygote

    def _from_zygote(self) -> None:
        for message in self._zygote.receive():
            match message:
                case StartRemote():
                    self._start(message.worker)
                case ForRemote(worker, wire):
                    if (remote := self._remotes.get(worker)) is not None:
                        remote.pass_on(wire)
                        self._sent_to.add(remote)
                        self._read_batches(remote)
                case EndRemote() | InspectRemote():
                    remote = self._remotes.get(message.worker)
                    if remote is not None:
                        self._send(remote, message)

    def _send(self, remote: Remote, message: ToAgent) -> None:
        if remote.control is not None:
            remote.control.send(message)
            self._sent_to.add(remote)

    def _start(self, number: int) -> None:
        remote = self._remotes.get(number)
        if remote is None:
            if number not in self._again:
                self._begin(number, time.monotonic() + self._settings.options.start_timeout)
        else:
            remote.is_wanted, remote.until = True, max(remote.until, time.monotonic() + ASKED_AGAIN)
            self._tell_started(remote)

    def _begin(self, number: int, until: float) -> None:
        remote = self._remotes[number] = Remote(number, secrets.token_bytes(TOKEN), self._zygote, self._memory)
        self._by_token[remote.token] = remote
        remote.is_wanted, remote.until, remote.begun = True, until, time.monotonic()
        self._place(remote)

    def _place(self, remote: Remote) -> None:
        if self._address is None or self._launcher is None:  # it is placed when the cluster is reached
            return
        port = self._listener.getsockname()[1]
        keeps = "working_dir" in (self._settings.options.runtime_env or {})
        way = remote.number in self._by_ray
        number, moves = remote.number - self._settings.local, self._moves.get(remote.number, 0)
        pool = None if self._pool is None else self._pool.at(number, moves)
        address = self._address, port
        order = AgentOrder(remote.number, address, remote.token, self._preparation, keeps, pool, way, self._copy)
        self._launcher.place(order)

    def _tell_started(self, remote: Remote) -> None:
        if remote.is_wanted and remote.is_ready:
            remote.is_wanted, remote.is_started, self._ever = False, True, True
            self._replaced.discard(remote.number)
            self._zygote.send(RemoteStarted(remote.number, remote.name))

    def _memory(self, number: int, offset: int, capacity: int, size: int) -> memoryview:
        """Returns the first bytes of a slot."""
        mapping = self._mappings.get(number)
        if mapping is None:
            mapping = self._mappings[number] = Mapping(*self._arena.at(offset), capacity)
        return memoryview(mapping.part(0, size)).cast("B")

    # The scheduler

    def _from_launcher(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._ours.recv(1 << 12)
        for report in () if self._launcher is None else self._launcher.drained():
            match report:
                case Connected():
                    self._address = report.address
                    for remote in self._remotes.values():
                        remote.until = time.monotonic() + self._settings.options.start_timeout
                        self._place(remote)
                case Unreachable():
                    self._unreachable(report.why)
                case Draining():
                    self._drains(report.nodes)
                case StoreUse():
                    self._zygote.send(report)
                case Shortage():
                    self._lacks_place(report)
                case Ended():
                    self._has_no_actor(report)

    def _unreachable(self, why: str) -> None:
        advice = next(text for words, text in ADVICE.items() if words in why)
        address = self._settings.options.address
        self._end_run(f"the Ray cluster at address={address!r} cannot be used: {why.rstrip('. ')}. {advice}")

    def _drains(self, nodes: frozenset[str]) -> None:
        for remote in self._remotes.values():
            if remote.node in nodes and remote.is_started and not remote.drains:
                remote.drains = True
                self._moves[remote.number] = self._moves.get(remote.number, 0) + 1
                why = "its machine is to be taken away, and gets no new batch"
                self._zygote.send(RemoteDrains(remote.number, why))

    def _has_no_actor(self, report: Ended) -> None:
        remote = self._by_token.get(report.token)
        if remote is None:
            return
        if remote.is_ready or report.why is None:
            self._lost(remote)
        elif report.closed and self._pool is None and remote.is_wanted and remote.number not in self._by_ray:
            self._go_by_ray(remote, report.why.partition(": ")[2])
        elif report.taken and time.monotonic() + TRIED_AGAIN >= remote.until:
            self._end_run(f"worker {remote.number} is not shared: {report.why}")
        elif (report.again or report.taken) and remote.is_wanted and time.monotonic() < remote.until:
            self._remove(remote)
            self._again[remote.number] = time.monotonic() + TRIED_AGAIN / 2, remote.until
        elif self._ever or report.again:
            self._remove(remote)
            if remote.is_wanted and remote.begun + TRIED_AGAIN < time.monotonic() < remote.until:
                self._begin(remote.number, remote.until)  # Ray takes a while to notice that a node is gone
            elif remote.is_wanted:
                self._zygote.send(RemoteStartFailed(remote.number, report.why))
        else:
            self._end_run(f"worker {remote.number} could not be started by Ray: {report.why}")

    def _go_by_ray(self, remote: Remote, why: str) -> None:
        """Places a worker again whose host cannot connect; the user is told of the first."""
        is_first = not self._by_ray
        self._by_ray.add(remote.number)
        self._remove(remote)
        if is_first:
            why += " Meanwhile batches travel as objects of Ray, which is slower"  # the supervisor starts it again
            self._zygote.send(RemoteStartFailed(remote.number, why))
        else:
            self._begin(remote.number, time.monotonic() + self._settings.options.start_timeout)

    def _lacks_place(self, shortage: Shortage) -> None:
        now, self._asked_at = time.monotonic(), math.inf
        late = [
            each for each in self._remotes.values() if each.control is None and each.is_wanted and now >= each.until
        ]
        for remote in late:
            if shortage.placed.get(remote.token) and remote.number not in self._replaced:
                self._replace(remote, self._lack(remote, shortage))
        late = [remote for remote in late if self._has(remote)]
        if late and not self._settings.local and all(remote.control is None for remote in self._remotes.values()):
            why, number = self._lack(late[0], shortage), self._settings.options.num_workers
            self._end_run(f"none of the {number} remote workers could be started: {why}.")
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
        self._remove(remote)
        self._again[remote.number] = (now := time.monotonic()), now + self._settings.options.start_timeout

    def _unpickles_long(self, remote: Remote, now: float) -> None:
        """Reports a worker that is there and has not unpickled the dataset in time, and what it does."""
        options = self._settings.options
        has_others = self._settings.local or any(other.is_ready for other in self._remotes.values())
        if not has_others and now < remote.came + max(OPENED, options.start_timeout):
            return
        if remote.stack is None:
            remote.stack, remote.until = "", now + TRIED_AGAIN
            self._send(remote, InspectRemote(remote.number, 0))
            return
        remote.is_wanted = False
        why = (
            f"it (pid {remote.name}) has not unpickled the dataset {now - remote.came:.0f} s after its start. Its "
            "stack shows what it does: put modules and files on a faster disk there, or raise start_timeout "
            f"(stoker.Ray).\n{remote.stack}"
        )
        if has_others:
            self._zygote.send(RemoteStartFailed(remote.number, why))
        else:
            self._end_run(f"worker {remote.number} could not be started: {why}")

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
        return (
            f"Ray {lacks} after {self._settings.options.start_timeout:g} s (start_timeout): {shortage.text}. {advice}"
        )

    def _end_run(self, text: str) -> None:
        failure = Failure.of(errors.WorkerStartError(text), "in the bridge to other machines")
        self._zygote.send(Broken(dumps(failure)))

    # Agents and workers

    def _accept(self) -> None:
        until = time.monotonic() + LOOK  # a stranger that says nothing takes longer, and is the last one
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                self._accept_one()

    def _accept_one(self) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = tls.around(connection, is_server=True)
        token, kind = shown_by(connection)
        remote = self._by_token.get(token)  # a keyed hash, whose time says nothing of the tokens
        ends = {} if remote is None else {CONTROL: remote.control, DATA: remote.data}
        if remote is None or ends.get(kind, remote) is not None:  # a stranger, or a second one of its kind
            connection.close()
            return
        self._admit(remote, kind == CONTROL, connection)

    def _admit(self, remote: Remote, is_control: bool, connection: socket.socket) -> None:
        remote.connected(is_control, connection)
        if is_control:
            remote.until = remote.came + self._settings.options.start_timeout
        read = self._read_control if is_control else self._read_batches
        self._watch(connection.fileno(), lambda: read(remote))

    def _has(self, remote: Remote) -> bool:
        """Whether this is still the worker of its number: it may have been removed since the loop woke."""
        return self._remotes.get(remote.number) is remote

    def _read_control(self, remote: Remote) -> None:
        if remote.control is None or not self._has(remote):
            return
        if (greeting := self._refusing(remote, remote.hear)) is not None and greeting.versions != versions():
            self._end_run(
                f"worker {remote.number} on host {greeting.host} ({greeting.address}) runs "
                f"{', '.join(greeting.versions)}, and the trainer {', '.join(versions())}: install the same everywhere."
            )
            return
        if remote.control.ended:
            self._forget(remote.control.fileno())
            if remote.exit is None:
                self._lost(remote)
                return
        self._conclude(remote)

    def _read_batches(self, remote: Remote) -> None:
        if remote.data is None or not self._has(remote):
            return
        self._refusing(remote, remote.read)
        self._tell_started(remote)
        if remote.data.ended and remote.data.fileno() in self._selector.get_map():
            self._forget(remote.data.fileno())
            remote.ends_by = time.monotonic() + FLUSH
        self._conclude(remote)

    def _refusing(self, remote: Remote, read: Callable[[], _Read]) -> _Read | None:
        """Returns what `read` returns; ends the run if its messages contain what no worker sends."""
        try:
            return read()
        except Exception as error:
            self._end_run(
                f"worker {remote.number} ({remote.name}) sent a message that is none of a worker's: "
                f"{summary_of(error)}. Its program, or memory, may have been changed."
            )
            return None

    def _conclude(self, remote: Remote) -> None:
        """Reports the end of a worker when its last message is read."""
        if remote.exit is None or (remote.data is not None and not remote.data.ended):
            return
        self._remove(remote)
        if remote.is_started:
            self._zygote.send(remote.exit)
        elif remote.is_broken or (self._ever and not remote.is_wanted):
            pass  # the run ends, or the zygote has given up this start
        elif self._ever:
            self._zygote.send(RemoteStartFailed(remote.number, f"it {linux.exit_text(remote.exit.code)}"))
        else:
            stack = f"\n{remote.exit.stack}" if remote.exit.stack else ""
            how = linux.exit_text(remote.exit.code)
            self._end_run(
                f"worker {remote.number} (pid {remote.name}) {how} before it had unpickled the dataset.{stack}"
            )

    def _lost(self, remote: Remote) -> None:
        """A worker whose host has ended, or cannot be reached."""
        self._remove(remote)
        if remote.is_started:
            self._zygote.send(RemoteExited(remote.number, None, *remote.mark, "", True))
        elif remote.is_wanted:
            self._zygote.send(
                RemoteStartFailed(remote.number, f"its host is lost ({remote.name or 'not reached yet'})")
            )

    def _remove(self, remote: Remote) -> None:
        for channel in (remote.control, remote.data):
            if channel is not None:
                self._forget(channel.fileno())
        remote.close()
        self._remotes.pop(remote.number, None)
        self._by_token.pop(remote.token, None)
        self._sent_to.discard(remote)
        if self._launcher is not None:
            self._launcher.end(remote.token)

    def _look(self) -> None:
        """Notices what time brings: silence, and workers without a place."""
        now = time.monotonic()
        self._look_at = now + LOOK
        if self._address is None and now > self._connects_by:
            self._connects_by = math.inf
            self._unreachable(f"it has not answered for {self._settings.options.start_timeout + CONNECTING:g} s.")
        for number, (at, until) in [*self._again.items()]:
            if now >= at:
                del self._again[number]
                self._begin(number, until)
        asks = False
        for remote in [*self._remotes.values()]:
            patience = SILENT if remote.is_ready or remote.beats else max(SILENT, self._settings.options.start_timeout)
            if remote.control is not None and now - remote.heard > patience:
                self._lost(remote)
            elif remote.ends_by is not None and now > remote.ends_by and remote.control is not None:
                remote.ends_by = None  # its socket has ended, and it has not: user code has closed it
                self._send(remote, EndRemote(remote.number))
            elif remote.is_wanted and not remote.is_ready and now >= remote.until:
                if remote.control is not None:
                    self._unpickles_long(remote, now)
                asks = asks or remote.control is None
        if asks and self._launcher is not None and self._address is not None:
            if self._asked_at == math.inf:
                self._asked_at = now
                self._launcher.explain()
            elif now - self._asked_at > SILENT:  # its own calls have no limit
                self._lacks_place(Shortage(""))
        if now >= self._pulse_at:
            self._pulse_at = now + PULSES
            for remote in self._remotes.values():
                self._send(remote, Pulse())


def _listener(port: int) -> socket.socket:
    listener = socket.create_server(("", port), backlog=256)
    listener.setblocking(False)
    return listener


def run(parcel: Payload, descriptors: Sequence[int | None]) -> None:
    """Entry of the bridge's process."""
    zygote, *files = cast("list[int]", descriptors)
    settings: BridgeSettings = parcel.plan
    linux.name_process("stoker-bridge")
    import resource  # POSIX alone has it

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two connections for each worker
    channel: Channel[ToBridge] = Channel(socket.socket(fileno=zygote))
    preparation = {name: value for name, value in parcel.preparation.items() if name != "authkey"}  # it stays here
    preparation["hash_seed"] = os.environ.get("PYTHONHASHSEED")
    pickled, large = parcel.contents()
    pool = None if settings.share is None else settings.share.order(settings.options.pool or "", pickled, large)
    bridge = Bridge(channel, ArenaFiles(files), settings, preparation, pool)
    options, modules, played = settings.options, parcel.modules, settings.options.launcher
    if played is None:
        bridge.use(Placement(options, pickled, large, modules, bridge.wake))
    else:
        bridge.use(cast("Play", played)(pickled, large, modules, bridge.wake))
    del pickled, large
    try:
        bridge.run()
        bridge.close()
    except BaseException:
        traceback.print_exc()  # the zygote ends as well, and another takes its place
    finally:
        os._exit(0)
