"""A pool whose agents are processes of this machine, shared by the loaders of a test without Ray."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from stoker._engine.machines.agent import AgentOrder
from stoker._engine.machines.placement import Connected, Ended, Report, Shortage
from stoker._engine.machines.pool import pool_agent
from stoker._engine.machines.pool.pool_agent import PoolAgent, PoolTakenError
from tests._engine.machines.local_cluster import HERE, LocalCluster

LINGERS = 1.0
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class LocalPool(LocalCluster):
    """A cluster in which loaders share the agents of a folder.

    Attributes:
        folder: of the agents' sockets.
    """

    folder: str = ""

    def launcher(self, pickled: bytes, large: list[memoryview], modules: list[str], wake: Callable[[], None]) -> Any:
        arrays: list[object] = [np.frombuffer(view, np.uint8) for view in large]
        return _Calls(self.folder, (np.frombuffer(pickled, np.uint8), arrays, modules), wake)


class _Calls:
    """Calls the agents, each from a thread."""

    def __init__(self, folder: str, contents: Any, wake: Callable[[], None]) -> None:
        self._folder, self._contents, self._wake = folder, contents, wake
        self._reports: list[Report] = [Connected(HERE)]
        wake()

    def place(self, order: AgentOrder) -> None:
        threading.Thread(target=self._call, args=(order,), daemon=True).start()

    def _call(self, order: AgentOrder) -> None:
        assert order.pool is not None
        why, again, taken = None, False, False
        try:
            with _reached(f"{self._folder}/{order.pool.name}-{order.pool.place}") as agent:
                agent.send((self._contents, order))
                error = agent.recv()
            if error is not None:
                why, taken = f"{type(error).__name__}: {error}", isinstance(error, PoolTakenError)
        except (OSError, EOFError):  # it was about to end
            why, again = "the agent has ended", True
        self._reports.append(Ended(order.token, why, again, taken=taken))
        self._wake()

    def end(self, token: bytes) -> None:
        pass

    def explain(self) -> None:
        self._reports.append(Shortage("none"))
        self._wake()

    def close(self, seconds: float) -> None:
        pass

    def drained(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports


def _reached(path: str) -> Connection[Any, Any]:
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the loaders starts it
        try:
            return Client(path, "AF_UNIX")
        except OSError:
            Path(path).unlink(missing_ok=True)
            subprocess.Popen(
                [sys.executable, "-m", "tests._engine.machines.local_pool", path],
                start_new_session=True,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
            )
            while not os.path.exists(path):
                time.sleep(0.01)
            return Client(path, "AF_UNIX")


def agents(folder: str) -> list[int]:
    """Returns the pids of the agents that live."""
    return [pid for file in Path(folder).glob("*.pid") if os.path.exists(f"/proc/{(pid := int(file.read_text()))}")]


def await_end(folder: str, seconds: float = 30.0) -> None:
    """Waits until the pool has ended by itself."""
    until = time.monotonic() + seconds
    while left := agents(folder):
        assert time.monotonic() < until, f"agents outlive their ranks: {left}"
        time.sleep(0.05)


def serve(path: str) -> None:
    """The life of an agent."""

    pool_agent.LINGERS = LINGERS
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    Path(f"{path}.pid").write_text(str(os.getpid()))
    agent = PoolAgent()
    listener = Listener(f"{path}.new", "AF_UNIX")
    os.rename(f"{path}.new", path)

    def answer(connection: Connection[Any, Any]) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            contents, order = connection.recv()
            error = None
            try:
                agent.serve([contents], order)
            except Exception as raised:
                error = raised
            connection.send(error)

    while True:
        threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1])
