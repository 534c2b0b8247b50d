"""Ray's part of the bridge: connects to the cluster, puts the dataset into the object store, places the actors.

A thread of the bridge, because Ray's calls wait. It knows no batch: only who has an actor, and why one has none.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from stoker._engine.machines.agent import CONNECTING, Agent, AgentOrder, ClosedPortError
from stoker._engine.machines.cluster import Ray
from stoker._engine.machines.pool.pool_agent import PoolAgent, PoolTakenError
from stoker._engine.machines.pool.pool_parts import PoolOrder
from stoker._engine.machines.tunnel import CALLS, Tunnel, TunnelAgent
from stoker._engine.messages import StoreUse

LOOK = 0.25
"""Seconds between two looks at the actors."""

BETWEEN_DRAINS = 1.0
"""Seconds between two looks for machines that are to be taken away."""

BETWEEN_SIZES = 10.0
"""Seconds between two looks at the object store."""

RANKS, SERVING = 64, "serving"
"""Most ranks of a pool: each has a process in each actor, and a thread. Ray's name for these threads."""

NOBODY = "no head node answers"
"""Begins the text of the error where nothing listens at the address."""

UNSAID = "Ray gives no reason"
"""The text of an error without one."""

TELLING = 600
"""Characters of an error of Ray's that the user is told."""


_COLOURS = re.compile(r"\x1b\[\d*m")

_IMPORTING = re.compile(r"ip=([^,)]+).* failed to import .* (\w+Error: .*)")
"""The host and the end of Ray's text where it cannot import the class of an actor."""


class Reached(NamedTuple):
    """The cluster is reached; the dataset goes into its object store, or to the disk behind it."""


class Connected(NamedTuple):
    """The dataset is there; agents reach the bridge at this address of its host."""

    address: str


class Unreachable(NamedTuple):
    """The cluster cannot be reached, or the dataset cannot be put into its object store."""

    why: str


class Ended(NamedTuple):
    """The actor of this token has ended: an error, in words, or None.

    Attributes:
        again: whether another try may succeed soon, because the actor was lost with its host or process.
        taken: whether the ranks of a pool use another dataset.
        closed: whether the bridge could not be reached from its host.
    """

    token: bytes
    why: str | None
    again: bool = False
    taken: bool = False
    closed: bool = False


class Shortage(NamedTuple):
    """What was asked for and what is there, in words; whether all nodes together have it free; and the addresses of
    the hosts on which Ray has placed actors, by token.
    """

    text: str
    is_free: bool = False
    placed: Mapping[bytes, str] = {}


class Draining(NamedTuple):
    """The machines, by the scheduler's name, that are to be taken away."""

    nodes: frozenset[str]


Report = Draining | StoreUse | Reached | Connected | Unreachable | Ended | Shortage


class Launcher(Protocol):
    """What the bridge needs of a scheduler (`Placement`)."""

    def place(self, order: AgentOrder) -> None: ...

    def end(self, token: bytes) -> None: ...

    def explain(self) -> None: ...

    def close(self, seconds: float) -> None: ...

    def drained(self) -> Sequence[Report]: ...


Play = Callable[[bytes, list[memoryview], list[str], Callable[[], None]], Launcher]
"""Makes the launcher of a test."""


