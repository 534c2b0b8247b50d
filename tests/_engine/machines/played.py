"""A bridge whose scheduler is played, and agents that a test plays."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from stoker._engine.machines.agent import CONTROL, DATA, AgentOrder, versions
from stoker._engine.machines.bridge import Bridge
from stoker._engine.machines.cluster import Ray
from stoker._engine.machines.placement import Connected, Report, Shortage
from stoker._engine.machines.pool.pool_parts import PoolOrder
from stoker._engine.machines.starts import BridgeSettings
from stoker._engine.messages import (
    Greeting,
    Message,
    RemoteStarted,
    StartRemote,
    Unpickled,
)
from stoker._engine.process.channel import Channel, pair
from stoker._engine.transport.segments import ArenaFiles

SECONDS = 20.0


class Played:
    """A bridge in a thread, its scheduler, and the zygote's end."""

    def __init__(self, local: int = 0, start_timeout: float = 60.0, pool: PoolOrder | None = None) -> None:
        zygote, theirs = pair()
        self.zygote: Channel[Message] = Channel(zygote)
        self.files = ArenaFiles.create()
        settings = BridgeSettings(Ray(1, start_timeout=start_timeout), local)
        self.bridge = Bridge(Channel(theirs), self.files, settings, {}, pool)
        self.orders: list[AgentOrder] = []
        self.ended: list[bytes] = []
        self._reports: list[Report] = []
        self._heard: list[Message] = []
        self.agents: list[Agent] = []
        self.bridge.use(self)
        self._thread = threading.Thread(target=self.bridge.run, daemon=True)
        self._thread.start()

    def place(self, order: AgentOrder) -> None:
        self.orders.append(order)

    def end(self, token: bytes) -> None:
        self.ended.append(token)

    def explain(self) -> None:
        self.report(Shortage("CPU: 1 each, 0 free of 2"))

    def close(self, seconds: float) -> None:
        pass

    def drained(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def report(self, report: Report) -> None:
        self._reports.append(report)
        self.bridge.wake()

    def await_(self, found: Callable[[], object]) -> None:
        until = time.monotonic() + SECONDS
        while not found():
            self.bridge.wake()
            assert time.monotonic() < until, "nothing came"
            time.sleep(0.002)

    def hears(self, kind: type[Message]) -> Message:
        self.await_(lambda: self.heard(kind))
        message = self.heard(kind)
        assert message is not None
        self._heard.remove(message)
        return message

    def heard(self, kind: type[Message]) -> Message | None:
        self._heard += self.zygote.receive()
        return next((message for message in self._heard if isinstance(message, kind)), None)

    def start(self, number: int) -> AgentOrder:
        self.zygote.send(StartRemote(number))
        before = len(self.orders)  # `Connected` places those again that are not there
        self.report(Connected("127.0.0.1"))
        self.await_(lambda: any(order.number == number for order in self.orders[before:]))
        return next(order for order in reversed(self.orders) if order.number == number)

    def close_all(self) -> None:
        for agent in self.agents:
            agent.close()
        self.zygote.close()
        self._thread.join()
        self.bridge.close()
        self.files.close()


class Agent:
    """The two connections of a worker, closed with the bridge."""

    def __init__(self, played: Played, order: AgentOrder, told: tuple[str, ...] | None = None, node: str = "n") -> None:
        played.agents.append(self)
        self.control: Channel[Message] = Channel(self._connect(order, CONTROL))
        self.control.send(Greeting(node, "b", "10.0.0.2", 7, versions() if told is None else told))
        self.data: Channel[Message] = Channel(self._connect(order, DATA))

    def _connect(self, order: AgentOrder, kind: bytes) -> socket.socket:
        connection = socket.create_connection(order.bridge)
        connection.sendall(order.token + kind)
        return connection

    def close(self) -> None:
        self.control.close()
        self.data.close()


def ready(played: Played, number: int = 0) -> Agent:
    agent = Agent(played, played.start(number))
    agent.data.send(Unpickled(0.1, 0, 0))
    assert played.hears(RemoteStarted) == RemoteStarted(number, "7 on host b (10.0.0.2)")
    return agent
