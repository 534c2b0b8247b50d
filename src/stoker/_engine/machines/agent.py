"""The agent of a worker on another machine: starts the worker as a clean interpreter, and says how it fares and ends.

It runs in the actor that a scheduler has placed, which has threads, so the worker cannot be a fork of it. Worker and
agent have a connection each to the bridge; both begin with a token that only this bridge and this agent know. The
agent ends with its worker, and with its connection.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import platform
import select
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import NamedTuple, cast

import numpy as np

from stoker._engine.activity import ACTIVITY, DUTIES, NEW_MARK, PLACE
from stoker._engine.fork.forked_process import Stacks
from stoker._engine.fork.fresh_interpreter import launch
from stoker._engine.machines import tls
from stoker._engine.machines.node_copy import NodeCopy
from stoker._engine.machines.pool.pool_parts import PoolOrder
from stoker._engine.machines.remote_worker import Role
from stoker._engine.messages import (
    Activities,
    EndRemote,
    Greeting,
    InspectRemote,
    PoolUse,
    RemoteExited,
    RemoteInspected,
    ToAgent,
)
from stoker._engine.process import linux
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import FLUSH, LEAVE, REAP
from stoker._engine.serialize.payload import Block, Head
from stoker._engine.spawn.worker import SharedActivity
from stoker._engine.transport import segments
from stoker._engine.transport.owned import Array

BEAT = 0.5
"""Seconds between two signs of life."""

ALONE = 25.0
"""Seconds without a sign of the bridge after which an agent ends: the trainer's host is gone, or cannot be reached."""

CONNECTING = 10.0
"""Seconds in which an agent reaches the bridge."""

CONTROL, DATA = b"C", b"D"
"""The kind of a connection, behind the token."""

TOKEN = 32
"""Bytes of a token."""

Contents = tuple[Array, list[Array], list[str]]
"""The parts as arrays of bytes: their pickle, and their large buffers; and the modules that they need."""


class AgentOrder(NamedTuple):
    """What an agent is told.

    Attributes:
        number: of the worker.
        bridge: host and port of the bridge.
        token: what both connections begin with.
        preparation: multiprocessing's data for a new process of the trainer, and its PYTHONHASHSEED as "hash_seed".
        keeps_folder: whether the working directory here is meant (`working_dir` of Ray).
        pool: that it belongs to, or None.
        by_ray: whether the connections are calls of Ray (`TunnelAgent`).
        copy: name under which agents of one machine share the large buffers of the parts (`NodeCopy`).
    """

    number: int
    bridge: tuple[str, int]
    token: bytes
    preparation: dict[str, object]
    keeps_folder: bool
    pool: PoolOrder | None = None
    by_ray: bool = False
    copy: str = ""


class ClosedPortError(ConnectionError):
    """The bridge cannot be reached by a connection."""


@functools.cache
def versions() -> tuple[str, ...]:
    """Returns what must be the same at both ends, in words."""
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    try:
        stoker = metadata.version("stoker")
    except metadata.PackageNotFoundError:
        stoker = "that pip has not installed"
    return f"Stoker {stoker}", f"Python {python}", f"NumPy {np.__version__.split('.')[0]}"


class Agent:
    """The class of the actors. It has no state: each call of `serve` is the life of one worker."""

    def serve(self, contents: Sequence[object], order: AgentOrder) -> None:
        """Starts the worker; returns when it has ended.

        Args:
            contents: a list with the parts, or with a reference to them in Ray's object store: it says that it lives
                while they come.
            order: what it is told.

        Raises:
            ClosedPortError: the bridge cannot be reached.
        """
        control = _connected(order, CONTROL)
        with contextlib.ExitStack() as undo:
            undo.callback(control.close)
            channel: Channel[ToAgent] = Channel(control)
            host = socket.gethostname()
            address = "through Ray" if order.by_ray else "TLS" if tls.is_used() else control.getsockname()[0]
            channel.send(Greeting(_node(), host, address, os.getpid(), versions()))
            with _beating(order.number, channel):
                data = _connected(order, DATA)
                undo.callback(data.close)
                worker = self._worker(contents, order, data, f"host {host} ({address})")
                undo.callback(worker.close)
            data.close()
            _watch(order.number, channel, worker)

    def _worker(self, contents: Sequence[object], order: AgentOrder, data: socket.socket, place: str) -> AgentsWorker:
        return _Child(fetched(contents), order, data, place)


def fetched(contents: Sequence[object]) -> Contents:
    """Returns the parts, out of Ray's object store where they lie there."""
    (parts,) = contents
    return cast("Contents", parts if isinstance(parts, tuple) else sys.modules["ray"].get(parts))


class AgentsWorker(ABC):
    """The worker process, and what its agent shares with it.

    Attributes:
        status: its exit code, negative for a signal, once it has ended; None if unknown.
        marks: its mark.
        descriptor: readable when it has ended; None if there is none.
    """

    status: int | None = None
    marks: SharedActivity
    descriptor: int | None

    @abstractmethod
    def end(self) -> None:
        """Kills it."""

    @abstractmethod
    def has_ended(self, seconds: float = 0.0) -> bool:
        """Waits this long for its end, and sets `status`."""

    @abstractmethod
    def stack(self) -> str:
        """Returns its Python stacks now."""

    @abstractmethod
    def last_words(self) -> str:
        """Returns its last stacks."""

    def use(self) -> tuple[int, float, float] | None:
        """Returns the use of the pool's process (`PoolUse`) if it has changed."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Kills it, and gives back what was shared with it."""


