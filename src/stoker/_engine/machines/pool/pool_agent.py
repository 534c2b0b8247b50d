"""The agent of a pool: an actor that the ranks of a job share, with a process that holds the dataset once, and in which
each rank has a worker.

Each rank has its connections, its token, and a worker of its own number; the supervisor of a rank knows nothing of
the others. Threads: one for each rank, and one that ends the actor when no rank is left.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from stoker._engine.activity import SIZE
from stoker._engine.fork.forked_process import Stacks
from stoker._engine.fork.fresh_interpreter import launch
from stoker._engine.machines.agent import ALONE, Agent, AgentOrder, AgentsWorker, Contents, fetched, preparation_for
from stoker._engine.machines.node_copy import NodeCopy
from stoker._engine.machines.pool.pool_process import END, NUMBER, SHARES, SIZE_OF, PoolPlan, Seat
from stoker._engine.process import linux
from stoker._engine.process.deadlines import REAP
from stoker._engine.serialize.payload import Block, Head
from stoker._engine.spawn.worker import SharedActivity
from stoker._engine.transport import segments
from stoker.errors import WorkerStartError

LINGERS = 4.0
"""Seconds without a rank after which a pool ends: the next epoch may begin. With `ALONE` it is less than 30."""


class PoolTakenError(WorkerStartError):
    """Ranks that send another dataset use the pool of this name now."""


class PoolAgent(Agent):
    """The class of the actors of a pool. Each call of `serve` is the life of one rank's worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._choice = threading.Lock()  # of the dataset, which may be long on its way
        self._host: PoolHost | None = None
        self._ranks = 0  # that call
        self._seated: set[bytes] = set()  # the tokens of those that use the process
        self._ends_at = time.monotonic() + ALONE
        threading.Thread(target=self._end_when_alone, name="stoker-pool", daemon=True).start()

    def serve(self, contents: Sequence[object], order: AgentOrder) -> None:
        """Has a worker for a rank; returns when it has ended.

        Args:
            contents: a list with the parts, or with a reference to them in the object store of the rank.
            order: of the rank.

        Raises:
            PoolTakenError: other ranks use it, with another dataset.
            ConnectionError: the bridge cannot be reached.
        """
        with self._lock:
            self._ranks += 1
        try:
            super().serve(contents, order)
        finally:
            self._seated.discard(order.token)
            with self._lock:
                self._ranks -= 1
                self._ends_at = time.monotonic() + LINGERS

    def _worker(self, contents: Sequence[object], order: AgentOrder, data: socket.socket, place: str) -> AgentsWorker:
        assert order.pool is not None
        parts = order.pool.parts
        with self._choice:
            host, ranks = self._host, len(self._seated)
            if host is not None and host.parts.digest != parts.digest and ranks:
                raise PoolTakenError(
                    f"pool={order.pool.name!r} holds {host.parts.label} for {ranks} rank(s), and this rank sends "
                    f"{parts.label}. Name another pool, or send the same dataset, collate_fn, worker_init_fn, on_error "
                    "and batch_transform. The pickles of two ranks also differ where an object holds the rank (let the "
                    "sampler divide the dataset), or a set of texts (PYTHONHASHSEED=0)."
                )
            if host is None or host.parts.digest != parts.digest or host.has_ended():
                self._host = None
                if host is not None:
                    host.close()
                host = self._host = PoolHost(fetched(contents), order)
            self._seated.add(order.token)
            return _Seated(host, order, data, place)

    def _end_when_alone(self) -> None:
        while True:
            time.sleep(LINGERS / 8)
            with self._lock:
                if not self._ranks and time.monotonic() >= self._ends_at:
                    if self._host is not None:
                        self._host.close()
                    _end_actor()


def _end_actor() -> NoReturn:
    """Ends this process. Ray tells the user of a crash, unless it ends the actor itself."""
    ray = sys.modules.get("ray")
    with contextlib.suppress(Exception):
        if ray is not None and ray.is_initialized():
            ray.kill(ray.get_runtime_context().current_actor)
            time.sleep(REAP)
    os._exit(0)


