"""The bridge with a scheduler that is played, and agents that the test plays."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata

import pytest

from stoker._engine.machines import bridge as bridges
from stoker._engine.machines import starts
from stoker._engine.machines.agent import CONTROL, DATA, AgentOrder, versions
from stoker._engine.machines.bridge import Bridge
from stoker._engine.machines.cluster import Ray
from stoker._engine.machines.placement import Connected, Draining, Ended, Reached, Report, Shortage, Unreachable
from stoker._engine.machines.pool.pool_parts import PoolOrder, PoolParts
from stoker._engine.machines.starts import BridgeSettings
from stoker._engine.messages import (
    Activities,
    Broken,
    Greeting,
    InspectRemote,
    Message,
    RemoteDrains,
    RemoteExited,
    RemoteInspected,
    RemoteStarted,
    RemoteStartFailed,
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
            assert time.monotonic() < until, "nothing came"
            time.sleep(0.002)

    def hears(self, kind: type[Message]) -> Message:
        def first() -> Message | None:
            self._heard += self.zygote.receive()
            return next((message for message in self._heard if isinstance(message, kind)), None)

        self.await_(first)
        message = first()
        assert message is not None
        self._heard.remove(message)
        return message

    def start(self, number: int) -> AgentOrder:
        self.zygote.send(StartRemote(number))
        count = len(self.orders)
        self.report(Connected("127.0.0.1"))
        self.await_(lambda: len(self.orders) > count)
        return self.orders[-1]

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


@pytest.fixture
def played() -> Iterator[Played]:
    made = Played()
    yield made
    made.close_all()


def ready(played: Played, number: int = 0) -> Agent:
    agent = Agent(played, played.start(number))
    agent.data.send(Unpickled(0.1, 0, 0))
    assert played.hears(RemoteStarted) == RemoteStarted(number, "7 on host b (10.0.0.2)")
    return agent


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


def test_host_that_falls_silent_before_its_worker_began(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    Agent(played, played.start(0))
    played.await_(lambda: played.bridge._remotes[0].name)
    monkeypatch.setattr(starts, "SILENT", 0.0)
    assert played.hears(RemoteStartFailed) == RemoteStartFailed(0, "its host is lost (7 on host b (10.0.0.2))")


def test_host_without_the_dataset_says_why(played: Played) -> None:
    agent = Agent(played, played.start(0))
    played.await_(lambda: played.bridge._remotes[0].name)
    agent.close()
    played.await_(lambda: played.bridge._remotes[0].control.ended)  # type: ignore[union-attr]
    played.report(Ended(played.orders[0].token, "MemoryLimitError: too large"))
    assert played.hears(RemoteStartFailed) == RemoteStartFailed(
        0, "MemoryLimitError: too large"
    )  # others may have room


def test_host_that_is_lost_before_its_worker_began_is_replaced(played: Played) -> None:
    first = played.start(0)
    played.report(Ended(first.token, "its node has died", again=True))
    played.await_(lambda: len(played.orders) == 2)
    agent = Agent(played, played.orders[1])
    agent.data.send(Unpickled(0.1, 0, 0))
    played.hears(RemoteStarted)
    assert not played._heard


def test_host_that_is_lost_too_often_does_not_end_the_run() -> None:
    played = Played(local=1, start_timeout=0.0)
    played.explain = lambda: None  # type: ignore[method-assign]
    played.report(Ended(played.start(0).token, "its node has died", again=True))
    failed = played.hears(RemoteStartFailed)
    assert isinstance(failed, RemoteStartFailed) and failed.why == "its node has died"
    played.close_all()


def test_missing_room_waits_for_workers_on_their_way() -> None:
    played = Played(start_timeout=0.0)
    played.explain = lambda: None  # type: ignore[method-assign]
    agent = Agent(played, played.start(0))
    played.await_(lambda: played.bridge._remotes[0].name)
    played.start(1)
    played.report(Shortage("0 free"))
    played.await_(lambda: played.bridge._starts._asks_at)
    agent.data.send(Unpickled(0.1, 0, 0))
    assert played.hears(RemoteStarted) == RemoteStarted(0, "7 on host b (10.0.0.2)") and not played._heard
    played.report(Shortage("0 free"))
    failed = played.hears(RemoteStartFailed)
    assert isinstance(failed, RemoteStartFailed) and failed.worker == 1
    played.close_all()


def test_dataset_that_goes_to_disk_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "CONNECTING", 0.05)
    played = Played(start_timeout=0.0)
    assert "has not answered" in pickle.loads(played.hears(Broken).failure).text  # type: ignore[union-attr]
    played.close_all()
    monkeypatch.setattr(starts, "CONNECTING", 1.0)
    played = Played(start_timeout=0.0)
    played.report(Reached())
    played.await_(lambda: played.bridge._starts._connects_by > 1e12)
    played.close_all()


def test_host_that_cannot_connect_goes_by_ray(played: Played) -> None:
    for number in (0, 1):
        order = played.start(number)
        assert not order.by_ray
        played.report(Ended(order.token, "host b cannot reach the trainer.", closed=True))
        if number == 0:  # told once
            failed = played.hears(RemoteStartFailed)
            assert isinstance(failed, RemoteStartFailed) and "batches travel as objects of Ray" in failed.why
            played.zygote.send(StartRemote(0))
        played.await_(lambda: played.orders[-1].by_ray)
        played.orders.clear()
    assert not played._heard
    order = played.start(2)
    played.report(Ended(order.token, "it was no firewall", closed=False))
    assert "it was no firewall" in pickle.loads(played.hears(Broken).failure).text  # type: ignore[union-attr]


def test_drained_machine_is_told_once(played: Played) -> None:
    ready(played)
    for _ in range(2):
        played.report(Draining(frozenset({"n"})))
    drains = played.hears(RemoteDrains)
    assert isinstance(drains, RemoteDrains) and drains.worker == 0
    played.report(Ended(played.orders[0].token, None))
    played.hears(RemoteExited)
    assert not [message for message in played._heard if isinstance(message, RemoteDrains)]


def test_machine_that_is_drained_while_its_worker_starts(played: Played) -> None:
    agent = Agent(played, played.start(0))
    played.await_(lambda: played.bridge._remotes[0].name)
    played.report(Draining(frozenset({"n"})))
    ready(played, 1)
    assert isinstance(drains := played.hears(RemoteDrains), RemoteDrains) and drains.worker == 1
    agent.data.send(Unpickled(0.1, 0, 0))
    assert isinstance(drains := played.hears(RemoteDrains), RemoteDrains) and drains.worker == 0


def test_worker_of_a_drained_machine_moves_within_its_pool() -> None:
    played = Played(pool=PoolOrder("p", "", False, PoolParts("digest", "label", b"", ())))
    agent = ready(played)
    played.report(Draining(frozenset({"n"})))
    played.hears(RemoteDrains)
    agent.close()
    played.hears(RemoteExited)
    again = played.start(0)
    assert [order.pool and order.pool.place for order in (played.orders[0], again)] == ["0", "0-1"]
    played.close_all()


def test_rank_with_another_dataset_tries_again() -> None:
    played = Played()
    order = played.start(0)
    played.report(Ended(order.token, "PoolTakenError: ...", taken=True))
    played.await_(lambda: len(played.orders) == 2)
    assert played.orders[1].number == 0 and played.orders[1].token != order.token
    played.close_all()


def test_rank_with_another_dataset_ends_after_start_timeout() -> None:
    played = Played(local=1, start_timeout=0.0)
    played.report(Ended(played.start(0).token, "PoolTakenError: pool='p' holds A, and this rank sends B", taken=True))
    assert "holds A" in pickle.loads(played.hears(Broken).failure).text  # type: ignore[union-attr]
    played.close_all()


def test_cluster_that_cannot_be_used_ends_the_run(played: Played) -> None:
    played.report(Unreachable("ConnectionError: no cluster"))
    assert "no cluster" in pickle.loads(played.hears(Broken).failure).text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("RuntimeError: Version mismatch: The cluster was started with: Ray: 2.1", "same versions of Ray and Python"),
        ("ObjectStoreFullError: Failed to put object", "--object-store-memory"),
        ("ConnectionError: Could not find any running Ray instance.", "ray start --head"),
        ("ConnectionError: no head node answers at a:1 from host b: timed out", "timed out. Is that the head node's"),
        ("AuthenticationError: RPC error: InvalidAuthToken", "RAY_AUTH_MODE=token"),
    ],
)
def test_advice_fits_the_error_of_ray(played: Played, why: str, advice: str) -> None:
    played.report(Unreachable(why))
    text = pickle.loads(played.hears(Broken).failure).text  # type: ignore[union-attr]
    assert why in text and advice in text


def test_missing_room_ends_a_run_without_workers() -> None:
    played = Played(start_timeout=0.0)
    played.start(0)
    text = pickle.loads(played.hears(Broken).failure).text  # type: ignore[union-attr]
    assert "none of the 1 remote workers" in text and "CPU: 1 each, 0 free of 2" in text
    played.close_all()


def test_process_that_does_not_start_is_no_missing_room() -> None:
    played = Played(local=1, start_timeout=0.0)
    played.explain = lambda: played.report(Shortage("CPU: 1 each, 2 free of 3", True))  # type: ignore[method-assign]
    played.start(0)
    failed = played.hears(RemoteStartFailed)
    assert isinstance(failed, RemoteStartFailed) and "no room" not in failed.why
    assert "has not started its process after 0 s (start_timeout): CPU: 1 each, 2 free of 3" in failed.why
    played.close_all()


def cut_off(monkeypatch: pytest.MonkeyPatch) -> Played:
    """A cluster that places actors on a host from which nothing comes."""
    monkeypatch.setattr(starts, "SILENT", 0.2)
    monkeypatch.setattr(starts, "TRIED_AGAIN", 0.0)
    played = Played(start_timeout=0.0)

    def explain() -> None:
        placed = {order.token: "10.0.0.2" for order in played.orders}
        played.report(Shortage("CPU: 1 each, 0 free of 1", placed=placed))

    played.explain = explain  # type: ignore[method-assign]
    played.start(0)
    failed = played.hears(RemoteStartFailed)
    silent = "placed it on the host at 10.0.0.2, from which nothing has come after 0 s"
    assert isinstance(failed, RemoteStartFailed) and silent in failed.why and "no room" not in failed.why
    return played


def test_host_that_is_cut_off_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    played = cut_off(monkeypatch)
    text = pickle.loads(played.hears(Broken).failure).text  # type: ignore[union-attr]
    assert "from which nothing has come" in text and len(played.orders) == 2
    assert played.ended == [played.orders[0].token] and not played._heard
    played.close_all()


def test_worker_comes_from_a_host_that_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    played = cut_off(monkeypatch)
    played.await_(lambda: len(played.orders) == 2)
    agent = Agent(played, played.orders[1])
    agent.data.send(Unpickled(0.1, 0, 0))
    played.zygote.send(StartRemote(0))
    played.hears(RemoteStarted)
    played.close_all()


def test_ray_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "SILENT", 0.0)
    played = Played(start_timeout=0.0)
    played.explain = lambda: None  # type: ignore[method-assign]
    played.start(0)
    text = pickle.loads(played.hears(Broken).failure).text  # type: ignore[union-attr]
    assert "Ray has not said for 0 s what becomes of it: either its head node is lost" in text
    played.close_all()


def test_dataset_that_is_on_its_way_is_named() -> None:
    played = Played(local=1, start_timeout=0.0)
    played.explain = lambda: None  # type: ignore[method-assign]
    Agent(played, played.start(0))
    failed = played.hears(RemoteStartFailed)
    assert isinstance(failed, RemoteStartFailed) and "The dataset is still on its way to that host" in failed.why
    played.close_all()


@pytest.mark.parametrize("local", [0, 1])
def test_worker_that_unpickles_long_shows_its_stack(local: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "OPENED", 0.0)
    played = Played(local, start_timeout=0.0)
    played.explain = lambda: None  # type: ignore[method-assign]
    agent = Agent(played, played.start(0))
    played.await_(lambda: InspectRemote(0, 0) in agent.control.receive())
    agent.control.send(RemoteInspected(0, 0, "in import_torch", 0, 0))
    if local:
        failed = played.hears(RemoteStartFailed)
        assert isinstance(failed, RemoteStartFailed)
        text = failed.why
    else:
        text = pickle.loads(played.hears(Broken).failure).text  # type: ignore[union-attr]
    assert "(pid 7 on host b (10.0.0.2)) has not unpickled the dataset" in text and "in import_torch" in text
    played.close_all()


@pytest.mark.parametrize("ready_before", [True, False], ids=["ready", "not ready"])
def test_end_of_a_worker_that_was_given_up_is_not_told(ready_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(local=1, start_timeout=0.0)
    played.explain = lambda: None  # type: ignore[method-assign]
    ready(played, 1)
    agent = Agent(played, played.start(0))
    played.await_(lambda: InspectRemote(0, 0) in agent.control.receive())
    agent.control.send(RemoteInspected(0, 0, "in import_torch", 0, 0))
    played.hears(RemoteStartFailed)
    remote = played.bridge._remotes[0]
    if ready_before:
        agent.data.send(Unpickled(0.1, 0, 0))
        played.await_(lambda: remote.is_ready)
    agent.control.send(RemoteExited(0, 1, 0, 0, "", False))
    agent.data.close()
    played.await_(lambda: 0 not in played.bridge._remotes)
    ready(played, 2)
    assert not [message for message in played._heard if isinstance(message, RemoteExited | RemoteStartFailed)]
    played.close_all()


def test_missing_room_is_reported_and_the_worker_may_come() -> None:
    played = Played(local=1, start_timeout=0.0)
    order = played.start(0)
    failed = played.hears(RemoteStartFailed)
    assert isinstance(failed, RemoteStartFailed) and "0 free of 2" in failed.why
    agent = Agent(played, order)
    agent.data.send(Unpickled(0.1, 0, 0))
    played.zygote.send(StartRemote(0))
    played.hears(RemoteStarted)
    played.close_all()
