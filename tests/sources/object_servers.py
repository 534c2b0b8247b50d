"""Servers of objects as programs of their own: moto's S3, and the faulty proxy before it."""

from __future__ import annotations

import http.client
import importlib.util
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

QUICK = {"backoff": {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20)}}
_numbers = itertools.count()


class Bucket:
    """A bucket of moto's server, empty at first, which requests without a signature may use."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.name = f"bucket-{next(_numbers)}"
        self._ask("PUT", "")
        statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{self.name}/*"}
        self._ask("PUT", "?policy", json.dumps({"Version": "2012-10-17", "Statement": [statement]}).encode())

    def url(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}"

    def http(self, key: str) -> str:
        return f"http://127.0.0.1:{self.port}/{self.name}/{quote(key)}"

    def put(self, key: str, data: bytes) -> str:
        self._ask("PUT", key, data)
        return self.url(key)

    def upload(self, path: Path) -> str:
        return self.put(path.name, path.read_bytes())

    def delete(self, key: str) -> None:
        self._ask("DELETE", key)

    def _ask(self, method: str, key: str, data: bytes | None = None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, f"/{self.name}/{key if key.startswith('?') else quote(key)}", data)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status < 300, (method, key, answer.status)


class Faults:
    """The faulty proxy.

    Attributes:
        options: storage options that lead through it.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.options: dict[str, Any] = {
            "endpoint": f"http://127.0.0.1:{port}",
            "retry_config": {"max_retries": 3, "retry_timeout": 10, **QUICK},
            "client_options": {"read_timeout": "400ms"},
        }

    def plan(self, *faults: str) -> None:
        """Sets the faults of the next requests, and forgets those before."""
        self._ask("PUT", "/_faults", json.dumps(faults).encode())

    def requests(self) -> list[list[str]]:
        """Returns method, path and range of each request since the plan."""
        found: list[list[str]] = json.loads(self._ask("GET", "/_requests"))
        return found

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, data)
        found = connection.getresponse().read()
        connection.close()
        return found


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    for module in ("obstore", "moto.server", "flask"):
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"{module} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    pytest.fail(f"moto's server does not answer (exit code {process.poll()})")


@pytest.fixture(scope="session")
def proxy_port(s3_port: int) -> Iterator[int]:
    program = Path(__file__).with_name("faulty_proxy.py")
    process = subprocess.Popen([sys.executable, program, str(s3_port)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def bucket(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket, to which the environment leads."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDSECRET")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-key")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return Bucket(s3_port)


@pytest.fixture
def faults(bucket: Bucket, proxy_port: int) -> Faults:
    """The faulty proxy, without a fault so far."""
    found = Faults(proxy_port)
    found.plan()
    return found
