"""The agent before its worker begins, with a bridge that the test plays."""

from __future__ import annotations

import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from stoker._engine.machines import agent as agents
from stoker._engine.machines.agent import CONTROL, DATA, TOKEN, Agent, AgentOrder
from stoker._engine.machines.pool.pool_agent import PoolAgent
from stoker._engine.machines.pool.pool_parts import PoolOrder, PoolParts
from stoker._engine.messages import Activities, FromAgent, Greeting
from stoker._engine.process.channel import Channel

SECONDS = 20.0


def accepted(listener: socket.socket, kind: bytes) -> socket.socket:
    connection, _ = listener.accept()
    connection.settimeout(SECONDS)
    assert connection.recv(TOKEN + 1, socket.MSG_WAITALL) == b"t" * TOKEN + kind
    return connection


@pytest.mark.parametrize("kind", [Agent, PoolAgent])
def test_agent_lives_while_the_dataset_comes(kind: type[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    comes, raised = threading.Event(), []

    def get(reference: object) -> object:
        assert comes.wait(SECONDS)
        raise LookupError("the object is lost")

    monkeypatch.setattr(agents, "BEAT", 0.01)
    monkeypatch.setattr(PoolAgent, "_end_when_alone", lambda self: None)  # would end this process
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=get, is_initialized=lambda: False))  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        pool = PoolOrder("p", "0", False, PoolParts("digest", "label", b"", ()))
        order = AgentOrder(3, listener.getsockname(), b"t" * TOKEN, {}, False, pool if kind is PoolAgent else None)

        def serve() -> None:
            try:
                kind().serve([object()], order)
            except LookupError as error:
                raised.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        control = accepted(listener, CONTROL)
        with control, accepted(listener, DATA):
            channel: Channel[FromAgent] = Channel(control)
            heard: list[FromAgent] = []
            while len(heard) < 4:
                control.settimeout(SECONDS)
                control.recv(1, socket.MSG_PEEK)
                control.setblocking(False)
                heard += channel.receive()
            comes.set()
            thread.join()
    assert isinstance(heard[0], Greeting) and all(isinstance(each, Activities) for each in heard[1:])
    assert raised and not [each for each in threading.enumerate() if each.name == "stoker-beat"]
