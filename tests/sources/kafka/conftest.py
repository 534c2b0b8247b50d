from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("broker_process.py")


class Broker:
    """A broker in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the broker has ended"
        return line.strip()

    def call(self, *command: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self._answer())

    def fill(self, topic: str, counts: list[int], begin: int = 0) -> None:
        """Makes a topic whose partition p has the values "p.0", "p.1", …"""
        if not begin:
            self.call("create", topic, len(counts))
        for partition, count in enumerate(counts):
            self.call("produce", topic, partition, [f"{partition}.{n}" for n in range(begin, begin + count)])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[Broker]:
    """A broker that stays up. Topics are of one test each."""
    pytest.importorskip("confluent_kafka")
    broker = Broker()
    yield broker
    broker.close()


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker that a test may stop."""
    pytest.importorskip("confluent_kafka")
    broker = Broker()
    yield broker
    broker.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of a topic for this test alone."""
    return "".join(char if char.isalnum() else "-" for char in request.node.name)[:200]