class PoolHost:
    """The process of the pool on this host.

    Attributes:
        parts: that it holds.
    """

    def __init__(self, contents: Contents, order: AgentOrder) -> None:
        assert order.pool is not None
        self.parts = order.pool.parts._replace(settings=b"")
        pickled, large, modules = contents
        self._requests, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        stream = Block()
        stream.write(pickled.data)
        self._copy = NodeCopy(self.parts.digest, [view.data for view in large])
        head = Head(
            entry="stoker._engine.machines.pool.pool_process:run",
            fds=[theirs.fileno(), lifeline],
            shared=[],
            preparation=preparation_for(order),
            modules=list(modules),
            plan=pickle.dumps(PoolPlan(order.pool.once, self.parts.classes)),
            buffers=self._copy.fd,
            places=self._copy.places,
            tracker=None,
        )
        self._pid = launch(stream, head)
        self._lock = threading.Lock()
        self._has_ended = False
        for descriptor in (lifeline, stream.fd):
            os.close(descriptor)
        theirs.close()

    def has_ended(self) -> bool:
        """Whether the process has ended by itself."""
        self._has_ended = self._has_ended or linux.reaped(self._pid)
        return self._has_ended

    def ask_for(self, seat: Seat, descriptors: list[int]) -> None:
        """Requests a worker, with its socket, its mark, its file for stacks, and a socket for news of it."""
        data = pickle.dumps(seat)
        with self._lock, contextlib.suppress(OSError):  # the socket for news ends as well
            socket.send_fds(self._requests, [SIZE_OF.pack(len(data))], descriptors)
            self._requests.sendall(data)

    def close(self) -> None:
        """Ends the process, and with it all workers."""
        if not self.has_ended():
            linux.end(self._pid)
        self._copy.close()
        self._requests.close()
        os.close(self._lifeline)


class _Seated(AgentsWorker):
    """The worker of one rank, which the process of the pool has forked."""

    def __init__(self, host: PoolHost, order: AgentOrder, data: socket.socket, place: str) -> None:
        assert order.pool is not None
        self._stacks = Stacks(1)
        self._marked = segments.create()
        self.marks = SharedActivity(self._marked, 0)
        self.marks.grow(1)
        self._shares = memoryview(mmap.mmap(self._marked, SIZE)).cast("q")[SHARES : SHARES + 3]
        self._news, theirs = socket.socketpair()
        self.descriptor = self._news.fileno()
        self._pid: int | None = None
        self._used = (0, 0.0, 0.0)
        self._is_over = False
        parts = order.pool.parts
        seat = Seat(order.number, place, preparation_for(order), parts.settings, parts.classes)
        host.ask_for(seat, [data.fileno(), self._marked, self._stacks.descriptor(0), theirs.fileno()])
        theirs.close()

    def end(self) -> None:
        """Has it killed."""
        with contextlib.suppress(OSError):
            self._news.send(END)

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Waits this long for its end, and sets `status`."""
        until = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._news, select.POLLIN)
        while not self._is_over and poll.poll(max(0.0, until - time.monotonic()) * 1000):
            word = b""
            with contextlib.suppress(OSError):
                word = self._news.recv(NUMBER.size)
            if len(word) < NUMBER.size:  # the process of the pool has ended, by a kill
                self._is_over, self.status = True, -signal.SIGKILL
            elif self._pid is None:
                self._pid = NUMBER.unpack(word)[0]
            else:
                self._is_over, self.status = True, NUMBER.unpack(word)[0]
        return self._is_over

    def stack(self) -> str:
        """Returns its Python stacks now."""
        if self._pid is None or self._is_over:
            return "(the process of the pool has not forked it yet)"
        return self._stacks.read([(0, self._pid)])

    def last_words(self) -> str:
        """Returns its last stacks."""
        return self._stacks.last_words(0)

    def use(self) -> tuple[int, float, float] | None:
        """Returns the use of the pool's process if it has changed."""
        use = self._shares[0], self._shares[1] / 1e6, self._shares[2] / 1e6
        before, self._used = self._used, use
        return None if use == before else use

    def close(self) -> None:
        self.end()
        self.has_ended(2 * REAP)
        self._news.close()
        for descriptor in (self._marked, self._stacks.descriptor(0)):
            os.close(descriptor)
