"""The bridge: stands for the workers on other machines towards the one supervisor, and receives their batches.

A clean process beside the zygote. To the supervisor each remote worker is a worker whose messages the bridge passes on.
It asks for a slot when the size of a batch is known, and the kernel copies the batch from the socket into the slot:
zygote and trainer carry no bytes, and a worker that gets no slot waits with its batch. Ends with the zygote. `Starts`
decides what becomes of a worker before and behind its work.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import selectors
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from stoker._core.exceptions import summary_of
from stoker._engine.machines import tls
from stoker._engine.machines.agent import ALONE, CONTROL, DATA, TOKEN, versions
from stoker._engine.machines.placement import Launcher, Placement, Play
from stoker._engine.machines.pool.pool_parts import PoolOrder
from stoker._engine.machines.remote import Remote
from stoker._engine.machines.starts import BridgeSettings, Starts
from stoker._engine.messages import (
    EndRemote,
    ForRemote,
    InspectRemote,
    Pulse,
    StartRemote,
    ToAgent,
    ToBridge,
)
from stoker._engine.process import linux
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import FLUSH
from stoker._engine.serialize.payload import Payload
from stoker._engine.transport.segments import ArenaFiles, Mapping

_Read = TypeVar("_Read")

PULSES = ALONE / 5
"""Seconds between two signs of life for the agents."""

LOOK = 0.1
"""Seconds at least between two looks at all workers: for each message they would cost more than all else."""

STRANGER = 5.0
"""Seconds that a new connection has to show its token."""

LEAVING = 2.0
"""Seconds in which the bridge leaves the cluster."""


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
        why = ""
        try:
            self._listener = _listener(settings.options.port)
        except OSError as error:
            self._listener, why = _listener(0), os.strerror(error.errno or 0)
        port = self._listener.getsockname()[1]
        self._starts = Starts(zygote, settings, preparation, pool, port, self._send, self._close, self._memory)
        self._remotes = self._starts.remotes
        self._strangers: dict[socket.socket, tuple[bytearray, float]] = {}  # what each has shown, and until when
        if why:
            self._starts.end_run(
                f"this host cannot listen at port={settings.options.port} (stoker.Ray): {why}. Each loader that is in "
                "use, and each rank of this host, needs a port of its own, above 1023; port=0 takes any."
            )
        self._mappings: dict[int, Mapping] = {}
        self._ours, self._theirs = socket.socketpair()  # wakes the loop
        self._ours.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._full: set[int] = set()
        self._sent_to: set[Remote] = set()  # and not all of it has left, for all that is known
        self._pulse_at = self._look_at = 0.0

    def wake(self) -> None:
        """Makes the loop look at the launcher's reports. From any thread."""
        with contextlib.suppress(OSError):
            self._theirs.send(b".")

    def use(self, launcher: Launcher) -> None:
        """Sets the scheduler, which calls `wake` when it has something to report."""
        self._starts.launcher = launcher

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
        for stranger in self._strangers:
            stranger.close()
        self._listener.close()
        self._zygote.close()
        self._starts.launcher.close(LEAVING)
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
                    self._starts.start(message.worker)
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
        for report in self._starts.launcher.drained():
            self._starts.hear(report)

    # Agents and workers

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stranger = tls.around(connection, is_server=True)
                stranger.setblocking(False)
                self._strangers[stranger] = bytearray(), time.monotonic() + STRANGER
                self._watch(stranger.fileno(), functools.partial(self._meet, stranger))

    def _meet(self, stranger: socket.socket) -> None:
        """Reads the token that a new connection begins with, and its kind."""
        shown, _ = self._strangers[stranger]
        try:
            more = stranger.recv(TOKEN + 1 - len(shown))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        shown += more
        if more and len(shown) <= TOKEN:
            return
        del self._strangers[stranger]
        self._forget(stranger.fileno())
        remote = self._starts.by_token.get(bytes(shown[:TOKEN]))  # a keyed hash, whose time says nothing of the tokens
        kind = bytes(shown[TOKEN:])
        ends = {} if remote is None else {CONTROL: remote.control, DATA: remote.data}
        if remote is None or ends.get(kind, remote) is not None:  # unknown, or a second one of its kind
            stranger.close()
            return
        self._admit(remote, kind == CONTROL, stranger)

    def _admit(self, remote: Remote, is_control: bool, connection: socket.socket) -> None:
        remote.connected(is_control, connection)
        if is_control:
            self._starts.came(remote)
        read = self._read_control if is_control else self._read_batches
        self._watch(connection.fileno(), lambda: read(remote))

    def _close(self, remote: Remote) -> None:
        for channel in (remote.control, remote.data):
            if channel is not None:
                self._forget(channel.fileno())
        remote.close()
        self._sent_to.discard(remote)

    def _read_control(self, remote: Remote) -> None:
        if remote.control is None or not self._starts.has(remote):
            return
        if (greeting := self._refusing(remote, remote.hear)) is not None and greeting.versions != versions():
            self._starts.end_run(
                f"worker {remote.number} on host {greeting.host} ({greeting.address}) runs "
                f"{', '.join(greeting.versions)}, and the trainer {', '.join(versions())}: install the same everywhere."
            )
            return
        if remote.control.ended:
            self._forget(remote.control.fileno())
            if remote.exit is None:
                if remote.is_ready:  # otherwise Ray says why, or it is silent
                    self._starts.lost(remote)
                return
        self._conclude(remote)

    def _read_batches(self, remote: Remote) -> None:
        if remote.data is None or not self._starts.has(remote):
            return
        self._refusing(remote, remote.read)
        self._starts.tell_started(remote)
        if remote.data.ended and remote.data.fileno() in self._selector.get_map():
            self._forget(remote.data.fileno())
            remote.ends_by = time.monotonic() + FLUSH
        self._conclude(remote)

    def _refusing(self, remote: Remote, read: Callable[[], _Read]) -> _Read | None:
        """Returns what `read` returns; ends the run if its messages contain what no worker sends."""
        try:
            return read()
        except Exception as error:
            self._starts.end_run(
                f"worker {remote.number} ({remote.name}) sent a message that is none of a worker's: "
                f"{summary_of(error)}. Its program, or memory, may have been changed."
            )
            return None

    def _conclude(self, remote: Remote) -> None:
        """Reports the end of a worker when its last message is read."""
        if remote.exit is None or (remote.data is not None and not remote.data.ended):
            return
        self._starts.ended(remote, remote.exit)

    def _look(self) -> None:
        now = time.monotonic()
        self._look_at = now + LOOK
        self._starts.look(now)
        for stranger in [stranger for stranger, (_, until) in self._strangers.items() if now > until]:
            del self._strangers[stranger]
            self._forget(stranger.fileno())
            stranger.close()
        if now >= self._pulse_at:
            self._pulse_at = now + PULSES
            for remote in self._remotes.values():
                self._send(remote, Pulse())


def _listener(port: int) -> socket.socket:
    until = time.monotonic() + LEAVING
    while True:  # the bridge of the epoch before may have the port still
        try:
            listener = socket.create_server(("", port), backlog=256)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        time.sleep(LOOK)
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
