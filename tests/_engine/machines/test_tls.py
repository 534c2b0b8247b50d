"""Connections with Ray's certificates, without Ray."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine.machines import tls
from stoker._engine.machines.agent import DATA
from stoker._engine.messages import RemoteStarted, Unpickled
from stoker._engine.process.channel import Channel
from tests._engine.machines.local_cluster import LocalCluster
from tests._engine.machines.test_bridge import Agent, Played

if shutil.which("openssl") is None:
    pytest.skip("openssl makes the certificates", allow_module_level=True)


def authority(folder: Path, name: str, names: str = "DNS:localhost") -> dict[str, str]:
    """Makes an authority and a certificate of it for these names; returns Ray's environment variables."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *key, "-keyout", f"{name}-ca.key", "-out", f"{name}-ca.crt", "-subj", f"/CN={name}")
    openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=node")
    signs = (
        "-CA",
        f"{name}-ca.crt",
        "-CAkey",
        f"{name}-ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        f"{name}.ext",
    )
    (folder / f"{name}.ext").write_text(f"subjectAltName={names}")
    openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signs)
    files = {"SERVER_CERT": f"{name}.crt", "SERVER_KEY": f"{name}.key", "CA_CERT": f"{name}-ca.crt"}
    return {"RAY_USE_TLS": "1", **{f"RAY_TLS_{which}": str(folder / file) for which, file in files.items()}}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture
def used(ours: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use(ours, monkeypatch)
    yield
    monkeypatch.undo()
    tls._context.cache_clear()


def use(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tls._context.cache_clear()


@pytest.fixture
def played() -> Iterator[Played]:
    made = Played()
    yield made
    made.close_all()


class TLSAgent(Agent):
    def _connect(self, order: Any, kind: bytes) -> socket.socket:
        connection = tls.around(socket.create_connection(order.bridge), is_server=False)
        connection.sendall(order.token + kind)
        return connection


def test_bridge_and_agents_speak_tls(used: None, played: Played) -> None:
    agent = TLSAgent(played, played.start(0))
    played.await_(lambda: played.bridge._remotes[0].name)  # the greeting is there: each connection has its thread
    agent.data.send(Unpickled(0.1, 0, 0))
    assert played.hears(RemoteStarted) == RemoteStarted(0, "7 on host b (10.0.0.2)")


def test_plain_connection_with_the_token_is_turned_away(used: None, played: Played) -> None:
    order = played.start(0)
    with socket.create_connection(order.bridge) as stranger:
        stranger.sendall(order.token + DATA)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(1 << 10):
                pass
    assert played.bridge._remotes[0].data is None


def test_certificate_of_another_authority_is_refused(
    used: None, played: Played, tmp_path: Path, ours: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order = played.start(0)
    made, bridges = tls._context, tls._context(True)
    monkeypatch.setattr(tls, "_context", lambda is_server: bridges if is_server else made(False))
    theirs = authority(tmp_path, "theirs")
    for variables, refuses in ((theirs, "client"), ({**theirs, "RAY_TLS_CA_CERT": ours["RAY_TLS_CA_CERT"]}, "bridge")):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        made.cache_clear()
        connection = socket.create_connection(order.bridge)
        if refuses == "client":
            with pytest.raises(OSError, match="certificate"):
                tls.around(connection, is_server=False)
            continue
        with tls.around(connection, is_server=False) as end, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            end.sendall(order.token + DATA)
            assert end.recv(1) == b""
    assert played.bridge._remotes[0].data is None
    made.cache_clear()


def test_much_data_goes_both_ways_and_ends(used: None) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    there = tls.around(accepted, is_server=True)
    here = tls.around(client, is_server=False)
    data = np.random.default_rng(0).bytes(3 << 20)
    channels: list[Channel[Any]] = [Channel(here), Channel(there)]
    received = [bytearray(), bytearray()]
    for channel in channels:
        channel.queue_bytes(memoryview(data))
    while any(len(each) < len(data) for each in received):
        for channel, end, got in zip(channels, (here, there), received, strict=True):
            channel.flush()
            try:
                got += end.recv(1 << 20)
            except BlockingIOError:
                continue
    assert received == [data, data]
    here.close()
    there.setblocking(True)
    assert there.recv(1) == b""
    there.close()
    listener.close()


def test_loader_with_remote_workers_over_tls(used: None) -> None:
    dataset = [np.full(100_000, index) for index in range(8)]
    with stoker.DataLoader(dataset, 2, remote=LocalCluster(1), output="numpy") as loader:
        assert [batch[:, 0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