class _Child(AgentsWorker):
    """A worker that the agent has started."""

    def __init__(self, contents: Contents, order: AgentOrder, data: socket.socket, place: str) -> None:
        pickled, large, modules = contents
        self._stacks = Stacks(1)
        self._marked = segments.create()
        self.marks = SharedActivity(self._marked, 0)
        self.marks.grow(1)
        self._stream = Block()
        self._stream.write(pickled.data)
        self._copy = NodeCopy(order.copy, [each.data for each in large])
        head = Head(
            entry="stoker._engine.machines.remote_worker:run",
            fds=[data.fileno(), self._marked, self._stacks.descriptor(0)],
            shared=[],
            preparation=preparation_for(order),
            modules=list(modules),
            plan=pickle.dumps(Role(order.number, os.getpid(), place)),
            buffers=self._copy.fd,
            places=self._copy.places,
            tracker=None,
        )
        self.pid = launch(self._stream, head)
        linux.die_first(self.pid)  # and not the agent, when this machine's memory runs out
        self.descriptor = linux.process_descriptor(self.pid)
        self._is_reaped = False

    def end(self) -> None:
        """Kills it."""
        if not self._is_reaped:
            linux.kill(self.pid)

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Waits this long for its end, and sets `status`."""
        if not self._is_reaped and (self.descriptor is None or linux.has_ended(self.descriptor)):
            self.status = linux.reap(self.pid, REAP if self.descriptor is not None else 0.0)
            self._is_reaped = self.descriptor is not None or self.status is not None
        if self._is_reaped or seconds <= 0:
            return self._is_reaped
        time.sleep(min(seconds, 0.01))
        return self.has_ended(seconds - 0.01)

    def stack(self) -> str:
        """Returns its Python stacks now."""
        return self._stacks.read([(0, self.pid)])

    def last_words(self) -> str:
        """Returns its last stacks."""
        return self._stacks.last_words(0)

    def close(self) -> None:
        self.end()
        self.has_ended(REAP)
        self._copy.close()
        for descriptor in (self._marked, self._stacks.descriptor(0), self._stream.fd):
            os.close(descriptor)
        if self.descriptor is not None:
            os.close(self.descriptor)


@contextlib.contextmanager
def _beating(number: int, channel: Channel[ToAgent]) -> Iterator[None]:
    """Gives signs of life from a thread, while the parts come and are copied."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            channel.send(Activities(number, *NEW_MARK, 0, time.perf_counter()))

    thread = threading.Thread(target=beat, name="stoker-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(number: int, channel: Channel[ToAgent], worker: AgentsWorker) -> None:
    """Tells the bridge of the worker, until it has ended or the bridge has."""
    mark, heard = worker.marks.of(0), time.monotonic()
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    if worker.descriptor is not None:
        poll.register(worker.descriptor, select.POLLIN)
    while True:
        poll.poll(BEAT * 1000)
        for message in channel.receive():
            heard = time.monotonic()
            match message:
                case EndRemote():
                    worker.end()
                case InspectRemote():
                    stack = worker.stack()
                    channel.send(RemoteInspected(number, message.question, stack, mark[PLACE], mark[ACTIVITY]))
        if channel.ended or time.monotonic() - heard > ALONE:
            worker.has_ended(FLUSH if mark[DUTIES] else LEAVE)
            return
        if worker.has_ended():
            channel.send(RemoteExited(number, worker.status, mark[PLACE], mark[ACTIVITY], worker.last_words(), False))
            _await_end_of(channel)
            return
        channel.send(Activities(number, mark[PLACE], mark[ACTIVITY], mark[DUTIES], time.perf_counter()))
        if (use := worker.use()) is not None:
            channel.send(PoolUse(number, *use))


def _await_end_of(channel: Channel[ToAgent]) -> None:
    """Waits until the bridge has read the end of the worker."""
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    until = time.monotonic() + FLUSH
    while not channel.ended and time.monotonic() < until:
        channel.flush()
        poll.poll(100)
        channel.receive()


def _node() -> str:
    """Returns Ray's name of this machine; empty outside of Ray."""
    ray = sys.modules.get("ray")
    return str(ray.get_runtime_context().get_node_id()) if ray is not None and ray.is_initialized() else ""


def _connected(order: AgentOrder, kind: bytes) -> socket.socket:
    host, port = order.bridge
    try:
        connection = socket.create_connection((host, port), timeout=CONNECTING)
    except OSError as error:
        raise ClosedPortError(
            f"host {socket.gethostname()} cannot reach the trainer at {host}:{port}: {error}. Is there a firewall "
            "between them? stoker.Ray(port=...) fixes the port to open."
        ) from None
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not order.by_ray:
        try:
            connection = tls.around(connection, is_server=False)
        except (OSError, KeyError) as error:
            raise ConnectionError(
                f"host {socket.gethostname()} and the trainer at {host}:{port} cannot agree on TLS: {error}. Both need "
                "RAY_USE_TLS, and certificates of the same authority (RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY, "
                "RAY_TLS_CA_CERT)."
            ) from None
    connection.sendall(order.token + kind)
    return connection


def preparation_for(order: AgentOrder) -> dict[str, object]:
    """Returns the preparation of an interpreter that is started now: modules are found as here, then where the trainer
    found them, and sets of texts have the trainer's order if it has a PYTHONHASHSEED.
    """
    theirs = order.preparation
    if isinstance(seed := theirs.get("hash_seed"), str):
        os.environ["PYTHONHASHSEED"] = seed
    paths: Sequence[object] = theirs["sys_path"]  # type: ignore[assignment]
    mine = {**theirs, "sys_path": [*sys.path, *(path for path in paths if path not in sys.path)]}
    folder = theirs.get("dir")
    if order.keeps_folder or not (isinstance(folder, str) and os.path.isdir(folder)):
        mine["dir"] = os.getcwd()
    return mine
