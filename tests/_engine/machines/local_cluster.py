"""Agents as processes of this machine, placed without Ray: a cluster for tests, to be passed as `remote=`."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any, cast

import numpy as np

from stoker import Ray
from stoker._engine.machines import starts
from stoker._engine.machines.agent import Agent, AgentOrder, Contents
from stoker._engine.machines.placement import Connected, Ended, Report, Shortage
from stoker._engine.messages import StoreUse

HERE = "127.0.0.1"


@dataclass(frozen=True)
class LocalCluster(Ray):
    """A cluster whose machines are processes of this one.

    Attributes:
        places: agents for which there is room.
        silent: seconds without a sign of life after which a host counts as lost.
    """

    places: int = 100
    silent: float = 60.0

    def check_installed(self) -> None:
        """It needs no Ray."""

    def launcher(self, pickled: bytes, large: list[memoryview], modules: list[str], wake: Callable[[], None]) -> Any:
        starts.SILENT = self.silent
        arrays: list[object] = [np.frombuffer(view, np.uint8) for view in large]
        return _Processes(self.places, (np.frombuffer(pickled, np.uint8), arrays, modules), wake)


class _Processes:
    """Starts a process for each agent."""

    def __init__(self, places: int, contents: Contents, wake: Callable[[], None]) -> None:
        self._places, self._contents, self._wake = places, contents, wake
        self._agents: dict[bytes, BaseProcess] = {}
        self._reports: list[Report] = [Connected(HERE), StoreUse(len(contents[0]), 1 << 20, 1 << 30)]
        self._context = multiprocessing.get_context("spawn")
        wake()

    def place(self, order: AgentOrder) -> None:
        if len(self._agents) >= self._places:
            return
        agent = self._context.Process(target=_serve, args=(self._contents, order))
        agent.start()
        self._agents[order.token] = agent
        threading.Thread(target=self._await, args=(order.token, agent), daemon=True).start()

    def _await(self, token: bytes, agent: BaseProcess) -> None:
        agent.join()
        self._tell(Ended(token, None if agent.exitcode in (0, -signal.SIGKILL) else f"exit code {agent.exitcode}"))

    def end(self, token: bytes) -> None:
        if (agent := self._agents.pop(token, None)) is not None:
            with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
                os.killpg(cast("int", agent.pid), signal.SIGKILL)  # its worker too, as Ray does
            agent.kill()

    def explain(self) -> None:
        self._tell(Shortage(f"{self._places} places"))

    def close(self, seconds: float) -> None:
        for token in [*self._agents]:
            self.end(token)

    def drained(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def _tell(self, report: Report) -> None:
        self._reports.append(report)
        self._wake()


def _serve(contents: Contents, order: AgentOrder) -> None:
    os.setpgid(0, 0)  # agent and worker are one host, to be stopped and killed together
    os.environ.pop("PYTHONHASHSEED", None)  # which has its own environment
    Agent().serve([contents], order)


def hosts(bridge: int) -> list[int]:
    """Returns the process groups of the hosts of a bridge, which are also the pids of their agents."""
    return [pid for pid in children(bridge) if os.getpgid(pid) == pid]


def children(pid: int) -> list[int]:
    """Returns the pids of a process's children."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
            found += map(int, file.read().split())
    return found


@contextlib.contextmanager
def stopped(host: int) -> Iterator[None]:
    """Stops all processes of a host, as a pause of its machine does."""
    os.killpg(host, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(host, signal.SIGCONT)
