"""The bridge with a scheduler that is played, and agents that the test plays."""

from __future__ import annotations

import pickle
import socket
import struct
import time
from importlib import metadata

import pytest

from stoker._engine.machines import bridge as bridges
from stoker._engine.machines import starts
from stoker._engine.machines.agent import DATA, versions
from stoker._engine.machines.cluster import Ray
from stoker._engine.messages import (
    Activities,
    Broken,
    RemoteExited,
    RemoteStarted,
    Unpickled,
)
from tests._engine.machines.played import SECONDS, Agent, Played, ready


def test_worker_starts_unpickled_and_is_lost_with_its_agent(played: Played) -> None:
    agent = ready(played)
    agent.control.send(Activities(0, 5, 0, 0))
    assert played.hears(Activities) == Activities(0, 5, 0, 0)
    agent.close()
    assert played.hears(RemoteExited) == RemoteExited(0, None, 5, 0, "", True)
    assert played.ended == [played.orders[0].token]


def test_exit_that_the_agent_reports_is_exact(played: Played) -> None:
    agent = ready(played)
    agent.data.close()
    agent.control.send(RemoteExited(0, -11, 3, 0, "stack", False))
    assert played.hears(RemoteExited) == RemoteExited(0, -11, 3, 0, "stack", False)


def test_stranger_without_the_token_is_turned_away(played: Played) -> None:
    order = played.start(0)
    stranger = socket.create_connection(order.bridge)
    stranger.sendall(b"x" * 32 + DATA)
    assert stranger.recv(1) == b""
    stranger.close()
    agent = Agent(played, order)
    agent.data.send(Unpickled(0.1, 0, 0))
    played.hears(RemoteStarted)


def test_silent_strangers_delay_nobody(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    order = played.start(0)
    silent = [socket.create_connection(order.bridge) for _ in range(3)]
    silent[0].sendall(order.token[:7])
    before = time.monotonic()
    agent = Agent(played, order)
    agent.data.send(Unpickled(0.1, 0, 0))
    played.hears(RemoteStarted)
    assert time.monotonic() - before < bridges.STRANGER
    monkeypatch.setattr(bridges, "STRANGER", 0.0)
    silent.append(socket.create_connection(order.bridge))
    silent[-1].settimeout(SECONDS)
    assert silent[-1].recv(1) == b""
    for each in silent:
        each.close()


def test_second_connection_of_a_kind_is_turned_away(played: Played) -> None:
    first = ready(played)
    second = Agent(played, played.orders[0])
    for channel in (second.control, second.data):
        played.await_(lambda channel=channel: channel.receive() or channel.ended)
    first.control.send(Activities(0, 5, 0, 0))
    assert played.hears(Activities) == Activities(0, 5, 0, 0)


def test_other_versions_end_the_run_and_both_are_named(played: Played) -> None:
    Agent(played, played.start(0), ("Stoker 9.9", "Python 2.7", "NumPy 2"))
    failure = pickle.loads(played.hears(Broken).failure)  # type: ignore[union-attr]
    assert "host b (10.0.0.2) runs Stoker 9.9, Python 2.7" in failure.text and versions()[0] in failure.text


def test_package_without_metadata_is_a_version_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert versions.__wrapped__()[0] == "Stoker that pip has not installed"


@pytest.mark.parametrize("sent", [pickle.dumps(Ray(1)), b"no pickle", pickle.dumps(("UnitDone", 1)), pickle.dumps(7)])
def test_message_that_no_worker_sends_names_its_worker(played: Played, sent: bytes) -> None:
    agent = ready(played)
    agent.data.queue_bytes(memoryview(struct.pack("<Q", len(sent)) + sent))
    agent.data.flush()
    failure = pickle.loads(played.hears(Broken).failure)  # type: ignore[union-attr]
    assert "worker 0 (7 on host b (10.0.0.2)) sent a message that is none of a worker's" in failure.text


def test_silent_host_is_lost(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(played)
    monkeypatch.setattr(starts, "SILENT", 0.0)
    assert played.hears(RemoteExited) == RemoteExited(0, None, 0, 1, "", True)
