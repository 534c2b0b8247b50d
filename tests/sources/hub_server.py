"""The server that answers as the Hugging Face Hub does, as a program of its own."""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.sources.object_servers import QUICK

TOKEN = "hf_thesecrettoken"
FIRST, SECOND = "a" * 40, "b" * 40
"""Commits."""


class Hub:
    """The Hub, with the repository of data sets `we/data`.

    Attributes:
        options: storage options with quick retries.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.root = f"hf://datasets/we/data@{FIRST}/"
        self.options: dict[str, Any] = {"retry_config": {"max_retries": 3, "retry_timeout": 10, **QUICK}}
        self._repositories: dict[str, Any] = {}

    def put(
        self,
        files: Mapping[str, bytes],
        commit: str = FIRST,
        name: str = "datasets/we/data",
        branch: str = "main",
        token: str | None = None,
    ) -> str:
        """Makes a commit of a repository, which a branch stands for from now on; returns the URL of its root."""
        found = self._repositories.setdefault(name, {"branches": {}, "commits": {}})
        found["commits"][commit] = {path: base64.b64encode(data).decode() for path, data in files.items()}
        found["branches"][branch], found["token"] = commit, token
        self.plan()
        return f"hf://{name.removeprefix('models/')}@{commit}/"

    def plan(self, *faults: int, expire: bool = False) -> None:
        """Sets the statuses of the next answers of the Hub, 0 for none, and forgets the requests before."""
        told = {"repositories": self._repositories, "faults": faults, "expire": expire}
        self._ask("PUT", "/_state", json.dumps(told).encode())

    def requests(self) -> list[list[Any]]:
        """Returns server, method, path, range and authorization of each request since the plan."""
        found: list[list[Any]] = json.loads(self._ask("GET", "/_requests"))
        return found

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, data)
        found = connection.getresponse().read()
        connection.close()
        return found


@pytest.fixture(scope="session")
def hub_port() -> Iterator[int]:
    for module in ("obstore", "huggingface_hub"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    program = Path(__file__).with_name("fake_hub.py")
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def hub(hub_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """The Hub without a repository, to which the environment leads, with a token."""
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    found = Hub(hub_port)
    found.plan()
    return found
