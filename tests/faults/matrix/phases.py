"""The rows of the matrix: a loader of which a process is struck while it does this or that."""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader
from stoker._engine.commands import Heard
from stoker._engine.fork import fresh_interpreter, zygote
from stoker._engine.messages import Delivery, Message, SlotWanted, Unit, UnitDone, packed
from stoker._engine.process import channel, process_setup, worker
from stoker._engine.supervision import slot_allocator
from stoker._engine.transport.writer import SlotWriter
from tests.faults.matrix.cells import HANGS
from tests.faults.matrix.strikes import strike, strike_in_c

N, SIZE = 24, 4
SAMPLE, BATCH = 9, 2
"""The process that is struck, and the batch that it works on."""


class Blow:
    """Strikes the calling process: each time, or only once in all processes. It is pickled by value.

    Args:
        fault: which.
        trace: a file that is made when a process is struck.
        once: whether only the first is struck.
        group: a memory cgroup.
    """

    def __init__(self, fault: str, trace: Path, once: bool, group: Path | None) -> None:
        self.fault = fault
        self.group = str(group)
        self.in_c = False
        self._trace = trace
        self.once = once

    def is_due(self) -> bool:
        """Whether it is to be struck now; says so by the file."""
        try:
            os.close(os.open(self._trace, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return not self.once
        return True

    def __call__(self) -> None:
        if self.is_due():
            (strike_in_c if self.in_c else strike)(self.fault, self.group)

    def beside_faulthandler(self) -> None:
        """Where it is still the test's own, which would write to the terminal."""
        if self.is_due():
            faulthandler.disable()
            strike(self.fault, self.group)


class Numbers:
    """Sample k is k and two random numbers, and a row that is large enough for its batch to travel in the arena."""

    def __init__(self, blow: Callable[[], None] | None = None) -> None:
        self._blow = blow

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == SAMPLE and self._blow is not None:
            self._blow()
        return np.array([index, random.random(), np.random.rand()]), np.full(5_000, index)


class Received(Numbers):
    """Is struck where it arrives."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        state["_blow"]()
        self._blow = None


def stacked(samples: list[Any]) -> Any:
    """Knows nothing of slots: what it makes is copied into one."""
    return tuple(np.stack(leaves) for leaves in zip(*samples, strict=True))


def loader(dataset: Any, **settings: Any) -> Any:
    default = {"batch_size": SIZE, "num_workers": 2, "output": "numpy", "multiprocessing_context": "fork", "seed": 5}
    return DataLoader(dataset, **default | settings)


Phase = Callable[..., Any]
"""Given a blow, a place for patches and settings, makes the loader that is struck."""


def spawn(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    born = process_setup.worker

    def struck(*arguments: Any) -> None:
        blow.beside_faulthandler()
        born(*arguments)

    patch.setattr(process_setup, "worker", struck)
    return loader(Numbers(), **settings)


def init_function(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    if not blow.once and blow.fault in HANGS:
        settings["batch_size"] = N // 2  # one for each worker: each of them hangs twice
    elif not blow.once:
        settings["num_workers"] = 1  # else it is chance how many of the deaths in a row are one unit's
    return loader(Numbers(), worker_init_fn=lambda number: blow(), **settings)


def receive_dataset(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    if blow.fault != "half a message":
        return loader(Received(blow), **settings | {"multiprocessing_context": "forkserver", "num_workers": 1})
    blocks: list[Any] = []
    make, start = fresh_interpreter.Block, fresh_interpreter.util.spawnv_passfds

    def block() -> Any:
        blocks.append(make())
        return blocks[-1]

    def cut(*arguments: Any) -> Any:
        if blow.is_due():
            os.ftruncate(blocks[-2].fd, blocks[-2].size // 2)  # the stream; the other is for buffers
        return start(*arguments)

    patch.setattr(fresh_interpreter, "Block", block)
    patch.setattr(fresh_interpreter.util, "spawnv_passfds", cut)
    return loader(Numbers(), **settings | {"multiprocessing_context": "forkserver"})


def read(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    return loader(Numbers(blow), **settings)


def decode(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    blow.in_c = True
    return loader(Numbers(blow), **settings)


def collate(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    def struck(samples: list[Any]) -> Any:
        if samples[0][0][0] == BATCH * SIZE:
            blow()
        return stacked(samples)

    return loader(Numbers(), collate_fn=struck, **settings)


def write(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    copy, send = SlotWriter._copy, worker.ZygotesWorker.send

    def struck(self: Any, source: Any, size: int) -> int:
        if source.flat[0] == BATCH * SIZE and source.nbytes > SIZE * 1000 and blow.is_due():
            copy(self, source.reshape(-1)[: source.size // 2], size // 2)
            strike(blow.fault, blow.group)
        return copy(self, source, size)

    def cut(self: Any, message: Any) -> None:
        if isinstance(message, SlotWanted) and message.unit == BATCH and blow.is_due():
            half_a_message(self._channel, message)
        send(self, message)

    if blow.fault == "half a message":  # the one in which it asks for a slot
        patch.setattr(worker.ZygotesWorker, "send", cut)
        patch.setattr(slot_allocator.SlotAllocator, "offer", lambda self, unit, run: [])
    else:
        patch.setattr(SlotWriter, "_copy", struck)
    return loader(Numbers(), collate_fn=stacked, **settings)


def hand_over(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    send = worker.ZygotesWorker.send

    def struck(self: Any, message: Any) -> None:
        if isinstance(message, UnitDone) and message.unit == BATCH and blow.is_due():
            if blow.fault == "half a message":
                half_a_message(self._channel, message)
            strike(blow.fault, blow.group)
        send(self, message)

    patch.setattr(worker.ZygotesWorker, "send", struck)
    return loader(Numbers(), **settings)


def idle(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    wait = worker.ZygotesWorker._next

    def struck(self: Any, kind: type[Any]) -> Any:
        if kind is Unit and self._unit >= 0:
            blow()
        return wait(self, kind)

    patch.setattr(worker.ZygotesWorker, "_next", struck)
    return loader(Numbers(), **settings)


def shut_down(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    class Output:
        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            blow()

    def init(number: int) -> None:
        sys.stdout = Output()  # type: ignore[assignment]

    return loader(Numbers(), worker_init_fn=init, **settings)


def in_the_zygote(blow: Blow, patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    handle = zygote.Zygote._handle

    def struck(self: Any, events: Any) -> None:
        answers = [event.message for event in events if isinstance(event, Heard)]
        if any(isinstance(answer, UnitDone) and answer.unit == BATCH for answer in answers):
            if blow.fault == "half a message" and blow.is_due():
                half_a_message(self._trainer, Delivery(BATCH, "batch", b"", None, 0, ()))
            blow.beside_faulthandler()
        handle(self, events)

    patch.setattr(zygote.Zygote, "_handle", struck)
    return loader(Numbers(), **settings)


def half_a_message(end: channel.Channel, message: Message) -> None:
    """Writes the first half of it, and is killed."""
    data = pickle.dumps(packed(message), 5)
    frame = channel._HEADER.pack(len(data)) + data
    end._socket.send(frame[: len(frame) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


LOADERS: dict[str, Phase] = {
    "spawn": spawn,
    "init function": init_function,
    "receive dataset": receive_dataset,
    "read": read,
    "decode in C": decode,
    "collate": collate,
    "write to the arena": write,
    "hand over": hand_over,
    "idle": idle,
    "shut down": shut_down,
    "helper": in_the_zygote,
}
