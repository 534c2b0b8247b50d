"""Starts of workers on other machines, with a scheduler and agents that the test plays."""

from __future__ import annotations

import pickle

import pytest

from stoker._engine.machines import starts
from stoker._engine.machines.placement import Draining, Ended, Reached, Shortage, Unreachable
from stoker._engine.machines.pool.pool_parts import PoolOrder, PoolParts
from stoker._engine.messages import (
    Broken,
    InspectRemote,
    RemoteDrains,
    RemoteExited,
    RemoteInspected,
    RemoteStarted,
    RemoteStartFailed,
    StartRemote,
    Unpickled,
)
from tests._engine.machines.played import Agent, Played, ready


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


def test_host_that_ends_while_the_dataset_comes_is_reported() -> None:
    played = Played(local=1, start_timeout=1.0)
    order = played.start(0)
    for _ in range(5):
        agent = Agent(played, order)
        played.await_(lambda: played.bridge._remotes[0].name)
        agent.close()
        count = len(played.orders)
        played.report(Ended(order.token, "ActorDiedError: killed", again=True))
        played.await_(lambda count=count: len(played.orders) > count or played.heard(RemoteStartFailed))
        if played.heard(RemoteStartFailed):
            break
        order = played.orders[-1]
    assert played.heard(RemoteStartFailed)  # while it is tried
    played.close_all()


def test_closed_port_between_two_tries_ends_no_run() -> None:
    played = Played(local=1, start_timeout=0.0)
    order = played.start(0)
    played.hears(RemoteStartFailed)
    played.report(Ended(order.token, "ClosedPortError: host b cannot reach the trainer", closed=True))
    played.await_(lambda: order.token in played.ended)
    assert not played.heard(Broken)
    assert played.start(0).token != order.token
    played.close_all()


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
