"""How many workers on other machines does one bridge serve, and how soon does it notice an end?

The bridge of `stoker._engine.machines` in a process of its own, with real sockets. Zygote, scheduler and agents are
played by two other processes of this machine. Each agent says twice a second that its machine lives. A unit is a
message to a worker and its answer, without a batch; one for each worker is under way. An end is that of both
connections of a worker, as the kernel of a machine closes them when it kills the processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import queue
import resource
import selectors
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import method
from method import Case, Figures, Goal

from stoker import Ray
from stoker._engine.backend import UnitReport
from stoker._engine.machines.agent import BEAT, CONTROL, DATA, AgentOrder, versions
from stoker._engine.machines.bridge import Bridge
from stoker._engine.machines.placement import Connected, Report
from stoker._engine.machines.starts import BridgeSettings
from stoker._engine.messages import (
    Activities,
    ForRemote,
    FromRemote,
    Greeting,
    RemoteExited,
    RemoteStarted,
    StartRemote,
    Unit,
    UnitDone,
    Unpickled,
    packed,
)
from stoker._engine.process.channel import Channel, pair
from stoker._engine.transport.segments import ArenaFiles

NOTICED, WORST = "ms until an end is noticed", "the slowest of them"
COST, QUIET, MEMORY = "CPU us for a unit", "CPU share without units", "MB of the bridge"
BEGIN = "CPU us to begin, a worker"
ENDS = 50


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 1.0 if options.quick else 5.0
    counts = (20,) if options.quick else (100, 1_000, 4_000)
    rows = {f"{count:,} workers": {"workers": count, "seconds": seconds} for count in (2, *counts)}
    goals = [Goal(NOTICED, at_most=1000), Goal(QUIET, at_most=0.5)]
    return [Case("one bridge", {name: rows[name] for name in reversed(rows)}, goals)]


def measure(workers: int, seconds: float) -> Figures:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with played(workers) as (zygote, bridge, end):
        started = set[int]()
        while len(started) < workers:
            started |= {message.worker for message in heard(zygote) if isinstance(message, RemoteStarted)}
        to_begin = cpu_seconds(bridge) / workers
        quiet = share(zygote, bridge, seconds)
        made, began, used = 0, time.perf_counter(), cpu_seconds(bridge)
        for worker in range(workers):
            zygote.queue(unit(worker))
        while time.perf_counter() < began + seconds:
            for message in heard(zygote):
                if isinstance(message, FromRemote):
                    made += 1
                    zygote.queue(unit(message.worker))
        cost = (cpu_seconds(bridge) - used - quiet * (time.perf_counter() - began)) / made
        noticed = [noticed_after(zygote, end, worker) for worker in range(1, min(ENDS, workers))]
        return {
            NOTICED: 1e3 * statistics.median(noticed),
            WORST: 1e3 * max(noticed),
            COST: 1e6 * cost,
            QUIET: quiet,
            BEGIN: 1e6 * to_begin,
            MEMORY: resident(bridge) / 1e6,
        }


def unit(worker: int) -> ForRemote:
    return ForRemote(worker, packed(Unit(0, b"", [], [], None)))


def heard(zygote: Channel[Any]) -> list[Any]:
    zygote.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(zygote.fileno(), selectors.EVENT_READ)
        selector.select(0.05)
    return zygote.receive()


def share(zygote: Channel[Any], bridge: int, seconds: float) -> float:
    """Returns the share of a CPU that the bridge takes while it hears signs of life alone."""
    used, began = cpu_seconds(bridge), time.perf_counter()
    while time.perf_counter() < began + seconds:
        heard(zygote)
    return (cpu_seconds(bridge) - used) / (time.perf_counter() - began)


def noticed_after(zygote: Channel[Any], end: Any, worker: int) -> float:
    began = time.perf_counter()
    end.send(worker)
    while not any(isinstance(message, RemoteExited) for message in heard(zygote)):
        pass
    return time.perf_counter() - began


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@contextmanager
def played(workers: int) -> Iterator[tuple[Channel[Any], int, Any]]:
    """Starts a bridge and its agents; yields the zygote's end, the pid of the bridge, and where ends are asked for."""
    context = multiprocessing.get_context("fork")
    ours, theirs = pair()
    orders, placed = context.Pipe()
    ends, end = context.Pipe()
    bridge = context.Process(target=run_bridge, args=(theirs, ours, placed, workers), daemon=True)
    agents = context.Process(target=run_agents, args=(orders, ends, workers), daemon=True)
    for process in (bridge, agents):
        process.start()
    theirs.close()
    with closing(Channel[Any](ours)) as zygote:
        for worker in range(workers):
            zygote.send(StartRemote(worker))
        yield zygote, bridge.pid or 0, end
    for process in (bridge, agents):
        process.kill()
        process.join()


def run_bridge(end: socket.socket, other: socket.socket, placed: Any, workers: int) -> None:
    other.close()
    bridge = Bridge(Channel(end), ArenaFiles.create(), BridgeSettings(Ray(workers, start_timeout=300), 0), {})
    bridge.use(Scheduler(placed))
    bridge.wake()
    bridge.run()


class Scheduler:
    """Passes the orders on to the played agents."""

    def __init__(self, placed: Any) -> None:
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._pass_on, args=(placed,), daemon=True).start()
        self._reports: list[Report] = [Connected("127.0.0.1")]

    def place(self, order: AgentOrder) -> None:
        self._orders.put((order.number, order.bridge, order.token))

    def _pass_on(self, placed: Any) -> None:
        while True:
            placed.send(self._orders.get())

    def end(self, token: bytes) -> None:
        pass

    def explain(self) -> None:
        pass

    def close(self, seconds: float) -> None:
        pass

    def drained(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports


def run_agents(orders: Any, ends: Any, workers: int) -> None:
    """Plays all agents and their workers."""
    controls: dict[int, socket.socket] = {}
    datas: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    selector.register(ends.fileno(), selectors.EVENT_READ, None)
    selector.register(orders.fileno(), selectors.EVENT_READ, -1)
    answer = wire(UnitDone(0, "empty", b"", 1.0, tuple(UnitReport(samples=1)), 1.0))
    beat_at = time.monotonic() + BEAT / 10
    turn = 0
    while True:
        for key, _ in selector.select(max(0.0, beat_at - time.monotonic())):
            if key.data is None:
                gone = ends.recv()
                selector.unregister(datas[gone].fileno())
                controls.pop(gone).close()
                datas.pop(gone).close()
            elif key.data == -1:
                number, address, token = orders.recv()
                controls[number], datas[number] = (connected(address, token, kind) for kind in (CONTROL, DATA))
                controls[number].sendall(wire(Greeting("node", "host", "127.0.0.1", number, versions())))
                datas[number].sendall(wire(Unpickled(0.1, 0, 0)))
                selector.register(datas[number].fileno(), selectors.EVENT_READ, number)
            elif key.data not in datas:
                continue  # it has just ended
            elif datas[key.data].recv(1 << 16):
                datas[key.data].sendall(answer)
            else:
                return
        if time.monotonic() >= beat_at:  # a tenth of the agents each time
            beat_at += BEAT / 10
            turn = (turn + 1) % 10
            for number, control in controls.items():
                if number % 10 == turn:
                    control.sendall(wire(Activities(number, 0, 0, 0, time.perf_counter())))


def connected(address: tuple[str, int], token: bytes, kind: bytes) -> socket.socket:
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(token + kind)
    return connection


def wire(message: Any) -> bytes:
    data = pickle.dumps(packed(message), 5)
    return struct.pack("<Q", len(data)) + data


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
