"""A lock that another thread held at the fork: such a birth is noticed and redone; what is only slow is left alone."""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, errors
from stoker._engine import supervisor
from stoker._engine.fork import native_pools, start_zygote, trainer


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (native_pools, supervisor):
        monkeypatch.setattr(module, "LOCKED_AFTER", 0.3)
    monkeypatch.setattr(trainer, "PULSE", 1000.0)  # the trainer's timer needs no message to wake it


@pytest.fixture
def births(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """What to do before each birth that follows; counts down."""
    steps: list[Callable[[], None]] = []
    real = start_zygote.fork

    def fork(*arguments: Any) -> int:
        if steps:
            steps.pop(0)()
        return real(*arguments)

    monkeypatch.setattr(start_zygote, "fork", fork)
    yield steps


class Holder:
    """A thread that holds something until it is told to let go."""

    def __init__(self, hold: Callable[[Callable[[], None]], None]) -> None:
        self._held, self._told = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=hold, args=(self._wait,))

    def _wait(self) -> None:
        self._held.set()
        self._told.wait()

    def start(self) -> None:
        self._thread.start()
        assert self._held.wait(10)

    def release(self) -> None:
        self._told.set()
        self._thread.join()


class Samples:
    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        self._call()
        return np.full(4, index)


def epoch(call: Callable[[], object], **settings: Any) -> list[int]:
    settings = {"batch_size": 2, "num_workers": 2, "output": "numpy", "multiprocessing_context": "fork"} | settings
    loader: Any = DataLoader(Samples(call), **settings)
    return [int(batch[0, 0]) for batch in loader]


def a_lock() -> tuple[Holder, Callable[[], object]]:
    lock = threading.Lock()

    def hold(wait: Callable[[], None]) -> None:
        with lock:
            wait()

    def use() -> None:
        with lock:
            pass

    return Holder(hold), use


def a_queue() -> tuple[Holder, Callable[[], object]]:
    shared: queue.Queue[int] = queue.Queue()

    def hold(wait: Callable[[], None]) -> None:
        with shared.mutex:
            wait()

    return Holder(hold), lambda: shared.put(1)


def a_recursive_lock_in_a_condition() -> tuple[Holder, Callable[[], object]]:
    condition = threading.Condition()

    def hold(wait: Callable[[], None]) -> None:
        with condition:
            wait()

    def use() -> None:
        with condition:
            condition.notify_all()

    return Holder(hold), use


@pytest.mark.parametrize("make", [a_lock, a_queue, a_recursive_lock_in_a_condition])
def test_a_lock_that_is_free_by_the_second_birth(births: list[Callable[[], None]], make: Any) -> None:
    holder, use = make()
    births += [holder.start, holder.release]
    with pytest.warns(errors.StokerWarning, match="They are started again"):
        assert epoch(use) == [0, 2, 4, 6]
    assert not births


@pytest.mark.parametrize("make", [a_lock, a_queue])
def test_a_lock_that_stays_locked(births: list[Callable[[], None]], make: Any) -> None:
    holder, use = make()
    births += [holder.start]
    try:
        with (
            pytest.warns(errors.StokerWarning, match="They are started again"),
            pytest.raises(errors.ForkDeadlockError, match="also after a second start") as caught,
        ):
            epoch(use)
    finally:
        holder.release()
    assert "__getitem__" in str(caught.value) and "Worker 1 (pid" in str(caught.value)


def test_logging_onto_a_busy_stream(births: list[Callable[[], None]]) -> None:
    """logging renews its own locks in a child; the thread that waits for the reader holds that of the buffer."""
    ear, mouth = os.pipe()
    stream = os.fdopen(mouth, "w")
    logger = logging.Logger("busy")
    logger.addHandler(logging.StreamHandler(stream))
    writer = threading.Thread(target=lambda: logger.warning("x" * (1 << 17)))  # more than a pipe holds

    def start() -> None:
        writer.start()
        while b"x" not in os.read(ear, 1):
            pass

    def finish() -> None:
        while select.select([ear], [], [], 0)[0] or writer.is_alive():
            if select.select([ear], [], [], 0.01)[0]:
                os.read(ear, 1 << 16)
        writer.join()

    births += [start, finish]
    with pytest.warns(errors.StokerWarning, match="They are started again"):
        assert epoch(lambda: logger.warning("a sample")) == [0, 2, 4, 6]
    assert not births
    stream.close()
    os.close(ear)


def test_init_function_that_waits_for_a_lock(births: list[Callable[[], None]]) -> None:
    holder, use = a_lock()
    births += [holder.start, holder.release]
    with pytest.warns(errors.StokerWarning, match="They are started again"):
        assert epoch(lambda: None, worker_init_fn=lambda worker: use()) == [0, 2, 4, 6]


def compute() -> None:
    until = time.monotonic() + 0.8
    while time.monotonic() < until:
        pass


SLOW: dict[str, Callable[[], object]] = {
    "sleeps": lambda: time.sleep(0.8),
    "computes": compute,
    "waits for a descriptor": lambda: select.select([], [], [], 0.8),
    "waits for an event, for a time": lambda: threading.Event().wait(0.8),
    "waits for a thread that sleeps": lambda: _in_a_thread(lambda: time.sleep(0.8)),
}


def _in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize("how", SLOW)
def test_a_slow_first_sample_is_no_deadlock(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def deadlocked(*_: object) -> None:
        pytest.fail("taken for a deadlock")

    monkeypatch.setattr(trainer.ProcessBackend, "_deadlocked", deadlocked)
    first = [True]

    def call() -> None:
        if first:
            first.clear()  # in each worker, which has its own
            SLOW[how]()

    assert epoch(call) == [0, 2, 4, 6]