class Placement(threading.Thread):
    """Places agents on the machines of a cluster of Ray.

    Args:
        options: the user's.
        pickled: the parts that workers are sent.
        large: their large buffers.
        modules: names of the modules that they need.
        wake: called when there is something to report.
    """

    def __init__(
        self,
        options: Ray,
        pickled: bytes,
        large: list[memoryview],
        modules: list[str],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(name="stoker-placement", daemon=True)
        self._options = options
        self._contents = np.frombuffer(pickled, np.uint8), [np.frombuffer(view, np.uint8) for view in large], modules
        self._wake = wake
        self._orders: queue.SimpleQueue[AgentOrder | bytes | str | None] = queue.SimpleQueue()
        self._actors: dict[bytes, tuple[Any, Any]] = {}  # token → the actor, and the call that is its life
        self._there: dict[bytes, Any] = {}  # token → becomes ready when the actor of a pool is there
        self._drains_at, self._draining = 0.0, frozenset[str]()
        self._own = len(pickled) + sum(view.nbytes for view in large)
        self._sizes_at, self._sizes = 0.0, StoreUse(0, 0, 0)
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.start()

    def place(self, order: AgentOrder) -> None:
        """Starts an agent on a machine that has room for it."""
        self._orders.put(order)

    def end(self, token: bytes) -> None:
        """Ends an agent, and gives its resources back."""
        self._orders.put(token)

    def explain(self) -> None:
        """Requests a `Shortage`."""
        self._orders.put("explain")

    def close(self, seconds: float) -> None:
        """Ends all agents and leaves the cluster, or not if that takes longer."""
        self._orders.put(None)
        self.join(seconds)

    def run(self) -> None:
        try:
            self._ray = self._connected()
            self._tell(Reached())
            reference = self._ray.put(self._contents)
            del self._contents
        except BaseException as error:
            self._tell(Unreachable(_short(error)))
            return
        self._tell(Connected(self._ray.util.get_node_ip_address()))
        try:
            while self._obeys(reference):
                self._look()
        except BaseException as error:
            self._tell(Unreachable(_short(error)))
            return
        for token in [*self._actors]:
            self._kill(token)
        self._ray.shutdown()

    def _connected(self) -> Any:
        options = self._options
        host, _, port = options.address.rpartition(":")
        if port.isdecimal():  # Ray would try for minutes
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTING).close()
            except OSError as error:
                raise ConnectionError(
                    f"{NOBODY} at {options.address} from host {socket.gethostname()}: {error}"
                ) from None
        ray = importlib.import_module("ray")
        os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"  # in a job of Ray, ours adds to the job's
        ray.init(
            address=options.address,
            runtime_env=None if options.runtime_env is None else dict(options.runtime_env),
            log_to_driver=True,
            logging_level=logging.ERROR,
            configure_logging=True,
        )
        return ray

    def _obeys(self, reference: Any) -> bool:
        """Carries out what the bridge asks for; returns whether it goes on."""
        try:
            order = self._orders.get(timeout=LOOK)
        except queue.Empty:
            return True
        options = self._options
        if isinstance(order, AgentOrder):
            resources = None if options.resources is None else dict(options.resources)
            placed = self._kind(order).options(
                num_cpus=options.num_cpus,
                resources=resources,
                scheduling_strategy="SPREAD",
                max_restarts=0,
                **({} if order.pool is None else _shared(order.pool)),
                **({"max_concurrency": CALLS} if order.by_ray else {}),
            )
            actor = placed.remote()
            serve = actor.serve
            if order.pool is not None:
                serve = serve.options(concurrency_group=SERVING)
                self._there[order.token] = actor.__ray_ready__.remote()
            self._actors[order.token] = actor, serve.remote([reference], order)  # the agent itself fetches the parts
            if order.by_ray:
                Tunnel(self._ray, actor, order.bridge[1])
        elif isinstance(order, bytes):
            self._kill(order)
        elif order is not None:
            self._tell(self._shortage())
        return order is not None

    def _kind(self, order: AgentOrder) -> Any:
        """Returns the class of the actor."""
        if order.pool is not None:
            return self._ray.remote(concurrency_groups={SERVING: RANKS})(PoolAgent)
        return self._ray.remote(TunnelAgent if order.by_ray else Agent)

    def _kill(self, token: bytes) -> None:
        found, there = self._actors.pop(token, None), self._there.pop(token, None)
        if there is not None and self._ray.wait([there], timeout=0)[0]:
            return  # other ranks use it; one for which there is no room would wait for ever
        if found is not None:
            with contextlib.suppress(Exception):  # it has ended
                self._ray.kill(found[0], no_restart=True)

    def _look_for_drains(self) -> None:
        """Tells of machines that are to be taken away. Ray says it in a private place, which may be gone."""
        if (now := time.monotonic()) < self._drains_at:
            return
        self._drains_at = now + BETWEEN_DRAINS
        nodes: frozenset[str] = frozenset()
        with contextlib.suppress(Exception):
            nodes = frozenset(self._ray._private.state.state.get_draining_nodes())
        if nodes - self._draining:
            self._tell(Draining(nodes))
        self._draining = nodes

    def _look_at_store(self) -> None:
        """Tells how full the object store is, if that has changed."""
        if (now := time.monotonic()) < self._sizes_at:
            return
        self._sizes_at, name = now + BETWEEN_SIZES, "object_store_memory"
        room, free = self._ray.cluster_resources().get(name, 0), self._ray.available_resources().get(name, 0)
        sizes = StoreUse(self._own, int(room - free), int(room))
        if sizes != self._sizes:
            self._tell(sizes)
        self._sizes = sizes

    def _look(self) -> None:
        self._look_for_drains()
        self._look_at_store()
        calls = {call: token for token, (_, call) in self._actors.items()}
        if not calls:
            return
        ended, _ = self._ray.wait([*calls], num_returns=len(calls), timeout=0)
        for call in ended:
            why, again, taken, closed = None, False, False, False
            try:
                self._ray.get(call)
            except Exception as error:  # of Ray's, or of the agent
                why = _short(error)
                again = isinstance(error, self._ray.exceptions.RayActorError) and not error.actor_init_failed
                cause = getattr(error, "cause", None)
                taken, closed = isinstance(cause, PoolTakenError), isinstance(cause, ClosedPortError)
            token = calls[call]
            self._kill(token)
            self._tell(Ended(token, why, again, taken, closed))

    def _shortage(self) -> Shortage:
        options, words = self._options, []
        wanted = {"CPU": options.num_cpus, **(options.resources or {})}
        there, free = self._ray.cluster_resources(), self._ray.available_resources()
        for name, amount in wanted.items():
            words.append(f"{name}: {amount:g} each, {free.get(name, 0):g} free of {there.get(name, 0):g}")
        nodes = sum(bool(node["Alive"]) for node in self._ray.nodes())
        is_free = all(free.get(name, 0) >= amount for name, amount in wanted.items())
        placed = {}
        with contextlib.suppress(Exception):  # a private place of Ray's, which may be gone
            for token, (actor, _) in self._actors.items():
                placed[token] = self._ray._private.state.actors(actor._actor_id.hex())["Address"]["IPAddress"]
        return Shortage(f"{'; '.join(words)}; {nodes} node(s) in the cluster", is_free, placed)

    def drained(self) -> list[Report]:
        """Returns what has been reported since the last call."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._reports.get_nowait())
        return found

    def _tell(self, report: Report) -> None:
        self._reports.put(report)
        self._wake()


def _shared(pool: PoolOrder) -> dict[str, object]:
    """Returns the options by which the ranks of a job find one actor, of which each may be the first."""
    return {
        "name": f"stoker-{pool.name}-{pool.place}",
        "namespace": "stoker",
        "get_if_exists": True,
        "lifetime": "detached",
    }


def _short(error: BaseException) -> str:
    """Returns an error of Ray's, or that of the agent which it carries, in a few lines."""
    cause = getattr(error, "cause", None)
    shown = cause if isinstance(cause, BaseException) else error
    text = " ".join(_COLOURS.sub("", str(shown)).split())
    if getattr(error, "actor_init_failed", False) and (found := _IMPORTING.search(text)) is not None:
        return f"the host at {found[1]} cannot run its actor: {found[2]}. Install Stoker there, as on this machine"
    if len(text) > TELLING:  # the cause is named first or last
        text = f"{text[: TELLING // 2]} … {text[-TELLING // 2 :]}"
    return f"{type(shown).__name__}: {text or UNSAID}"
